// What the master says, in the page's language: sentences for the codes of verdicts and reasons. As webserver/said.py.

import { stateWord } from "./view.js";
import { language, t, tn } from "./words.js";

const WAITING = {
  could_begin: () => t("may begin now"),
  may: () => t("may begin now; its agent has not asked yet"),
  task_final: (a) => t("the task has ended (%(state)s)", { state: stateWord(a.state) }),
  cancelled: () => t("the task is being cancelled"),
  stopped: () => t("the stop rule has stopped the task"),
  task_paused: () => t("the task is paused"),
  window_full: (a) =>
    tn("%(n)s run is under way and no more are allowed at once", "%(n)s runs are under way and no more are allowed at once", a.held),
  agent_offline: (a) => t("%(agent)s is offline", a),
  agent_draining: (a) => t("%(agent)s is draining and takes nothing new", a),
  agent_conflict: (a) => t("two daemons use the identity of %(agent)s: stop one of them", a),
  agent_busy: (a) => t("%(agent)s is busy: %(held)s of %(slots)s slots are held", a),
  queue_not_served: (a) => t("%(agent)s does not serve the queue %(queue)s", a),
  agent_gone: () => t("its agent is no longer enrolled"),
  no_candidate: (a) => t("no agent serves the queue %(queue)s", a),
  no_candidate_online: (a) => t("none of the %(candidates)s agents that may take it is online", a),
  delayed: () => t("it is not due yet"),
  leased_not_begun: () => t("an agent has claimed it and not begun yet"),
  agent_silent: () => t("it has begun, and its agent has gone silent"),
  cancelling: () => t("it has begun and is being ended"),
  running: () => t("it has begun"),
  final: (a) => t("it has ended (%(state)s)", { state: stateWord(a.state) }),
  more: (a) => tn("and %(n)s more", "and %(n)s more", a.number),
};

/** Why a run does not begin now; `text` is what to say for an unknown code. */
export function verdict(code, args, text = "") {
  return WAITING[code]?.(args) ?? (text || code);
}

/** Why a task or run waits, in one sentence; `text` is the master's own, for codes that are not known here. */
export function waiting(verdicts, text = "") {
  if (!verdicts?.length || verdicts.some((each) => !(each.code in WAITING))) return text ?? "";
  return verdicts.map((each) => verdict(each.code, each.args)).join(t("; "));
}

/** Why a task stopped or was cancelled. */
export function reason(said) {
  if (!said) return "";
  const a = said.args ?? {};
  if (said.code === "fail_count" && "failed" in a)
    return t("Stopped: %(failed)s of %(total)s runs failed; its rule stops it at %(limit)s.", a);
  if (said.code === "fail_rate" && "failed" in a) {
    const share = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 }).format(a.limit);
    return t("Stopped: %(failed)s of %(total)s runs failed, more than %(share)s.", { ...a, share });
  }
  if (said.code === "cancelled") return a.by ? t("Cancelled by %(by)s.", a) : t("Cancelled.");
  if (said.code === "retry_failed" || said.code === "retry_all") return t("Its runs are being reopened.");
  return said.detail || said.code;
}
