// Rows of tasks, as templates/task_rows.html makes them: filled from a task as the API tells it.

import { reason, waiting } from "./said.js";
import { TASK_FINAL, duration, setBadge, setProgress, setText, setTimeWords, shownState } from "./view.js";
import { t, tn } from "./words.js";

const find = (row, name) => row.querySelector(`[data-f="${name}"]`);

/** How far a task is, in words: `3 of 12`, `12 hosts`, `2 failed`. */
function shareWords(task) {
  const counts = task.counts;
  const sum = (...states) => states.reduce((n, state) => n + (counts[state] ?? 0), 0);
  const over = sum("succeeded", "failed", "cancelled", "skipped", "expired");
  const said = [over === task.total ? tn("%(n)s run", "%(n)s runs", task.total) : t("%(over)s of %(total)s", { over, total: task.total })];
  if (counts.failed) said.push(tn("%(n)s failed", "%(n)s failed", counts.failed));
  return said.join(" · ");
}

/** Show `task` in `row`. */
export function fillTask(row, task) {
  row.dataset.id = task.id;
  row.dataset.state = task.state;
  row.dataset.created = String(Date.parse(task.created_at));
  setBadge(find(row, "state"), shownState(task));
  const name = find(row, "name");
  name.href = `/tasks/${encodeURIComponent(task.id)}`;
  setText(name, task.name);
  name.title = name.textContent;
  setText(find(row, "because"), task.reason ? reason(task.reason) : waiting(task.waiting, task.waiting_because));
  setProgress(find(row, "progress"), task.counts, task.total);
  setText(find(row, "share"), shareWords(task));
  const when = task.ended_at ? t("ended %(time)s") : task.started_at ? t("started %(time)s") : t("submitted %(time)s");
  setTimeWords(find(row, "when"), when, task.ended_at ?? task.started_at ?? task.created_at);
  const took = task.started_at && task.ended_at ? (Date.parse(task.ended_at) - Date.parse(task.started_at)) / 1000 : null;
  setText(find(row, "took"), took === null ? "" : t("took %(time)s", { time: duration(took) }));
  setText(find(row, "by"), task.submitted_by);
}

/** A new row for `task`. */
export function newRow(task) {
  const row = document.getElementById("task-row").content.firstElementChild.cloneNode(true);
  fillTask(row, task);
  return row;
}

/** The row of the task with this id below `root`, if it is there. */
export function rowOf(root, id) {
  return root.querySelector(`li[data-id="${CSS.escape(id)}"]`);
}

/** Draw many changes of one moment once: `draw(latest objects by id)` in the next frame. */
export function batched(draw) {
  let pending = new Map();
  return (object) => {
    if (pending.size === 0) requestAnimationFrame(() => {
      const now = pending;
      pending = new Map();
      draw(now);
    });
    pending.set(object.id, object);
  };
}

export const isOver = (task) => TASK_FINAL.has(task.state);
