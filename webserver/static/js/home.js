// The overview, live: tasks move between its lists, agents come and go, and what needs a person is told at once.

import { ofAgent, ofTask, show } from "./attention.js";
import { follow } from "./live.js";
import { batched, fillTask, isOver, newRow, rowOf } from "./task_rows.js";

const FLEET_LEAST_MS = 5000;
const OWN = new Set(["window_full", "may", "leased_not_begun"]); // it waits for its own runs, or for the next pull
const LISTS = ["running", "waiting", "ended"];
const home = document.getElementById("home");
const attention = document.getElementById("attention");
const lists = Object.fromEntries(LISTS.map((name) => [name, home.querySelector(`[data-list="${name}"]`)]));
let fleetDue = 0;

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
  while (list.children.length > Number(list.dataset.limit)) list.lastElementChild.remove();
}

function count(name, list, limit) {
  const n = list.children.length;
  home.querySelector(`[data-count="${name}"]`).textContent = n >= limit ? `${n}+` : String(n);
  home.querySelector(`[data-nothing="${name}"]`).hidden = n > 0;
}

function recount() {
  for (const name of LISTS) count(name, lists[name], Number(lists[name].dataset.limit));
  count("attention", attention, 50);
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
      for (const name of LISTS) place(name, task);
      show(attention, "task", task.id, task.name, `/tasks/${encodeURIComponent(task.id)}`, ofTask(task));
    }
    recount();
  }),
  agent: batched((agents) => {
    for (const agent of agents.values()) {
      show(attention, "agent", agent.id, agent.name, `/agents/${encodeURIComponent(agent.id)}`, agent.forgotten ? null : ofAgent(agent));
    }
    recount();
    fleetSoon();
  }),
});
setInterval(() => document.hidden || fleetSoon(), 30000);
