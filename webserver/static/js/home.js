// The overview, live: tasks move between its lists, agents come and go, and what needs a person is told at once.

import { ofAgent, ofTask, show } from "./attention.js";
import { follow } from "./live.js";
import { batched, fillTask, isOver, newRow, rowOf } from "./task_rows.js";

const FLEET_LEAST_MS = 5000;
const REFILL_MS = 10000;
const OWN = new Set(["window_full", "may", "leased_not_begun"]); // it waits for its own runs, or for the next pull
const LISTS = ["running", "waiting", "ended"];
const home = document.getElementById("home");
const attention = document.getElementById("attention");
const lists = Object.fromEntries(LISTS.map((name) => [name, home.querySelector(`[data-list="${name}"]`)]));
// Lists that had no room for all: when something leaves them, what had no room is asked for.
const full = new Set(LISTS.filter((name) => lists[name].children.length >= limitOf(name)));
const toldMeanwhile = new Set(); // tasks that events told of while the overview was asked for: those know better
let fleetDue = 0;
let refillDue = 0;
let refilledAt = 0;

function limitOf(name) {
  return Number(lists[name].dataset.limit);
}

function belongs(name, task) {
  if (name === "ended") return isOver(task);
  if (isOver(task)) return false;
  if (name === "running") return task.state === "running";
  if ((task.counts.ready ?? 0) + (task.counts.delayed ?? 0) === 0) return false;
  return task.state === "waiting" || task.paused || (task.waiting ?? []).some((each) => !OWN.has(each.code));
}

function place(name, task) {
  const list = lists[name];
  const row = rowOf(list, task.id);
  if (!belongs(name, task)) return row?.remove();
  if (row) return fillTask(row, task);
  const made = newRow(task);
  made.classList.add("fresh");
  list.prepend(made);
  if (list.children.length >= limitOf(name)) full.add(name);
  while (list.children.length > limitOf(name)) list.lastElementChild.remove();
}

function count(name, list, more) {
  const n = list.children.length;
  home.querySelector(`[data-count="${name}"]`).textContent = more ? `${n}+` : String(n);
  home.querySelector(`[data-nothing="${name}"]`).hidden = n > 0;
}

/** The first steps go when there is a first task; what needs attention is told beside them. */
function leaveFirst() {
  const any = LISTS.some((name) => lists[name].children.length);
  if (any) document.getElementById("first")?.remove();
  if (any || attention.children.length) home.hidden = false;
}

function recount() {
  leaveFirst();
  for (const name of LISTS) count(name, lists[name], full.has(name));
  count("attention", attention, attention.children.length >= 50);
  if ([...full].some((name) => lists[name].children.length < limitOf(name))) refillSoon();
}

function refillSoon() {
  if (refillDue) return;
  refillDue = setTimeout(refill, Math.max(0, refilledAt + REFILL_MS - Date.now()) + 1000 * Math.random());
}

async function refill() {
  refilledAt = Date.now();
  toldMeanwhile.clear();
  const answer = await fetch("/api/v1/overview").catch(() => null);
  const told = answer?.ok ? await answer.json() : null;
  refillDue = 0;
  if (!told) return; // the live mark says when the server is away
  for (const name of LISTS) {
    for (const task of told[name]) {
      if (lists[name].children.length >= limitOf(name)) break;
      if (!toldMeanwhile.has(task.id) && !rowOf(lists[name], task.id) && belongs(name, task)) lists[name].append(newRow(task));
    }
    if (lists[name].children.length < limitOf(name)) full.delete(name); // that was all
  }
  recount();
}

function fleetSoon() {
  if (fleetDue) return;
  fleetDue = setTimeout(() => {
    fleetDue = 0;
    document.getElementById("fleet")?.dispatchEvent(new Event("muster:fleet"));
  }, FLEET_LEAST_MS * (0.2 + Math.random()));
}

follow("/api/v1/events?runs=false", home.dataset.after, {
  task: batched((tasks) => {
    for (const task of tasks.values()) {
      toldMeanwhile.add(task.id);
      for (const name of LISTS) place(name, task);
      show(attention, "task", task.id, task.name, `/tasks/${encodeURIComponent(task.id)}`, ofTask(task));
    }
    recount();
  }),
  agent: batched((agents) => {
    for (const agent of agents.values()) {
      if (!agent.forgotten) {
        document.getElementById("no-host")?.remove();
        document.querySelector("[data-step=host]")?.setAttribute("data-done", "");
      }
      show(attention, "agent", agent.id, agent.name, `/agents/${encodeURIComponent(agent.id)}`, agent.forgotten ? null : ofAgent(agent));
    }
    recount();
    fleetSoon();
  }),
});
setInterval(() => document.hidden || fleetSoon(), 30000);
