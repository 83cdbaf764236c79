// What befell one attempt, in the order of time: claimed, begun, its agent silent, asked to end, signals, the end.

import { RUN_FINAL, duration, el, outcomeWords, size, time } from "./view.js";
import { t, tn } from "./words.js";

const STEP = /^(SIG[A-Z0-9]+) to (\d+) processes$/;

// Outcomes of which the agent's own words say no more than the outcome does.
const SAID_WHOLLY = new Set(["timeout", "lost", "interrupted", "rebooted", "output_limit"]);

/** What came of an attempt, as a sentence. */
export function outcomeSentence(attempt, task) {
  const after = duration(attempt.duration);
  if (attempt.outcome === null) {
    if (attempt.state === "running") {
      const silent = (attempt.silences ?? []).some(({ until }) => !until);
      return silent ? t("The script was running when its agent fell silent.") : t("The script runs.");
    }
    if (attempt.state === "leased") return t("Its agent has claimed it and is about to begin.");
    if (attempt.state === "cancelled") return t("Cancelled before it began.");
    if (attempt.state === "skipped") return t("Skipped: the stop rule fired before it began.");
    if (attempt.state === "expired") return t("Expired: no agent took it in time.");
    return t("It has not begun.");
  }
  const said = {
    exit: () => t("The script ended with exit code %(code)s after %(after)s.", { code: attempt.exit_code, after }),
    signal: () => t("The script was ended by %(signal)s after %(after)s.", { signal: attempt.signal, after }),
    timeout: () => t("The script ran longer than its timeout of %(limit)s and was ended.", { limit: duration(task.timeout) }),
    spawn_error: () => t("The script could not be started."),
    lost: () => t("The agent fell silent while the script ran; whether it ended is not known."),
    interrupted: () => t("The script was interrupted: its agent or host was shut down."),
    rebooted: () => t("The host was restarted while the script ran."),
    output_limit: () => t("The script wrote too much output and was ended."),
    refused: () => t("The agent refused to run it."),
  }[attempt.outcome]?.() ?? outcomeWords(attempt);
  return SAID_WHOLLY.has(attempt.outcome) || !attempt.detail ? said : `${said} ${attempt.detail}`;
}

function stepWords(text) {
  const found = STEP.exec(text);
  if (!found) return text;
  return tn("%(signal)s to %(n)s process", "%(signal)s to %(n)s processes", Number(found[2]), { signal: found[1] });
}

function entries(attempt) {
  const found = [];
  const add = (at, words, kind = "") => at && found.push({ at, words, kind, place: found.length });
  add(attempt.claimed_at, t("Claimed by its agent"));
  add(attempt.started_at, t("Begun"));
  for (const { since, until } of attempt.silences ?? []) {
    add(since, until ? t("Agent silent") : t("Agent silent since then"), "warn");
    if (attempt.outcome !== "lost" || until !== attempt.ended_at) add(until, t("Agent heard again"));
  }
  if (attempt.cancel_requested_at) {
    const by = attempt.cancel_reason === "stop_rule" ? t("The stop rule asked it to end") : t("Asked to end");
    add(attempt.cancel_requested_at, by, "warn");
  }
  for (const step of attempt.steps ?? []) add(step.at, stepWords(step.text), "bad");
  found.sort((a, b) => Date.parse(a.at) - Date.parse(b.at) || a.place - b.place);
  if (attempt.ended_at) {
    const ok = attempt.state === "succeeded";
    const words = attempt.outcome === null ? t("Ended before it began") : t("Ended: %(how)s", { how: outcomeWords(attempt) });
    found.push({ at: attempt.ended_at, words, kind: ok ? "good" : "bad" });
  }
  return found;
}

function remarks(attempt) {
  const found = [];
  for (const { pid, command } of attempt.leftovers ?? []) {
    found.push(el("li", { class: "warn" }, t("Left running: process %(pid)s", { pid }), " ", el("code", {}, command)));
  }
  const dropped = (attempt.output_gaps ?? []).reduce((sum, [, length]) => sum + length, 0);
  if (dropped) found.push(el("li", { class: "warn" }, t("%(size)s from the middle of the output were not kept.", { size: size(dropped) })));
  if (attempt.late) found.push(el("li", { class: "warn" }, t("Told after the run had gone on without it: it changed nothing.")));
  return found;
}

/** The timeline as a list, and whether there is more in it than a beginning and an end. */
export function timeline(attempt, run) {
  const found = entries(attempt);
  let before = null;
  const items = found.map(({ at, words, kind }) => {
    const passed = before === null ? null : (Date.parse(at) - before) / 1000;
    before = Date.parse(at);
    const more = passed !== null && passed >= 0 ? el("small", { class: "number" }, `+${duration(passed)}`) : null;
    return el("li", { class: kind }, el("span", { class: "at number" }, time(at, "clock")), el("span", { class: "wrap" }, words), more);
  });
  const under = found.length && !attempt.ended_at && !RUN_FINAL.has(run.state) && attempt.started_at;
  if (under) items.push(el("li", { class: "busy" }, el("span", { class: "at" }), el("span", {}, t("Has run for"), " ", time(attempt.started_at, "since"))));
  const told = remarks(attempt);
  const notable = found.some(({ kind }) => kind === "warn") || (attempt.steps ?? []).length > 0 || told.length > 0;
  return { list: el("ol", { class: "timeline" }, ...items, ...told), notable };
}
