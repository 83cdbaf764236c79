// One run as a row of its group.

import { plain } from "./plain.js";
import { verdict } from "./said.js";
import { RUN_FINAL, badge, duration, el, icon, outcomeWords, setBadge, setText, size, time } from "./view.js";
import { number, t } from "./words.js";

/** A new row; `drawRow` fills it. */
export function makeRow(run) {
  const row = el("li", { class: "run", "data-run": run.id });
  const output = el("a", { class: "small open", role: "button", href: `#run=${run.id}` }, el("span", { "data-f": "open" }), el("span", { class: "unseen", "data-f": "of" }));
  const cancel = el("button", { type: "button", class: "quiet", "data-cancel-run": run.id, title: t("Cancel this run") }, icon("x"), el("span", { class: "unseen" }, t("Cancel this run")));
  output.classList.add("secondary");
  row.append(
    el("span", { class: "agent clip", "data-f": "agent" }),
    el("span", { class: "state" }, badge(run.state)),
    el("span", { class: "meta" },
      el("span", { class: "what muted", "data-f": "what" }),
      el("span", { class: "try muted number", "data-f": "try" }),
      el("span", { class: "number right", "data-f": "took" }),
      el("span", { class: "number right muted", "data-f": "size" }),
    ),
    el("span", { class: "do" }, cancel, output),
  );
  row.addEventListener("click", (event) => {
    if (!event.target.closest("a, button") && !getSelection().toString()) location.hash = `run=${run.id}`;
  });
  return row;
}

function said(run) {
  if (run.silent_since) return t("its agent is silent");
  if (!RUN_FINAL.has(run.state)) return run.waiting?.length ? verdict(run.waiting[0].code, run.waiting[0].args, run.waiting_because) : "";
  return outcomeWords(run);
}

function drawAgent(slot, run) {
  const name = run.agent?.name ?? t("any agent");
  if (slot.dataset.agent === (run.agent?.id ?? "") + name) return;
  slot.dataset.agent = (run.agent?.id ?? "") + name;
  slot.replaceChildren(run.agent ? el("a", { href: `/agents/${encodeURIComponent(run.agent.id)}` }, name) : name);
  slot.title = plain(name);
}

/** How long an attempt took; scripts that do little take milliseconds. */
export function tookWords(seconds) {
  if (seconds === null || seconds === undefined) return "";
  return seconds < 0.1 ? t("%(n)s ms", { n: number(Math.max(1, Math.round(1000 * seconds))) }) : duration(seconds);
}

/** Show how long it took, or a counter while it runs. */
function drawTook(slot, run) {
  if (run.duration !== null || !run.started_at || RUN_FINAL.has(run.state)) setText(slot, tookWords(run.duration));
  else if (slot.querySelector("time")?.getAttribute("datetime") !== run.started_at) slot.replaceChildren(time(run.started_at, "since"));
}

/** Show `run` in its row. */
export function drawRow(row, run, chosen) {
  row.classList.toggle("chosen", chosen);
  if (row.shown === run) return;
  row.shown = run;
  drawAgent(row.querySelector('[data-f="agent"]'), run);
  setBadge(row.querySelector(".badge"), run.state);
  setText(row, run.started_at ? t("Output") : t("Details"), '[data-f="open"]');
  setText(row, ` ${run.agent?.name ?? ""}`, '[data-f="of"]');
  setText(row, said(run), '[data-f="what"]');
  setText(row, run.attempt > 1 ? t("attempt %(n)s", { n: run.attempt }) : "", '[data-f="try"]');
  drawTook(row.querySelector('[data-f="took"]'), run);
  setText(row, run.output_bytes ? size(run.output_bytes) : "", '[data-f="size"]');
  row.querySelector("button").hidden = RUN_FINAL.has(run.state);
  row.querySelector("button").dataset.confirm = run.state === "running"
    ? t("End this script on %(agent)s? It gets TERM, and KILL if it does not end.", { agent: plain(run.agent?.name) })
    : t("Cancel this run? It has not begun and never will.");
}
