// The controls of the viewer and what is said around it: elements and their names, without any doings of their own.

import { badge, el, icon, outcomeWords, RUN_FINAL, setBadge, setText, size } from "../view.js";
import { number, t, tn } from "../words.js";

function button(name, iconName, title, more = {}) {
  const words = el("span", { class: "log-label" }, name);
  return el("button", { type: "button", class: "log-button", title, ...more }, iconName ? icon(iconName) : null, words);
}

function pressed(made, on) {
  made.setAttribute("aria-pressed", String(on));
}

function downloads(runs, attempt, href) {
  const link = (run, words) => el("a", { href: href(run.id, attempt ?? run.attempt), download: true }, words);
  if (runs.length === 1) {
    const made = link(runs[0], icon("download"));
    made.className = "log-button";
    made.title = t("The bytes exactly as written");
    made.append(el("span", { class: "log-label" }, t("Download raw")));
    return made;
  }
  const summary = el("summary", { class: "log-button" }, icon("download"), el("span", { class: "log-label" }, t("Download raw")));
  const list = el("ul", {}, ...runs.map((run) => el("li", {}, link(run, run.name))));
  const made = el("details", { class: "log-downloads" }, summary, list);
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !made.open) return;
    event.stopPropagation();
    made.open = false;
    summary.focus();
  });
  made.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !made.contains(event.relatedTarget)) made.open = false;
  });
  return made;
}

export class Bar {
  /** `streams`: whether it is known which pipe a line came from. */
  constructor({ runs, attempt, title, downloadHref, streams }) {
    this.runs = runs;
    this.states = new Map(); // run id -> run, as far as told
    this.heading = el("p", { class: "log-title" }, title);
    this.state = badge("waiting");
    this.state.hidden = true;
    this.follow = button(t("Follow"), "arrow-down-to-line", t("Stay at the end while more is written (End)"));
    this.wrap = button(t("Wrap"), null, t("Break long lines"));
    this.error = button(t("First error"), "circle-alert", t("Go to the first line on stderr, or that tells of an error"));
    this.input = el("input", {
      type: "search", placeholder: t("Search"), "aria-label": t("Search in the output"), title: t("Search in the output (/)"),
      autocomplete: "off", spellcheck: "false", enterkeyhint: "search",
    });
    this.count = el("output", { class: "log-count" });
    this.previous = button(t("Previous match"), "arrow-up", t("Previous match (Shift+Enter)"), { disabled: true });
    this.next = button(t("Next match"), "arrow-down", t("Next match (Enter)"), { disabled: true });
    for (const bare of [this.previous, this.next]) bare.classList.add("bare");
    this.filters = new Map([["all", t("All")], ["stdout", "stdout"], ["stderr", "stderr"]].map(
      ([name, words]) => [name, el("button", { type: "button", "aria-pressed": String(name === "all") }, words)],
    ));
    const filter = el("span", { class: "group", role: "group", "aria-label": t("Show") }, ...this.filters.values());
    filter.hidden = !streams;
    const search = el("span", { class: "log-search", role: "search" }, icon("search"), this.input, this.count, this.previous, this.next);
    this.element = el(
      "div", { class: "log-bar" }, el("div", { class: "log-head" }, this.heading, this.state),
      el("div", { class: "log-tools" }, search, this.error, filter, this.wrap, this.follow, downloads(runs, attempt, downloadHref)),
    );
    this.said = el("span", { class: "log-said" });
    this.sums = el("span", { class: "log-sums" });
    this.foot = el("div", { class: "log-foot" }, this.said, this.sums);
    this.setWrap(false);
    this.setFollow(false);
  }

  setFollow(on) {
    pressed(this.follow, on);
  }

  setWrap(on) {
    pressed(this.wrap, on);
  }

  setFilter(name) {
    for (const [each, made] of this.filters) pressed(made, each === name);
  }

  /** Where the search is: at hit `place` (from 1; 0 for none) of `hits`; `busy` while it still looks. */
  setHits(place, hits, { searching, busy }) {
    const all = busy ? `${number(hits)}+` : number(hits);
    const words = !searching ? "" : !hits ? (busy ? t("searching…") : t("no match"))
      : place ? t("%(place)s of %(all)s", { place: number(place), all }) : all;
    setText(this.count, words);
    this.previous.disabled = this.next.disabled = !hits;
  }

  /** The search for an error found none. */
  setNoTrouble() {
    setText(this.count, t("no error found"));
  }

  /** A run changed its state. */
  setRun(run) {
    this.states.set(run.id, run);
    if (this.runs.length > 1) return;
    this.state.hidden = false;
    setBadge(this.state, run.state);
  }

  /** What is said below: whether more is to come, and how much there is. */
  setSums(model, over) {
    setText(this.said, over ? this.endWords() : this.runningWords());
    this.foot.classList.toggle("over", over);
    const lines = model.lines + model.dropped;
    setText(this.sums, `${tn("%(n)s line", "%(n)s lines", lines)} · ${size(model.size)}`);
  }

  endWords() {
    if (!this.states.size) return "";
    if (this.runs.length > 1) return t("All have ended.");
    const run = this.states.get(this.runs[0].id);
    const words = outcomeWords(run);
    return words ? t("Ended: %(how)s.", { how: words }) : t("Ended.");
  }

  runningWords() {
    const runs = [...this.states.values()];
    if (!runs.length) return t("Loading…");
    const going = runs.filter((run) => run.state === "running").length;
    const left = runs.filter((run) => !RUN_FINAL.has(run.state)).length;
    if (this.runs.length === 1) return going ? t("Still running…") : t("Not begun yet.");
    if (going) return tn("%(n)s still running…", "%(n)s still running…", going);
    return tn("%(n)s not ended yet.", "%(n)s not ended yet.", left);
  }
}
