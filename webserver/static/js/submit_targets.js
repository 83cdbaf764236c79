// The hosts of the form: a list that is kept up to date, a filter, and a choice that outlasts both.

import { follow } from "./live.js";
import { badge, el, icon, setBadge, setText } from "./view.js";
import { language, t, tn } from "./words.js";

const ROWS_MOST = 200;
const byId = (id) => document.getElementById(id);

/** A row; the same as the macro `host` of submit_parts.html. */
function makeRow(agent) {
  const box = el("input", { type: "checkbox", name: "target" });
  const names = el("span", { class: "host-names" }, el("span", { class: "host-name wrap" }), " ", el("span", { class: "muted small wrap host-hostname" }), el("span", { class: "chips" }));
  const state = el("span", { class: "host-state" });
  if (agent.state) state.append(badge(agent.state), el("span", { class: "muted small nowrap host-load", title: t("Slots in use") }));
  else state.append(el("span", { class: "fault" }, icon("circle-alert"), t("not known here (any more)")));
  const row = el("li", { class: "host" }, el("label", {}, box, names, state));
  return row;
}

function fillRow(row, agent, checked) {
  const box = row.querySelector("input");
  if (box.value !== agent.name) box.value = agent.name;
  box.checked = checked;
  setText(row, agent.name, ".host-name");
  setText(row, agent.hostname && agent.hostname !== agent.name ? agent.hostname : "", ".host-hostname");
  const chips = row.querySelector(".chips");
  const labels = Object.entries(agent.labels ?? {}).sort().map(([key, value]) => `${key}=${value}`);
  if (row.dataset.labels !== labels.join("\n")) {
    row.dataset.labels = labels.join("\n");
    chips.replaceChildren(...labels.map((label) => el("span", { class: "chip" }, label)));
  }
  if (!agent.state) return;
  setBadge(row.querySelector(".badge"), agent.state);
  const load = agent.facts?.load;
  const said = typeof load === "number" ? ` · ${t("load %(load)s", { load: load.toFixed(1) })}` : "";
  setText(row, `${agent.held}/${agent.slots}${said}`, ".host-load");
}

/** Make the list of `form` live; `changed(why)` is called after the choice (`choice`) or a host (`host`) changed. */
export function targetList(form, changed) {
  const list = byId("hosts");
  const filter = byId("filter");
  const agents = new Map(JSON.parse(byId("hosts-known").textContent).map((agent) => [agent.id, agent]));
  let chosen = new Set([...list.querySelectorAll("input:checked")].map((box) => box.value));
  const rows = new Map(); // by id
  let drawn = 0;
  let shown = [];
  const order = new Intl.Collator(language, { numeric: true });
  let sorted = null;

  function all() {
    if (sorted) return sorted;
    const known = [...agents.values()].sort((a, b) => order.compare(a.name, b.name));
    const names = new Set(known.map((agent) => agent.name));
    const gone = [...chosen].filter((name) => !names.has(name)).map((name) => ({ id: `gone:${name}`, name }));
    sorted = [...gone, ...known];
    return sorted;
  }

  function matches(agent, words) {
    if (!words.length) return true;
    const said = [agent.name, agent.hostname ?? "", ...Object.entries(agent.labels ?? {}).map(([k, v]) => `${k}=${v}`)].join("\n").toLowerCase();
    return words.every((word) => said.includes(word));
  }

  function draw() {
    drawn = 0;
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = all().filter((agent) => matches(agent, words));
    const wanted = shown.slice(0, ROWS_MOST).map((agent) => {
      const kind = agent.state ? "known" : "gone";
      let row = rows.get(agent.id);
      if (!row || row.dataset.kind !== kind) {
        row = makeRow(agent);
        row.dataset.kind = kind;
        rows.set(agent.id, row);
      }
      fillRow(row, agent, chosen.has(agent.name));
      return row;
    });
    const there = [...list.children];
    if (there.length !== wanted.length || wanted.some((row, n) => row !== there[n])) {
      const focused = document.activeElement;
      list.replaceChildren(...wanted);
      if (focused && focused !== document.activeElement && list.contains(focused)) focused.focus();
    }
    for (const id of rows.keys()) if (!agents.has(id) && !id.startsWith("gone:")) rows.delete(id);
    list.hidden = wanted.length === 0;
    oneTabStop();
    say(words);
  }

  // The list is one stop of the Tab key; arrows move within it.
  function oneTabStop() {
    const boxes = [...list.querySelectorAll("input")];
    const stop = boxes.find((box) => box === document.activeElement) ?? boxes.find((box) => box.tabIndex === 0 && box.dataset.stop) ?? boxes[0];
    for (const box of boxes) {
      box.tabIndex = box === stop ? 0 : -1;
      box.toggleAttribute("data-stop", box === stop);
    }
  }

  function say(words) {
    const total = agents.size;
    setText(byId("chosen"), t("%(chosen)s of %(total)s selected", { chosen: chosen.size, total }));
    setText(byId("choose-all"), t("Select all shown (%(n)s)", { n: shown.length }));
    byId("choose-all").disabled = shown.every((agent) => chosen.has(agent.name));
    byId("choose-none").hidden = chosen.size === 0;
    const more = byId("hosts-more");
    more.hidden = total === 0 || (shown.length > 0 && shown.length <= ROWS_MOST);
    if (shown.length === 0) setText(more, t("No host has “%(words)s” in its name, host name or labels.", { words: words.join(" ") }));
    else setText(more, tn("%(n)s more host matches: narrow the list above.", "%(n)s more hosts match: narrow the list above.", Math.max(1, shown.length - ROWS_MOST)));
    const none = byId("no-hosts");
    if (none) none.hidden = total > 0;
  }

  function redraw() {
    if (!drawn) drawn = requestAnimationFrame(draw);
  }

  function choose(names) {
    chosen = new Set(names);
    sorted = null;
    redraw();
    changed("choice");
  }

  list.addEventListener("change", (event) => {
    if (event.target.checked) chosen.add(event.target.value);
    else chosen.delete(event.target.value);
    // A host was picked, so "any of all" is hardly what is meant.
    if (event.target.checked && form.elements.where.value === "any") form.elements.among.value = "selected";
    redraw();
    changed("choice");
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const boxes = [...list.querySelectorAll("input")];
    const next = boxes[boxes.indexOf(event.target) + step];
    event.preventDefault();
    next?.focus();
    oneTabStop();
  });
  list.addEventListener("focusin", oneTabStop);
  filter.addEventListener("input", redraw);
  filter.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      list.querySelector("input")?.focus();
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) event.preventDefault();
  });
  byId("choose-all").addEventListener("click", () => choose([...chosen, ...shown.map((agent) => agent.name)]));
  byId("choose-none").addEventListener("click", () => {
    choose([]);
    filter.focus();
  });

  follow("/api/v1/events?runs=false", form.dataset.after || null, {
    agent(agent) {
      const before = agents.get(agent.id);
      if (agent.forgotten) agents.delete(agent.id);
      else {
        if (before && before.name !== agent.name && chosen.delete(before.name)) chosen.add(agent.name);
        agents.set(agent.id, agent);
      }
      sorted = null;
      redraw();
      if (before?.state !== agent.state && (form.elements.where.value === "any" || chosen.has(before?.name) || chosen.has(agent.name))) changed("host");
    },
  });
  draw();
  return { chosen: () => [...chosen], choose, focus: () => filter.focus() };
}
