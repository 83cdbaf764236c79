// One run in detail beside the hosts: what came of it, its attempts with their timeline, why it waits, and its output.

import { openLog } from "./log/log.js";
import { notice } from "./notices.js";
import { plain } from "./plain.js";
import { verdict } from "./said.js";
import { outcomeSentence, timeline } from "./task_timeline.js";
import { RUN_FINAL, badge, el, icon, setBadge, setText, time } from "./view.js";
import { number, t } from "./words.js";

const logged = (run) => ({ id: run.id, attempt: run.attempt, name: run.agent?.name ?? t("any agent"), state: run.state });
const download = (runId, attempt) => `/api/v1/runs/${encodeURIComponent(runId)}/output${attempt ? `?attempt=${attempt}` : ""}`;

async function read(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

export class Panel {
  constructor({ place, split, task, runs, closed }) {
    Object.assign(this, { place, split, task, runs, closed });
    this.runId = null;
    this.all = false;
    this.log = null;
    this.attempt = null; // the chosen one; null: the newest
    this.attempts = [];
    this.asked = "";
    place.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && !event.target.closest("dialog, input")) this.leave();
    });
  }

  /** Show a run; `attempt`: the number of an older one; `line`: of its output, which the viewer finds by the address;
      `go`: bring it into view and the focus to it. */
  open(runId, { line = null, attempt = null, go = true } = {}) {
    if (this.runId === runId) return;
    this.clear();
    this.runId = runId;
    this.line = line;
    this.wanted = attempt;
    this.build(el("h2", { id: "panel-heading", tabindex: -1 }, el("span", { "data-f": "agent" })));
    this.show();
    this.draw();
    if (go) this.go();
  }

  /** Show the output of all runs together. */
  openAll() {
    if (this.all) return;
    this.clear();
    this.all = true;
    const over = [...this.runs.values()].every(({ state }) => RUN_FINAL.has(state));
    const order = el("small", { class: "muted" }, over ? t("by host") : t("as it arrives"));
    this.place.replaceChildren(this.head(el("h2", { id: "panel-heading", tabindex: -1 }, t("Merged output"), " ", order)), el("div", { "data-f": "log" }));
    this.show();
    this.go();
    this.log = openLog(this.place.querySelector('[data-f="log"]'), {
      runs: [...this.runs.values()].map(logged),
      path: `/api/v1/tasks/${this.task().id}/events`,
      title: t("Merged output"),
      downloadHref: download,
    });
  }

  close() {
    if (this.place.hidden) return;
    const from = this.runId;
    this.clear();
    this.place.hidden = true;
    this.split.classList.remove("beside");
    const back = from ? document.querySelector(`[data-run="${CSS.escape(from)}"] .open`) : document.getElementById("merged");
    back?.focus({ preventScroll: true });
  }

  leave() {
    this.closed();
    this.close();
  }

  clear() {
    this.log?.close();
    Object.assign(this, { log: null, runId: null, all: false, attempt: null, attempts: [], verdicts: null, wanted: null, drawn: null, asked: "", told: "" });
    this.place.replaceChildren();
  }

  show() {
    this.place.hidden = false;
    this.split.classList.add("beside");
  }

  /** Bring it into view (where it is below the hosts, with its head at the top), and the focus to its heading. */
  go() {
    const beside = this.place.offsetTop <= this.split.firstElementChild.offsetTop;
    this.place.querySelector("#panel-heading").focus({ preventScroll: true });
    this.place.scrollIntoView({ block: beside ? "nearest" : "start" });
  }

  head(heading) {
    const shut = el("button", { type: "button", class: "quiet", title: t("Close") }, icon("x"), el("span", { class: "unseen" }, t("Close")));
    shut.addEventListener("click", () => this.leave());
    return el("header", {}, heading, shut);
  }

  build(heading) {
    const head = this.head(heading);
    const cancel = el("button", { type: "button", class: "danger small", "data-cancel-run": this.runId, "data-agree": t("Cancel the run") }, t("Cancel run"));
    head.insertBefore(cancel, head.lastElementChild);
    head.insertBefore(badge(this.runs.get(this.runId).state), cancel);
    this.place.replaceChildren(
      head,
      el("p", { class: "sentence", "data-f": "sentence", role: "status" }),
      el("p", { class: "alert plain", "data-f": "waits", hidden: true }),
      el("div", { class: "group", role: "group", "aria-label": t("Attempt"), "data-f": "attempts", hidden: true }),
      el("details", { class: "course" }, el("summary", {}, t("Timeline")), el("div", { "data-f": "timeline" })),
      el("div", { "data-f": "log" }),
    );
  }

  /** Bring what is shown up to date. */
  draw() {
    const run = this.runId && this.runs.get(this.runId);
    if (!run || run === this.drawn) return;
    this.drawn = run;
    setBadge(this.place.querySelector("header .badge"), run.state);
    const name = this.place.querySelector('[data-f="agent"]');
    const agent = run.agent?.name ?? t("any agent");
    if (name.textContent !== plain(agent)) {
      name.replaceChildren(run.agent ? el("a", { href: `/agents/${encodeURIComponent(run.agent.id)}` }, agent) : agent);
    }
    const cancel = this.place.querySelector("header [data-cancel-run]");
    cancel.hidden = RUN_FINAL.has(run.state);
    cancel.dataset.confirm = run.state === "running" ? t("End this script? It gets TERM, and KILL if it does not end.") : t("Cancel this run? It has not begun and never will.");
    this.drawWaits(run);
    this.drawAttempt(run);
    if (!this.log && run.started_at && this.wanted === null) this.openOutput();
    // What the stream does not tell (steps, silences) is asked for when the run has changed in a way that makes it new.
    const asked = [run.id, run.state, run.attempt, run.silent_since, run.late].join(" ");
    if (asked !== this.asked) {
      this.asked = asked;
      this.ask(run, asked);
    }
  }

  async ask(run, asked) {
    const waits = !run.started_at && !RUN_FINAL.has(run.state);
    try {
      const [attempts, why] = await Promise.all([
        read(`/api/v1/runs/${run.id}/attempts`),
        waits ? read(`/api/v1/runs/${run.id}/why`) : null,
      ]);
      if (this.asked !== asked) return;
      const newest = this.attempts.at(-1)?.attempt;
      this.attempts = attempts.items;
      this.verdicts = why?.verdicts ?? null;
      const now = this.runs.get(run.id) ?? run;
      const wanted = this.wanted === null ? -1 : this.attempts.findIndex(({ attempt }) => attempt === this.wanted);
      this.wanted = null;
      if (wanted >= 0 && wanted < this.attempts.length - 1) {
        this.choose(wanted, this.line);
        return;
      }
      this.drawWaits(now);
      this.drawAttempt(now);
      const newer = newest !== undefined && this.attempt === null && this.attempts.at(-1)?.attempt !== newest;
      if (!this.log || newer) this.openOutput();
    } catch {
      if (this.asked === asked) notice(t("The attempts of this run cannot be read at the moment."));
    }
  }

  drawWaits(run) {
    const place = this.place.querySelector('[data-f="waits"]');
    const reasons = RUN_FINAL.has(run.state) || run.started_at ? [] : this.verdicts ?? run.waiting ?? [];
    place.hidden = !reasons.length;
    if (reasons.length) {
      const said = reasons.map((each) => {
        const words = verdict(each.code, each.args, each.text);
        return el("span", {}, words, each.since ? el("small", {}, " ", time(each.since)) : null);
      });
      place.replaceChildren(icon("hourglass"), el("span", { class: "why" }, el("strong", {}, t("Waits:")), ...said));
    }
  }

  /** The attempt that is looked at; the run itself, while its attempts are not known or the next one has not begun. */
  looked(run) {
    const newest = run.started_at ? this.attempts.at(-1) : null;
    const found = this.attempt === null ? newest : this.attempts[this.attempt];
    return found ?? { ...run, steps: [], silences: [] };
  }

  drawAttempt(run) {
    const attempt = this.looked(run);
    setText(this.place, outcomeSentence(attempt, this.task()), '[data-f="sentence"]');
    const slot = this.place.querySelector('[data-f="timeline"]');
    const course = slot.closest("details");
    const { list, notable } = timeline(attempt, run);
    slot.replaceChildren(list);
    course.hidden = !list.children.length;
    if (notable && !this.told) course.open = true;
    this.told = notable ? "told" : this.told;
    this.drawChoice(run);
  }

  drawChoice(run) {
    const slot = this.place.querySelector('[data-f="attempts"]');
    slot.hidden = this.attempts.length < (run.started_at ? 2 : 1);
    const chosen = this.attempt ?? (run.started_at ? this.attempts.length - 1 : -1);
    while (slot.children.length > this.attempts.length) slot.lastElementChild.remove();
    this.attempts.forEach((attempt, n) => {
      if (!slot.children[n]) {
        const made = el("button", { type: "button" });
        made.addEventListener("click", () => this.choose(n));
        slot.append(made);
      }
      const words = { n: number(attempt.attempt) };
      setText(slot.children[n], attempt.late ? t("Attempt %(n)s, told late", words) : t("Attempt %(n)s", words));
      slot.children[n].setAttribute("aria-pressed", String(n === chosen));
    });
  }

  choose(n, line = null) {
    const run = this.runs.get(this.runId);
    this.attempt = n === this.attempts.length - 1 && run.started_at ? null : n;
    this.line = line;
    this.drawAttempt(run);
    this.openOutput();
  }

  /** Show the output of the attempt looked at; what has not begun has none. */
  openOutput() {
    this.log?.close();
    this.log = null;
    const run = this.runs.get(this.runId);
    if (this.attempt === null && !run.started_at) return;
    const attempt = this.attempt === null ? null : this.attempts[this.attempt].attempt;
    this.log = openLog(this.place.querySelector('[data-f="log"]'), {
      runs: [logged(run)],
      path: `/api/v1/runs/${run.id}/events`,
      attempt,
      title: run.agent?.name ?? t("any agent"),
      downloadHref: download,
      line: this.line,
    });
    this.line = null;
  }
}
