// The hosts of a task in groups of identical outcome. Rows are made when a group is opened, two hundred at a time and fifty
// a frame, and only groups whose runs have changed are drawn again, so that thousands of hosts stay smooth.

import { plain } from "./plain.js";
import { drawRow, makeRow } from "./task_row.js";
import { neverBegun } from "./task_words.js";
import { RUN_FINAL, el, outcomeWords, setBadge, setText, stateWord } from "./view.js";
import { language, number, t } from "./words.js";

const STEP = 200;
const SLICE = 50; // rows made in one frame
const OPEN_MOST = 12;
const FILTER_LEAST = 6;
const NAMES_SHOWN = 40;
const EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const RANKS = { failed: 0, running: 1, leased: 2, ready: 3, delayed: 3, cancelled: 4, skipped: 4, expired: 4, succeeded: 5 };
const names = new Intl.Collator(language, { numeric: true });

/** What the agent of a run is called. */
export const agentName = (run) => run.agent?.name ?? t("any agent");

/** Runs by identical outcome, as `grouped` of webserver/pages/task.py, with its keys: runs whose output is like no other's
    share one. */
function grouped(runs) {
  const alike = new Map();
  for (const run of runs) {
    const end = run.outcome !== null && run.output_sha256 !== undefined && RUN_FINAL.has(run.state);
    const kind = end ? plain(`${run.state}|${run.outcome}|${run.exit_code ?? ""}|${run.signal ?? ""}`) : `${run.state}|||`;
    const outputs = alike.get(kind) ?? alike.set(kind, new Map()).get(kind);
    const hash = (end && run.output_sha256) || "";
    outputs.get(hash)?.push(run) ?? outputs.set(hash, [run]);
  }
  const found = [];
  for (const [kind, outputs] of alike) {
    const sole = [];
    for (const [hash, members] of outputs) {
      if (members.length === 1 && hash) sole.push(members[0]);
      else found.push({ key: `${kind}|${hash}`, runs: members, same: hash === EMPTY_SHA256 ? t("no output") : hash && members.length > 1 ? t("identical output") : "" });
    }
    const quiet = sole.length === 1 && sole[0].output_sha256 === EMPTY_SHA256;
    if (sole.length) found.push({ key: `${kind}|*`, runs: sole, differ: sole.length > 1, same: sole.length > 1 ? t("outputs differ") : quiet ? t("no output") : "" });
  }
  return found.sort((a, b) => RANKS[a.runs[0].state] - RANKS[b.runs[0].state] || b.runs.length - a.runs.length);
}

