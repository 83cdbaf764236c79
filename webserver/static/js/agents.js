// The list of agents, live: rows change where they are, new hosts appear at their place in the alphabet, forgotten ones
// vanish. What says how busy they are is asked for anew now and then, not for each event.

import { fillAgent, newRow } from "./agent_rows.js";
import { follow } from "./live.js";
import { batched, rowOf } from "./task_rows.js";
import { el, icon } from "./view.js";
import { plain } from "./plain.js";
import { t } from "./words.js";

const REFRESH_MS = 15000;
const FLEET_MS = 5000;
const filters = document.getElementById("filters");
const panel = document.getElementById("add");
let fleetDue = 0;

const list = () => document.getElementById("list");

// -- the list -------------------------------------------------------------------------------------------------------

function fits(agent) {
  const { states, text } = list().dataset;
  if (states && !states.split(",").includes(agent.state)) return false;
  const wanted = text.toLowerCase();
  const said = [agent.name, agent.hostname, ...Object.entries(agent.labels).map(([name, value]) => `${name}=${value}`)];
  return said.some((each) => each.toLowerCase().includes(wanted));
}

function place(agent) {
  const rows = list().querySelector("[data-list]");
  const row = rowOf(rows, agent.id);
  if (agent.forgotten) return row?.remove();
  const renamed = row && row.dataset.name !== plain(agent.name);
  if (row && !renamed) return fillAgent(row, agent);
  row?.remove();
  if (!fits(agent)) return;
  const made = newRow(agent);
  const behind = [...rows.children].find((each) => each.dataset.name > made.dataset.name);
  const { first, more } = list().dataset;
  if ((!behind && more === "true") || (first !== "true" && behind === rows.firstElementChild)) return; // on another page
  if (!renamed) made.classList.add("fresh");
  rows.insertBefore(made, behind ?? null);
  list().querySelector("#none")?.remove();
}

function refresh() {
  if (!document.hidden && !filters.classList.contains("htmx-request")) list().dispatchEvent(new Event("muster:refresh"));
}

function refreshForEver() {
  setTimeout(() => {
    refresh();
    refreshForEver();
  }, REFRESH_MS * (1 + Math.random() / 3));
}

function fleetSoon() {
  if (fleetDue) return;
  fleetDue = setTimeout(() => {
    fleetDue = 0;
    document.getElementById("fleet")?.dispatchEvent(new Event("muster:fleet"));
  }, FLEET_MS * (0.2 + Math.random()));
}

// -- adding a host --------------------------------------------------------------------------------------------------

function arrived(agent) {
  const join = document.getElementById("join");
  const mark = document.getElementById("arrival");
  if (!mark || mark.dataset.agent || agent.forgotten || agent.state !== "online") return;
  if (Date.parse(agent.enrolled_at) < Number(join.dataset.made)) return;
  mark.dataset.agent = agent.id;
  mark.className = "alert good";
  const link = el("a", { href: `/agents/${encodeURIComponent(agent.id)}` }, t("Open it"));
  mark.replaceChildren(icon("circle-check"), el("span", {}, t("%(name)s has joined.", { name: agent.name }), " ", link));
}

function open() {
  panel.classList.add("open");
  panel.focus();
  panel.scrollIntoView({ block: "nearest" });
}

function close(event) {
  event.preventDefault();
  panel.classList.remove("open");
  history.replaceState(history.state, "", location.pathname + location.search);
  document.getElementById("add-link").focus();
}

document.getElementById("add-link").addEventListener("click", (event) => {
  event.preventDefault();
  open();
});
document.getElementById("add-close")?.addEventListener("click", close);
if (location.hash === "#add") {
  history.replaceState(history.state, "", location.pathname + location.search);
  open();
}
addEventListener("hashchange", () => location.hash === "#add" && open());
document.addEventListener("htmx:after:swap", () => document.querySelector("#join[data-made]:not([data-seen])")?.dispatchEvent(new Event("muster:made", { bubbles: true })));
document.addEventListener("muster:made", ({ target }) => {
  // The button that was pressed is gone: go on at the one that copies the line.
  target.dataset.seen = "true";
  target.querySelector("[data-copy]").focus();
});

filters.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-state]");
  if (!button) return;
  // One hidden field carries the state, so that typing in the other field keeps it.
  event.preventDefault();
  filters.querySelector("input[name=state]").value = button.dataset.state;
  for (const each of filters.querySelectorAll("button[data-state]")) each.setAttribute("aria-pressed", String(each === button));
  filters.dispatchEvent(new Event("input", { bubbles: true }));
});

follow("/api/v1/events?runs=false", list().dataset.after, {
  agent: batched((agents) => {
    for (const agent of agents.values()) {
      place(agent);
      arrived(agent);
    }
    if (!list().querySelector("[data-list]").children.length && !list().querySelector("#none")) refresh();
    fleetSoon();
  }),
});
refreshForEver();
