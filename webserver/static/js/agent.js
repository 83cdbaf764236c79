// The page of one agent, live: its head follows the agent's events, its runs are asked for anew, every 3 s at
// most, when a task changes that has or may have runs here; charts and facts now and then.

import { chart } from "./chart.js";
import { follow } from "./live.js";
import { batched, isOver } from "./task_rows.js";
import { setBadge, setText, size } from "./view.js";
import { number, t } from "./words.js";

const LOAD_MS = 30000;
const RUNS_MS = 3000;
const AGAIN_MS = 30000;
const head = document.getElementById("agent");
const id = head.dataset.id;
let runsDue = 0;
let runsAt = 0;
const lookedFor = new Map();

const part = (name) => document.getElementById(name)?.dispatchEvent(new Event("muster:refresh"));

// -- load -----------------------------------------------------------------------------------------------------------

const place = document.getElementById("charts");
const total = Number(place.dataset.total);
const cpus = Number(place.dataset.cpus);
const figure = (name) => place.querySelector(`[data-chart="${name}"]`);
const charts = [
  chart(figure("cpu"), { column: 1, say: (v) => `${number(Math.round(v))}%`, most: () => 100 }),
  chart(figure("memory"), { column: 2, say: size, most: (largest) => Math.max(total, largest), steps: Array.from({ length: 50 }, (_, power) => 2 ** power) }),
  chart(figure("load"), { column: 3, say: (v) => number(Math.round(v * 100) / 100), most: (largest) => Math.max(cpus, 1.1 * largest) }),
];

async function load() {
  const answer = await fetch(`/api/v1/agents/${encodeURIComponent(id)}/samples`).catch(() => null);
  if (!answer?.ok) return; // the live mark says when the server is away
  const { points, interval_s: interval } = await answer.json();
  for (const each of charts) each.show(points, interval);
}

function loadForEver() {
  setTimeout(() => {
    if (!document.hidden) {
      load();
      part("facts");
    }
    loadForEver();
  }, LOAD_MS * (0.85 + Math.random() * 0.3));
}

// -- the agent ------------------------------------------------------------------------------------------------------

function show(shown, name) {
  const form = head.querySelector(`[data-act="${name}"]`);
  if (form) form.hidden = !shown;
}

function gone() {
  head.querySelector(".actions")?.remove();
  document.querySelectorAll(".second form button, .second form input").forEach((each) => each.setAttribute("disabled", ""));
  document.querySelectorAll("[data-when]").forEach((each) => each.setAttribute("hidden", ""));
  head.querySelector("h1 .badge")?.replaceWith(t("is forgotten"));
}

function fill(agent) {
  if (agent.forgotten) return gone();
  const { state } = agent;
  head.dataset.state = state;
  head.dataset.name = agent.name;
  setBadge(head.querySelector("[data-f=state]"), state);
  setText(head, agent.name, "[data-f=name]");
  setText(head, agent.hostname === agent.name ? "" : agent.hostname, "[data-f=hostname]");
  head.querySelector("[data-f=hostname]").parentElement.hidden = agent.hostname === agent.name;
  setText(head, `${agent.held}/${agent.slots}`, "[data-f=held]");
  if (state === "online" || state === "draining") {
    show(state === "online", "drain");
    show(state === "draining", "resume");
  }
  show(state === "offline", "forget");
  for (const each of document.querySelectorAll("[data-when]")) each.hidden = each.dataset.when !== state;
}

// -- its runs -------------------------------------------------------------------------------------------------------

function runsSoon() {
  if (runsDue) return;
  const wait = Math.max(0, runsAt + RUNS_MS - Date.now()) + 300 * Math.random();
  runsDue = setTimeout(() => {
    runsDue = 0;
    runsAt = Date.now();
    part("runs");
  }, wait);
}

/** Whether a task that is not listed may have a run here: this agent is among its targets, or it has begun somewhere. */
function mayBeHere(task) {
  const begun = Object.entries(task.counts).some(([state, n]) => n && state !== "ready" && state !== "delayed");
  const name = head.dataset.name;
  if (task.targets ? !task.targets.some((each) => each === name || id.startsWith(each)) : !begun) return false;
  return mayBeNew(task);
}

/** Whoever asked for a task's runs and did not find a new one asks again only later: one may still come here. */
function mayBeNew(task) {
  const now = Date.now();
  if (now - (lookedFor.get(task.id) ?? 0) < AGAIN_MS && task.state === "running") return false;
  for (const [taskId, at] of lookedFor) if (now - at > AGAIN_MS) lookedFor.delete(taskId);
  lookedFor.set(task.id, now);
  return true;
}

function noteTask(task) {
  const rows = [...document.querySelectorAll(`#runs [data-task="${CSS.escape(task.id)}"]`)];
  const open = rows.some((row) => !row.closest("[data-list=recent]"));
  if (open || (rows.length ? !isOver(task) && mayBeNew(task) : mayBeHere(task))) runsSoon();
}

follow("/api/v1/events?runs=false", head.dataset.after, {
  agent: batched((agents) => agents.has(id) && fill(agents.get(id))),
  task: batched((tasks) => tasks.forEach(noteTask)),
});
load();
loadForEver();
