// The head of a task's page: state, progress, what may be done with it, why it waits and why it stopped.

import { plain } from "./plain.js";
import { reason } from "./said.js";
import { retryWords, turn, waits } from "./task_words.js";
import { TASK_FINAL, duration, el, icon, setBadge, setProgress, setText, shownState, stateWord, time } from "./view.js";
import { number, t, tn } from "./words.js";

const ORDER = ["succeeded", "failed", "cancelled", "skipped", "expired", "running", "leased", "ready", "delayed"];
const NOT_BEGUN = ["delayed", "ready", "leased"];
const STOPPED = new Set(["fail_count", "fail_rate"]);
const REST_MS = 1000;

/** Show `task` in the head of the page; `counts`: its runs by state. */
export function drawHeader(root, task, counts) {
  document.title = `${stateWord(shownState(task))} · ${plain(task.name)} · muster`;
  setBadge(root.querySelector(".about .badge"), shownState(task));
  drawDuration(root.querySelector('[data-f="took"]'), task);
  setProgress(root.querySelector(".progress"), counts, task.total);
  drawLegend(root.querySelector("#legend"), counts);
  drawActions(root, task, counts);
  drawTold(root.querySelector("#told"), task, counts);
  const words = turn(task, counts);
  setText(root, words, "#turn");
  root.querySelector("#turn").hidden = !words;
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
    if (form.hidden && !hidden) rest(form.querySelector("button"));
    form.hidden = hidden;
  }
  // Not on the button that has come in its place: whoever presses once more did not mean that one.
  if (lost) root.querySelector("#heading").focus({ preventScroll: true });
  const retry = root.querySelector('[data-action="retry_failed"]');
  const words = retryWords(task, counts);
  setText(retry, words.word, '[data-f="word"]');
  setText(retry, number(words.count), '[data-f="failed"]');
  setText(retry, words.also, '[data-f="also"]');
  retry.querySelector('[data-f="failed"]').hidden = !words.count;
  retry.querySelector('[data-f="also"]').hidden = !words.also;
  root.querySelector('[data-action="cancel"] button').dataset.confirm = cancelQuestion(counts, Number(root.dataset.killGrace));
}

/** A button that has just come does nothing for a moment: a press may have been meant for the one before it. */
function rest(button) {
  button.setAttribute("aria-disabled", "true");
  clearTimeout(button.rested);
  button.rested = setTimeout(() => button.removeAttribute("aria-disabled"), REST_MS);
}

// Before the document's own listeners, which ask what is to be confirmed.
addEventListener("click", (event) => {
  if (!event.target.closest?.('#actions button[aria-disabled="true"]')) return;
  event.preventDefault();
  event.stopImmediatePropagation();
}, true);

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

function drawTold(place, task, counts) {
  const told = waits(task, counts);
  const mark = JSON.stringify([task.reason, told?.text, told?.agents]);
  if (told) setText(place, told.head, ".waits strong");
  if (place.dataset.mark === mark) return;
  place.dataset.mark = mark;
  const found = [];
  if (task.reason) {
    const { code, args, run_id: runId } = task.reason;
    const link = runId ? el("a", { href: `#run=${runId}` }, args.agent ?? t("the run at which it stopped")) : null;
    const kind = STOPPED.has(code) ? "alert" : "alert plain";
    found.push(el("div", { class: kind }, icon(STOPPED.has(code) ? "triangle-alert" : "info"), el("div", {}, reason(task.reason), link && " · ", link)));
  }
  if (told) {
    const links = told.agents.flatMap(({ path, words }) => [" · ", el("a", { href: path }, words)]);
    found.push(el("div", { class: "alert plain waits" }, icon("hourglass"), el("div", {}, el("strong", {}, told.head), ` ${told.text}`, ...links)));
  }
  place.replaceChildren(...found);
}
