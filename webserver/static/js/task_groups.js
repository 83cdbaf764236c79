// The hosts of a task in groups of identical outcome. Rows are made when a group is opened, two hundred at a time, and
// only groups whose runs have changed are drawn again, so that thousands of hosts stay smooth.

import { drawRow, makeRow } from "./task_row.js";
import { el, outcomeWords, setBadge, setText, stateWord } from "./view.js";
import { language, number, t } from "./words.js";

const STEP = 200;
const OPEN_MOST = 12;
const FILTER_LEAST = 6;
const NAMES_SHOWN = 40;
const EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const RANKS = { failed: 0, running: 1, leased: 2, ready: 3, delayed: 3, cancelled: 4, skipped: 4, expired: 4, succeeded: 5 };
const names = new Intl.Collator(language, { numeric: true });

/** What the agent of a run is called. */
export const agentName = (run) => run.agent?.name ?? t("any agent");

/** Runs by identical outcome, as `grouped` of webserver/pages/task.py: runs whose output is like no other's share one. */
function grouped(runs) {
  const alike = new Map();
  for (const run of runs) {
    const end = run.outcome !== null && run.output_sha256 !== undefined && ["succeeded", "failed", "cancelled"].includes(run.state);
    const kind = JSON.stringify(end ? [run.state, run.outcome, run.exit_code, run.signal] : [run.state]);
    const outputs = alike.get(kind) ?? alike.set(kind, new Map()).get(kind);
    const hash = (end && run.output_sha256) || "";
    outputs.get(hash)?.push(run) ?? outputs.set(hash, [run]);
  }
  const found = [];
  for (const [kind, outputs] of alike) {
    const sole = [];
    for (const [hash, members] of outputs) {
      if (members.length === 1 && hash) sole.push(members[0]);
      else found.push({ key: `${kind} ${hash}`, runs: members, same: hash === EMPTY_SHA256 ? t("no output") : hash && members.length > 1 ? t("identical output") : "" });
    }
    const quiet = sole.length === 1 && sole[0].output_sha256 === EMPTY_SHA256;
    if (sole.length) found.push({ key: `${kind} *`, runs: sole, same: sole.length > 1 ? t("outputs differ") : quiet ? t("no output") : "" });
  }
  return found.sort((a, b) => RANKS[a.runs[0].state] - RANKS[b.runs[0].state] || b.runs.length - a.runs.length);
}

export class Groups {
  constructor({ list, template, byName, byState, narrow, none, changed }) {
    Object.assign(this, { list, template, byName, byState, narrow, none, changed });
    this.shown = new Map(); // key → {item, details, body, runs, rows, most, stale}
    this.touched = new Set();
    this.sorted = null;
    this.states = new Set();
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

  draw(runs, chosen) {
    this.sorted ??= [...runs.values()].sort((a, b) => names.compare(a.agent?.name ?? "", b.agent?.name ?? "") || (a.id < b.id ? -1 : 1));
    this.drawFilter(runs);
    const wanted = this.byName.value.trim().toLowerCase();
    const kept = this.sorted.filter((run) => (!this.states.size || this.states.has(run.state)) && (!wanted || agentName(run).toLowerCase().includes(wanted)));
    const found = grouped(kept);
    this.none.hidden = kept.length > 0;
    const held = document.activeElement;
    const items = found.map((group) => this.drawGroup(group, { open: kept.length <= OPEN_MOST, chosen }));
    const keys = new Set(found.map((group) => group.key));
    // While a filter hides groups they are kept, so that those that were open are so again after it.
    if (kept.length === runs.size) for (const key of [...this.shown.keys()]) if (!keys.has(key)) this.shown.delete(key);
    if (items.length !== this.list.children.length || items.some((item, n) => item !== this.list.children[n])) {
      this.list.replaceChildren(...items);
      if (held?.isConnected && held !== document.activeElement) held.focus({ preventScroll: true });
    }
    this.touched.clear();
  }

  drawGroup(group, { open, chosen }) {
    let there = this.shown.get(group.key);
    if (!there) {
      const item = this.template.content.firstElementChild.cloneNode(true);
      there = { item, details: item.querySelector("details"), body: item.querySelector('[data-f="runs"]'), rows: new Map(), most: STEP, runs: [], chosen: null };
      there.body.replaceChildren();
      there.details.open = open;
      there.details.addEventListener("toggle", () => this.drawRows(there));
      item.querySelector("summary").addEventListener("click", () => { there.decided = true; });
      this.shown.set(group.key, there);
    } else if (open && !there.decided) there.details.open = true;
    const [first] = group.runs;
    setBadge(there.item.querySelector(".badge"), first.state);
    setText(there.item, number(group.runs.length), '[data-f="count"]');
    setText(there.item, outcomeWords(first), '[data-f="what"]');
    setText(there.item, group.same, '[data-f="same"]');
    const told = there.item.querySelector('[data-f="names"]');
    const few = group.runs.filter((run) => run.agent).slice(0, NAMES_SHOWN).map(agentName).join(", ");
    setText(told, few);
    told.title = told.textContent;
    const moved = there.runs.length !== group.runs.length || group.runs.some((run, n) => run.id !== there.runs[n].id);
    const stale = moved || there.chosen !== chosen || group.runs.some((run) => this.touched.has(run.id));
    Object.assign(there, { runs: group.runs, chosen, stale: there.stale || stale });
    this.drawRows(there);
    return there.item;
  }

  drawRows(there) {
    if (!there.details.open || !there.stale) return;
    there.stale = false;
    if (!there.list) {
      there.list = el("ul", {});
      there.more = el("button", { type: "button", class: "secondary small more", hidden: true });
      there.more.addEventListener("click", () => {
        const next = there.most;
        there.most += STEP;
        there.stale = true;
        this.drawRows(there);
        there.list.children[next]?.querySelector("a")?.focus();
      });
      there.body.append(there.list, there.more);
    }
    const rows = there.runs.slice(0, there.most).map((run) => {
      const row = there.rows.get(run.id) ?? makeRow(run);
      there.rows.set(run.id, row);
      drawRow(row, run, run.id === there.chosen);
      return row;
    });
    if (rows.length < there.rows.size) {
      const kept = new Set(rows);
      for (const [id, row] of there.rows) if (!kept.has(row)) there.rows.delete(id);
    }
    place(there.list, rows);
    const left = there.runs.length - rows.length;
    there.more.hidden = left <= 0;
    setText(there.more, t("Show %(n)s more", { n: number(Math.min(STEP, left)) }));
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
  children.forEach((child, n) => {
    if (parent.children[n] !== child) parent.insertBefore(child, parent.children[n] ?? null);
  });
}
