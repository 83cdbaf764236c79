// The page of a task: follows its stream, keeps its runs, and has the parts of the page drawn, at most five times a second.

import { follow } from "./live.js";
import { notice } from "./notices.js";
import { Groups } from "./task_groups.js";
import { drawHeader } from "./task_header.js";
import { Panel } from "./task_run.js";
import { waitsForAgents } from "./task_words.js";
import { TASK_FINAL } from "./view.js";
import { t } from "./words.js";

const DRAW_MS = 200;
const LOOK_MS = 10_000;
const root = document.getElementById("task");
const taskId = root.dataset.task;
const runs = new Map();
let task = null;
let whole = false; // the stream's snapshot has come in full: until then the page stays as the server made it
let fresh = true; // what comes next begins a snapshot
let timer = 0;
let drawn = 0;

const groups = new Groups({
  list: document.getElementById("groups"),
  template: document.getElementById("group"),
  byName: document.getElementById("by-name"),
  byState: document.getElementById("by-state"),
  narrow: document.getElementById("narrow"),
  none: document.getElementById("none"),
  changed: () => plan(),
});
const panel = new Panel({
  place: document.getElementById("panel"),
  split: document.getElementById("split"),
  task: () => task,
  runs,
  closed: () => history.replaceState(null, "", location.pathname + location.search),
});

function plan() {
  if (!whole || timer) return;
  timer = setTimeout(draw, Math.max(0, DRAW_MS - (performance.now() - drawn)));
}

function draw() {
  timer = 0;
  drawn = performance.now();
  drawHeader(root, task, counted());
  groups.draw(runs, { chosen: panel.runId, paused: task.paused && !TASK_FINAL.has(task.state) });
  panel.draw();
}

/** Runs by state, as the groups show them: of many changes at once the task's own counts come later than its runs. */
function counted() {
  if (runs.size !== task.total) return task.counts;
  const counts = {};
  for (const { state } of runs.values()) counts[state] = (counts[state] ?? 0) + 1;
  return counts;
}

function settled(id) {
  if (id === "0") {
    fresh = false;
    return;
  }
  const first = !whole;
  whole = task !== null;
  fresh = true;
  if (first && whole) {
    document.getElementById("merged").hidden = runs.size < 2;
    draw();
    // Whoever submits to one host wants to see what it writes.
    const only = runs.size === 1 && !location.hash ? [...runs.keys()][0] : null;
    if (only) panel.open(only, { go: false });
    else route();
    plan();
  } else plan();
}

/** Show what the address names: `#run=ID&line=N`, or `#output` for the output of all. */
function route() {
  if (!whole) return;
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.has("run")) {
    const run = runs.get(asked.get("run")) ?? [...runs.values()].find((each) => each.id.startsWith(asked.get("run")));
    if (run) panel.open(run.id, { line: Number(asked.get("line")) || null, attempt: Number(asked.get("attempt")) || null });
    else notice(t("This task has no such run."));
  } else if (asked.has("output")) panel.openAll();
  else panel.close();
  plan();
}

async function read(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

/** Why runs wait for agents changes with the agents, of which this page's stream tells nothing: look now and then. */
async function look() {
  if (!whole || document.hidden || TASK_FINAL.has(task.state) || !waitsForAgents(task)) return;
  const before = task;
  try {
    const now = await read(`/api/v1/tasks/${taskId}`);
    if (task !== before || now.state !== task.state || JSON.stringify(now.waiting) === JSON.stringify(task.waiting)) return;
    task = { ...task, waiting: now.waiting, waiting_because: now.waiting_because };
    plan();
    const { items } = await read(`/api/v1/tasks/${taskId}/runs?state=ready,delayed&limit=200`);
    for (const told of items) {
      const run = runs.get(told.id);
      if (run?.state !== told.state || run.attempt !== told.attempt) continue;
      const next = { ...run, waiting: told.waiting, waiting_because: told.waiting_because };
      runs.set(run.id, next);
      groups.touch(next);
    }
    plan();
  } catch {
    // The stream says whether the page is live; the next look is soon.
  }
}

function act(event) {
  const button = event.target.closest?.("button[data-cancel-run]");
  if (!button) return;
  window.htmx.ajax("POST", `/runs/${encodeURIComponent(button.dataset.cancelRun)}/cancel`, { source: button, swap: "none" });
}

document.addEventListener("click", act);
addEventListener("hashchange", route);
setInterval(look, LOOK_MS);
follow(`/api/v1/tasks/${taskId}/events?output=false`, null, {
  task(told, id) {
    if (fresh && id === "0" && whole === false) runs.clear();
    task = told;
    settled(id);
  },
  run(told, id) {
    runs.set(told.id, told);
    groups.touch(told);
    settled(id);
  },
  reset() {
    // A snapshot follows: what is on the page stays until it is whole.
    whole = false;
  },
});
