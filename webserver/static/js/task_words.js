// What the page of a task says about waiting and trying again; webserver/pages/task.py says the same.

import { waiting } from "./said.js";
import { stateWord } from "./view.js";
import { number, t, tn } from "./words.js";

// What a run waits for that is claimed already or may be: for a task that says nothing.
const SOON = new Set(["leased_not_begun", "may", "could_begin"]);
const OF_AGENT = new Set(["agent_draining", "agent_offline", "agent_conflict", "agent_busy"]);

/** Why runs of the task wait, but for those that are soon to begin or have only their turn to wait for. */
function reasons(task) {
  return (task.waiting ?? []).filter(({ code }) => !SOON.has(code) && code !== "window_full");
}

function waitingHead(task, counts) {
  const n = (counts.ready ?? 0) + (counts.delayed ?? 0);
  if (!n) return t("Waits:");
  const idle = task.state === "running" && !counts.running && !counts.leased;
  if (idle) return tn("Nothing runs now; %(n)s run waits:", "Nothing runs now; %(n)s runs wait:", n);
  return tn("%(n)s run waits:", "%(n)s runs wait:", n);
}

function atAgent({ code, args }) {
  const words = code === "agent_draining" ? t("Resume %(agent)s on its page", args) : t("Look at %(agent)s", args);
  return { path: `/agents/${encodeURIComponent(args.agent)}`, words };
}

/** How many runs wait, why, and the agents it depends on with what to do there; null when nothing needs a word. */
export function waits(task, counts) {
  const told = reasons(task);
  if (!told.length) return null;
  return {
    head: waitingHead(task, counts),
    text: waiting(told, task.waiting_because),
    agents: told.filter(({ code }) => OF_AGENT.has(code)).map(atAgent),
  };
}

/** Whether it depends on agents that runs wait. */
export const waitsForAgents = (task) => reasons(task).some(({ code }) => code.startsWith("agent_") || code.startsWith("no_candidate") || code === "more");

/** That runs wait for their turn, as the task wants it; nothing when they wait for something else. */
export function turn(task, counts) {
  const n = counts.ready ?? 0;
  if (!task.parallel || !n || task.paused || reasons(task).length) return "";
  const parallel = number(task.parallel);
  return tn("%(parallel)s at a time; %(n)s more waits for its turn", "%(parallel)s at a time; %(n)s more wait for their turn", n, { parallel });
}

/** What the button says that runs again whatever did not succeed: how many failed, and which others there are. */
export function retryWords(task, counts) {
  const failed = counts.failed ?? 0;
  if (!failed) return { word: t("Run the remaining %(number)s", { number: number(task.total - (counts.succeeded ?? 0)) }), count: 0, also: "" };
  const others = ["cancelled", "skipped", "expired"].filter((state) => counts[state]).map((state) => `${number(counts[state])} ${stateWord(state)}`);
  return { word: t("Retry failed"), count: failed, also: others.length ? t("and %(what)s", { what: others.join(", ") }) : "" };
}

/** Why a run has ended without having begun; nothing for others. */
export function neverBegun(run) {
  if (run.outcome !== null) return "";
  switch (run.state) {
    case "skipped": return t("never began: the stop rule fired");
    case "expired": return t("never began: no agent took it in time");
    case "cancelled": return t("never began: it was cancelled before");
    default: return "";
  }
}
