// One run as a row of its group.

import { plain } from "./plain.js";
import { verdict } from "./said.js";
import { RUN_FINAL, badge, duration, el, icon, outcomeWords, setBadge, setText, size, time } from "./view.js";
import { neverBegun } from "./task_words.js";
import { t } from "./words.js";

const blanks = new Map(); // by state: a row like it costs a third of one made anew

/** A new row; `drawRow` fills it. What is pressed in it is for whoever holds the rows. */
export function makeRow(run) {
  const blank = blanks.get(run.state) ?? blanks.set(run.state, blankRow(run.state)).get(run.state);
  const row = blank.cloneNode(true);
  row.dataset.run = run.id;
  row.querySelector(".open").setAttribute("href", `#run=${run.id}`);
  row.querySelector("button").dataset.cancelRun = run.id;
  return row;
}

function blankRow(state) {
  const row = el("li", { class: "run" });
  const output = el("a", { class: "secondary small open", role: "button" }, el("span", { "data-f": "open" }), el("span", { class: "unseen", "data-f": "of" }));
  const cancel = el("button", { type: "button", class: "quiet", title: t("Cancel this run") }, icon("x"), el("span", { class: "unseen" }, t("Cancel this run")));
  const at = el("a", { class: "to-agent", hidden: true }, icon("server"), el("span", { class: "unseen" }));
  row.append(
    el("span", { class: "agent" }, el("span", { class: "clip", "data-f": "agent" }), at),
    el("span", { class: "state" }, badge(state)),
    el("span", { class: "meta" },
      el("span", { class: "what muted", "data-f": "what" }),
      el("span", { class: "try muted number", "data-f": "try" }),
      el("span", { class: "number right", "data-f": "took" }),
      el("span", { class: "number right muted", "data-f": "size" }),
    ),
    el("span", { class: "do" }, cancel, output),
  );
  return row;
}

function said(run, paused) {
  if (run.silent_since) return t("its agent is silent");
  if (RUN_FINAL.has(run.state)) return neverBegun(run) || outcomeWords(run);
  // Pausing changes no run: what it waited for before is not what it waits for now.
  if (paused && run.state === "ready") return t("the task is paused");
  const [first] = run.waiting ?? [];
  if (!first || (!paused && first.code === "task_paused")) return "";
  return first.code === "window_full" ? t("waits for its turn") : verdict(first.code, first.args, run.waiting_because);
}

function drawAgent(row, run) {
  const slot = row.querySelector('[data-f="agent"]');
  const name = plain(run.agent?.name ?? t("any agent"));
  const mark = (run.agent?.id ?? "") + name;
  if (slot.dataset.agent === mark) return;
  slot.dataset.agent = mark;
  slot.textContent = slot.title = name;
  const at = row.querySelector(".to-agent");
  at.hidden = !run.agent;
  if (!run.agent) return;
  at.href = `/agents/${encodeURIComponent(run.agent.id)}`;
  at.title = at.lastElementChild.textContent = t("Agent %(agent)s", { agent: name });
}

/** Show how long it took, or a counter while it runs. */
function drawTook(slot, run) {
  if (run.duration !== null || !run.started_at || RUN_FINAL.has(run.state)) setText(slot, duration(run.duration));
  else if (slot.querySelector("time")?.getAttribute("datetime") !== run.started_at) slot.replaceChildren(time(run.started_at, "since"));
}

/** Show `run` in its row; `chosen`: it is the one that is open; `paused`: its task is. */
export function drawRow(row, run, { chosen, paused }) {
  row.classList.toggle("chosen", chosen);
  if (row.shown === run && row.paused === paused) return;
  row.shown = run;
  row.paused = paused;
  drawAgent(row, run);
  setBadge(row.querySelector(".badge"), run.state);
  setText(row, run.started_at ? t("Output") : t("Details"), '[data-f="open"]');
  setText(row, ` ${run.agent?.name ?? ""}`, '[data-f="of"]');
  setText(row, said(run, paused), '[data-f="what"]');
  setText(row, run.attempt > 1 ? t("attempt %(n)s", { n: run.attempt }) : "", '[data-f="try"]');
  drawTook(row.querySelector('[data-f="took"]'), run);
  setText(row, run.output_bytes ? size(run.output_bytes) : "", '[data-f="size"]');
  row.querySelector("button").hidden = RUN_FINAL.has(run.state);
  row.querySelector("button").dataset.confirm = run.state === "running"
    ? t("End this script on %(agent)s? It gets TERM, and KILL if it does not end.", { agent: plain(run.agent?.name) })
    : t("Cancel this run? It has not begun and never will.");
}
