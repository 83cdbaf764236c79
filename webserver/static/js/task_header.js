// The head of a task's page: state, progress, what may be done with it, why it waits and why it stopped.

import { plain } from "./plain.js";
import { reason, waiting } from "./said.js";
import { TASK_FINAL, duration, el, icon, setBadge, setProgress, setText, shownState, stateWord, time } from "./view.js";
import { number, t, tn } from "./words.js";

const ORDER = ["succeeded", "failed", "cancelled", "skipped", "expired", "running", "leased", "ready", "delayed"];
const NOT_BEGUN = ["delayed", "ready", "leased"];
const STOPPED = new Set(["fail_count", "fail_rate"]);

// What a run waits for that is claimed already: for a task that says nothing.
const SOON = new Set(["leased_not_begun", "may", "could_begin"]);

/** Show `task` in the head of the page; `counts`: its runs by state. */
export function drawHeader(root, task, counts) {
  document.title = `${stateWord(shownState(task))} · ${plain(task.name)} · muster`;
  setBadge(root.querySelector(".about .badge"), shownState(task));
  drawDuration(root.querySelector('[data-f="took"]'), task);
  setProgress(root.querySelector(".progress"), counts, task.total);
  drawLegend(root.querySelector("#legend"), counts);
  drawActions(root, task, counts);
  drawTold(root.querySelector("#told"), task);
}

function drawDuration(place, task) {
  place.hidden = !task.started_at;
  const slot = place.querySelector('[data-f="duration"]');
  if (!task.started_at) return;
  if (task.ended_at) setText(slot, duration((Date.parse(task.ended_at) - Date.parse(task.started_at)) / 1000));
  else if (slot.querySelector("time")?.getAttribute("datetime") !== task.started_at) slot.replaceChildren(time(task.started_at, "since"));
}

function drawLegend(place, counts) {
  const said = ORDER.filter((state) => counts[state]).map((state) => [state, number(counts[state])]);
  const mark = JSON.stringify(said);
  if (place.dataset.mark === mark) return;
  place.dataset.mark = mark;
  const whole = place.firstElementChild;
  place.replaceChildren(whole, ...said.map(([state, n]) => el("span", { class: `number s-${state}` }, el("i"), `${n} ${stateWord(state)}`)));
}

/** What may be done with the task now. */
function allowed(task) {
  const final = TASK_FINAL.has(task.state);
  return {
    retry_failed: final && task.state !== "succeeded",
    retry_all: final,
    resume: !final && task.paused,
    pause: !final && !task.paused,
    cancel: !final,
  };
}

function drawActions(root, task, counts) {
  const may = allowed(task);
  let lost = false;
  for (const form of root.querySelectorAll("form[data-action]")) {
    const hidden = !may[form.dataset.action];
    if (hidden && form.contains(document.activeElement)) lost = true;
    form.hidden = hidden;
  }
  // Whoever works by keyboard goes on where they were when the button they pressed has gone.
  if (lost) root.querySelector("form[data-action]:not([hidden]) button, #actions a").focus();
  setText(root, number(task.total - (counts.succeeded ?? 0)), '[data-f="unsuccessful"]');
  root.querySelector('[data-action="cancel"] button').dataset.confirm = cancelQuestion(counts, Number(root.dataset.killGrace));
}

/** What cancelling does now, in words. */
function cancelQuestion(counts, grace) {
  const idle = NOT_BEGUN.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
  const busy = counts.running ?? 0;
  const parts = [t("Cancel this task?")];
  if (idle) parts.push(tn("%(n)s run has not begun and never will.", "%(n)s runs have not begun and never will.", idle));
  if (busy) {
    parts.push(tn("%(n)s running script gets TERM, then KILL after %(grace)s s.", "%(n)s running scripts get TERM, then KILL after %(grace)s s.", busy, { grace: number(grace) }));
  }
  return parts.join(" ");
}

function drawTold(place, task) {
  const told = (task.waiting ?? []).filter(({ code }) => !SOON.has(code));
  const waits = told.length ? waiting(told, task.waiting_because) : "";
  const mark = JSON.stringify([task.reason, waits]);
  if (place.dataset.mark === mark) return;
  place.dataset.mark = mark;
  const found = [];
  if (task.reason) {
    const { code, args, run_id: runId } = task.reason;
    const link = runId ? el("a", { href: `#run=${runId}` }, args.agent ?? t("the run at which it stopped")) : null;
    const kind = STOPPED.has(code) ? "alert" : "alert plain";
    found.push(el("div", { class: kind }, icon(STOPPED.has(code) ? "triangle-alert" : "info"), el("div", {}, reason(task.reason), link && " · ", link)));
  }
  if (waits) {
    found.push(el("div", { class: "alert plain waits" }, icon("hourglass"), el("div", {}, el("strong", {}, t("Waits:")), ` ${waits}`)));
  }
  place.replaceChildren(...found);
}