export class Groups {
  constructor({ list, template, byName, byState, narrow, none, changed }) {
    Object.assign(this, { list, template, byName, byState, narrow, none, changed });
    this.shown = new Map(); // key → {item, details, body, runs, rows, most, stale, decided}
    this.touched = new Set();
    this.sorted = null;
    this.states = new Set();
    this.paused = false;
    for (const item of list.children) if (item.dataset.key) this.adopt(item);
    list.addEventListener("click", pressed);
    byName.addEventListener("input", () => changed());
    byState.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const { state } = button.dataset;
      if (!this.states.delete(state)) this.states.add(state);
      changed();
    });
  }

  /** A run has come or changed. */
  touch(run) {
    this.touched.add(run.id);
    this.sorted = null;
  }

  draw(runs, { chosen, paused }) {
    this.sorted ??= [...runs.values()].sort((a, b) => names.compare(a.agent?.name ?? "", b.agent?.name ?? "") || (a.id < b.id ? -1 : 1));
    this.drawFilter(runs);
    const wanted = this.byName.value.trim().toLowerCase();
    const fits = (run) => (!this.states.size || this.states.has(run.state)) && (!wanted || agentName(run).toLowerCase().includes(wanted));
    // A filter takes runs out of groups and leaves the groups what they are, so that those that were open are so after it.
    const all = grouped(this.sorted);
    const found = all.map((group) => ({ ...group, runs: group.runs.filter(fits) })).filter((group) => group.runs.length);
    const left = found.reduce((sum, group) => sum + group.runs.length, 0);
    this.none.hidden = left > 0;
    const held = document.activeElement;
    const repaused = this.paused !== paused;
    this.paused = paused;
    const items = found.map((group) => this.drawGroup(group, { open: left <= OPEN_MOST, chosen, repaused }));
    const keys = new Set(all.map((group) => group.key));
    for (const [key, { item }] of [...this.shown]) if (!keys.has(key)) { item.remove(); this.shown.delete(key); }
    if (items.length !== this.list.children.length || items.some((item, n) => item !== this.list.children[n])) {
      this.list.replaceChildren(...items);
      if (held?.isConnected && held !== document.activeElement) held.focus({ preventScroll: true });
    }
    this.touched.clear();
  }

  /** Take over a group that is on the page: one that a person has opened there stays open. */
  adopt(item) {
    const details = item.querySelector("details");
    const there = { item, details, body: item.querySelector('[data-f="runs"]'), rows: new Map(), most: STEP, runs: [], chosen: null, decided: details.open };
    details.addEventListener("toggle", () => this.drawRows(there));
    item.addEventListener("click", () => { there.decided = true; });
    this.shown.set(item.dataset.key, there);
    return there;
  }

  made(key) {
    const item = this.template.content.firstElementChild.cloneNode(true);
    item.dataset.key = key;
    return this.adopt(item);
  }

  drawGroup(group, { open, chosen, repaused }) {
    const there = this.shown.get(group.key) ?? this.made(group.key);
    if (!there.decided) there.details.open = open;
    const [first] = group.runs;
    setBadge(there.item.querySelector(".badge"), first.state);
    setText(there.item, number(group.runs.length), '[data-f="count"]');
    setText(there.item, neverBegun(first) || outcomeWords(first), '[data-f="what"]');
    setText(there.item, group.same, '[data-f="same"]');
    const told = there.item.querySelector('[data-f="names"]');
    const few = group.runs.filter((run) => run.agent).slice(0, NAMES_SHOWN).map(agentName).join(", ");
    setText(told, few);
    told.title = told.textContent;
    const moved = there.runs.length !== group.runs.length || group.runs.some((run, n) => run.id !== there.runs[n].id);
    const stale = moved || repaused || there.chosen !== chosen || group.runs.some((run) => this.touched.has(run.id));
    Object.assign(there, { runs: group.runs, chosen, differ: group.differ, stale: there.stale || stale });
    this.drawRows(there);
    return there.item;
  }

  drawRows(there) {
    if (!there.details.open || !there.stale) return;
    there.stale = false;
    if (!there.list) {
      there.hint = el("p", { class: "muted hint" }, t("Each wrote something else: open two hosts, in a tab each, to compare."));
      there.list = el("ul", {});
      there.more = el("button", { type: "button", class: "secondary small more", hidden: true });
      there.more.addEventListener("click", () => {
        const next = there.most;
        there.most += STEP;
        there.stale = true;
        this.drawRows(there);
        there.list.children[next]?.querySelector(".open")?.focus();
      });
      there.body.replaceChildren(there.hint, there.list, there.more);
    }
    there.hint.hidden = !there.differ;
    const rows = this.rows(there);
    if (rows.length < there.rows.size) {
      const kept = new Set(rows);
      for (const [id, row] of there.rows) if (!kept.has(row)) there.rows.delete(id);
    }
    place(there.list, rows);
    const left = there.runs.length - Math.min(there.most, there.runs.length);
    there.more.hidden = left <= 0;
    setText(there.more, t("Show %(n)s more", { n: number(Math.min(STEP, left)) }));
  }

  /** The rows of the first runs; those that are missing are made a few at a time. */
  rows(there) {
    const rows = [];
    let made = 0;
    for (const run of there.runs.slice(0, there.most)) {
      let row = there.rows.get(run.id);
      if (!row) {
        made += 1;
        if (made > SLICE) break;
        row = makeRow(run);
        there.rows.set(run.id, row);
      }
      drawRow(row, run, { chosen: run.id === there.chosen, paused: this.paused });
      rows.push(row);
    }
    if (made > SLICE) {
      cancelAnimationFrame(there.frame);
      there.frame = requestAnimationFrame(() => {
        there.stale = true;
        this.drawRows(there);
      });
    }
    return rows;
  }

  drawFilter(runs) {
    this.narrow.hidden = runs.size < FILTER_LEAST;
    const counts = {};
    for (const run of runs.values()) counts[run.state] = (counts[run.state] ?? 0) + 1;
    const states = Object.keys(RANKS).filter((state) => counts[state] || this.states.has(state));
    const mark = JSON.stringify([states.map((state) => [state, counts[state]]), [...this.states]]);
    if (this.byState.dataset.mark === mark) return;
    this.byState.dataset.mark = mark;
    const there = new Map([...this.byState.children].map((button) => [button.dataset.state, button]));
    const buttons = states.map((state) => {
      const button = there.get(state) ?? el("button", { type: "button", class: "secondary small", "data-state": state });
      button.setAttribute("aria-pressed", String(this.states.has(state)));
      setText(button, `${stateWord(state)} ${number(counts[state] ?? 0)}`);
      return button;
    });
    place(this.byState, buttons);
  }
}

/** Have `parent` hold these children, moving as few as possible, so that the one in focus stays so. */
function place(parent, children) {
  const kept = new Set(children);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  let next = parent.firstElementChild;
  for (const child of children) {
    if (next === child) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
}

/** The whole of a row opens its run. */
function pressed(event) {
  const row = event.target.closest(".run");
  if (row && !event.target.closest("a, button") && !getSelection().toString()) location.hash = `run=${row.dataset.run}`;
}
