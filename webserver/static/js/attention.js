// What needs a person: items as templates/home.html makes them.

import { icon, setText, setTime } from "./view.js";
import { t, tn } from "./words.js";

const ICONS = {
  agent_conflict: "triangle-alert", task_stopped: "ban", task_failed: "circle-x", agent_offline: "wifi-off", task_paused: "circle-pause",
};

function words(code, args) {
  switch (code) {
    case "agent_conflict": return t("two daemons use its identity: stop one of them, or enrol one anew");
    case "task_stopped": return t("stopped by its rule: %(failed)s of %(total)s runs failed", args);
    case "task_failed": return t("%(failed)s of %(total)s runs failed", args);
    case "agent_offline": return t("offline");
    case "task_paused": return tn("paused, with %(n)s run ready", "paused, with %(n)s runs ready", args.ready);
    default: return code;
  }
}

/** What about this task needs a person: {code, at, args}, or null. */
export function ofTask(task) {
  const args = { failed: task.counts.failed ?? 0, total: task.total, ready: task.counts.ready ?? 0 };
  if (task.reason?.code === "fail_count" || task.reason?.code === "fail_rate") return { code: "task_stopped", at: task.ended_at, args };
  if (task.state === "failed") return { code: "task_failed", at: task.ended_at, args };
  if (task.paused && !task.ended_at && args.ready) return { code: "task_paused", at: null, args };
  return null;
}

/** What about this agent needs a person. */
export function ofAgent(agent) {
  if (agent.state === "conflict") return { code: "agent_conflict", at: agent.last_seen_at, args: {} };
  if (agent.state === "offline") return { code: "agent_offline", at: agent.last_seen_at, args: {} };
  return null;
}

// What the server says more fully of an agent that is offline.
const OFFLINE = new Set(["agent_offline", "run_silent"]);

/** Put `item` of the thing at `path` into the list, or take it out (null). Keeps a server's fuller words. */
export function show(list, kind, id, name, path, item) {
  // An item about an agent may name a task, too.
  const there = [...list.children].find((each) => each.dataset[kind] === id && (kind === "agent" || !each.dataset.agent));
  if (item?.code === "agent_offline" && OFFLINE.has(there?.dataset.code)) return;
  there?.remove();
  if (!item) return;
  const made = document.getElementById("attention-item").content.firstElementChild.cloneNode(true);
  made.dataset.code = item.code;
  made.dataset.task = kind === "task" ? id : "";
  made.dataset.agent = kind === "agent" ? id : "";
  made.querySelector("svg").replaceWith(icon(ICONS[item.code]));
  const link = made.querySelector(".name");
  link.href = path;
  setText(link, name);
  link.title = link.textContent;
  setText(made.querySelector("small"), words(item.code, item.args));
  setTime(made.querySelector(".when"), item.at);
  list.prepend(made);
}
