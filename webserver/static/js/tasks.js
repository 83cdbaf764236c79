// The list of tasks, live: rows change where they are; a new task comes on top where the filter lets it.

import { follow } from "./live.js";
import { batched, fillTask, newRow, rowOf } from "./task_rows.js";
import { tn } from "./words.js";

const filters = document.getElementById("filters");
let unseen = new Set();

const list = () => document.getElementById("list");

function fits(task) {
  const { states, names } = list().dataset;
  return (!states || states.split(",").includes(task.state)) && (!names || task.name.toLowerCase().includes(names.toLowerCase()));
}

function offerFresh() {
  const place = list().querySelector("#fresh");
  place.hidden = unseen.size === 0;
  place.firstElementChild.textContent = tn("%(n)s new task", "%(n)s new tasks", unseen.size);
}

function draw(tasks) {
  const rows = list().querySelector("[data-list]");
  const limit = Number(rows.dataset.limit);
  for (const task of tasks.values()) {
    const row = rowOf(rows, task.id);
    if (row) {
      fillTask(row, task);
      continue;
    }
    if (!fits(task)) continue;
    const created = Date.parse(task.created_at);
    const behind = [...rows.children].find((each) => Number(each.dataset.created) < created);
    if (!behind && rows.children.length >= limit) continue; // on a later page
    if (list().dataset.live !== "true") {
      if (behind !== rows.firstElementChild) continue;
      unseen.add(task.id);
      offerFresh();
      continue;
    }
    const made = newRow(task);
    made.classList.add("fresh");
    rows.insertBefore(made, behind ?? null);
    list().querySelector("#none")?.remove();
    while (rows.children.length > limit) rows.lastElementChild.remove();
  }
}

filters.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-state]");
  if (!button) return;
  // One hidden field carries the state, so that typing in another field keeps it.
  event.preventDefault();
  filters.querySelector("input[name=state]").value = button.dataset.state;
  for (const each of filters.querySelectorAll("button[data-state]")) each.setAttribute("aria-pressed", String(each === button));
  filters.dispatchEvent(new Event("input", { bubbles: true }));
});
document.addEventListener("htmx:after:swap", () => {
  unseen = new Set();
});
follow("/api/v1/events?runs=false", list().dataset.after, { task: batched(draw) });
