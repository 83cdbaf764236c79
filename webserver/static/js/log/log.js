// The viewer of output: of one run or several merged, live or over. Builds everything inside the given container.
//
// This module ties the parts together: feed.js brings bytes into model.js, this keeps the list of rows that are to be
// seen, scroller.js shows the part in view, and bar.js has the controls.

import { Bar } from "./bar.js";
import { feed } from "./feed.js";
import { Output } from "./model.js";
import { linkTo, linked, Painter } from "./paint.js";
import { Scroller } from "./scroller.js";
import { isTrouble, placeOf, Search } from "./search.js";
import { el, icon, RUN_FINAL } from "../view.js";
import { t } from "../words.js";

export { linked, linkTo };

const WRAP_KEPT = "muster:wrap";

/**
 * Show output in `container`. Options: `runs` [{id, attempt, name, state}] (`state` if known: one that is over is shown from
 * its start), `path` of the event stream, `attempt` (number of an older one of the only run; null: live), `title`,
 * `downloadHref(runId, attempt)`, `line` (of the first run: go there; null: where the address points, if into these runs),
 * `most` ({linesMost, charactersMost} to keep), `source` (in place of the stream: `(model, on) => {close()}`).
 * Answers {close()}.
 */
export function openLog(container, options) {
  return new Viewer(container, { attempt: null, line: null, source: null, ...options });
}

class Viewer {
  constructor(container, options) {
    this.options = options;
    this.container = container;
    this.runs = options.runs;
    this.model = new Output({ single: this.runs.length === 1, ...options.most });
    this.rows = [];
    this.floor = 0;
    this.filter = "all";
    this.search = new Search("");
    this.over = false;
    this.build();
    this.listen();
    const ended = options.attempt !== null || this.runs.every((run) => RUN_FINAL.has(run.state));
    const named = linked();
    this.target = options.line ? { run: this.runs[0].id, line: options.line } : this.mine(named) ? named : null;
    this.setFollow(!ended && !this.target);
    const on = {
      run: (run) => this.runChanged(run), grown: () => this.later(), ended: () => this.ended(),
    };
    this.feed = options.source ? options.source(this.model, on) : feed(options, this.model, on);
    this.update();
  }

  close() {
    this.closed = true;
    this.feed.close();
    this.scroller.close();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.searching);
    removeEventListener("hashchange", this.onHash);
    this.container.replaceChildren();
  }

  // -- building -------------------------------------------------------------------------------------------------------

  build() {
    const { options } = this;
    this.bar = new Bar({ ...options, streams: options.attempt === null });
    this.painter = new Painter(options);
    this.list = el("div", {
      class: "log-scroller", role: "log", "aria-live": "off", tabindex: 0,
      "aria-label": t("Output: %(title)s", { title: options.title }),
    });
    this.list.classList.toggle("many", this.runs.length > 1);
    this.end = el("button", { type: "button", class: "log-end small" }, icon("arrow-down"), t("To the end"));
    this.empty = el("p", { class: "log-empty" });
    const middle = el("div", { class: "log-middle" }, this.list, this.empty, this.end);
    this.root = el("div", { class: "log" }, this.bar.element, middle, this.bar.foot);
    this.container.replaceChildren(this.root);
    this.scroller = new Scroller(this.list, {
      paint: (row) => this.painter.row(row),
      moved: () => this.setFollow(false),
    });
    this.scroller.list(this.rows);
    this.setWrap(localStorage.getItem(WRAP_KEPT) === "yes");
  }

  listen() {
    const { bar } = this;
    const pressed = (button, act) => button.addEventListener("click", act);
    pressed(bar.follow, () => this.setFollow(!this.scroller.following));
    pressed(bar.wrap, () => this.setWrap(!this.scroller.wrap, true));
    pressed(bar.error, () => this.toTrouble());
    pressed(bar.next, () => this.toHit(1));
    pressed(bar.previous, () => this.toHit(-1));
    pressed(this.end, () => this.toEnd());
    for (const [name, button] of bar.filters) pressed(button, () => this.setFilter(name));
    bar.input.addEventListener("input", () => this.setSearch(bar.input.value));
    bar.input.addEventListener("keydown", (event) => this.searchKey(event));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("click", (event) => this.clicked(event));
    this.list.addEventListener("scroll", () => this.showEnd(), { passive: true });
    this.onHash = () => {
      const named = linked();
      if (!this.mine(named)) return;
      this.target = named;
      this.update();
    };
    addEventListener("hashchange", this.onHash);
  }

  // -- what comes -----------------------------------------------------------------------------------------------------

  runChanged(run) {
    // A stream tells every run to be under way before its output, one that is over as well.
    const known = this.runs.find((each) => each.id === run.id);
    const over = RUN_FINAL.has(known.state) && known.attempt === run.attempt;
    if (!over || RUN_FINAL.has(run.state)) this.bar.setRun(run);
    this.later();
  }

  ended() {
    this.over = true;
    this.update();
    if (this.scroller.following) this.setFollow(false);
    this.bar.follow.hidden = true;
    this.list.setAttribute("aria-busy", "false");
  }

  /** Update with the next frame; in a hidden page frames do not come, and need not. */
  later() {
    if (this.frame || this.closed) return;
    this.frame = requestAnimationFrame(() => this.update());
  }

  update() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { cleared, added, changed } = this.model.take();
    if (cleared) this.begin();
    this.cut(added);
    for (const row of added) if (row.kind !== "dropped" && this.seen(row)) this.rows.push(row);
    for (const row of changed) this.changed(row);
    if (added.length || changed.length) this.scroller.grown();
    if (added.length || changed.length) this.goOnSearching();
    if (this.target) this.toTarget();
    this.bar.setSums(this.model, this.over);
    this.showEmpty();
    this.showEnd();
  }

  begin() {
    this.rows = [];
    this.floor = this.model.floor;
    this.painter.current = this.painter.marked = null;
    this.scroller.list(this.rows);
    this.setSearch(this.search.text);
  }

  /** Let go of rows that the model no longer has. */
  cut(added) {
    if (this.model.floor === this.floor) return;
    this.floor = this.model.floor;
    const said = added.filter((row) => row.kind === "dropped").slice(-1);
    const gone = placeOf(this.rows, this.floor);
    this.rows.splice(0, gone, ...said);
    this.scroller.cut(gone, said.length);
    this.search.forget(this.floor);
  }

  changed(row) {
    this.search.again(row);
    if (this.seen(row)) this.scroller.changed(row, this.indexOf(row));
  }

  seen(row) {
    return this.filter === "all" || row.kind !== "line" || row.stream === this.filter;
  }

  indexOf(row) {
    const index = placeOf(this.rows, row.seq);
    return this.rows[index] === row ? index : -1;
  }

  // -- where one is ---------------------------------------------------------------------------------------------------

  setFollow(on) {
    this.bar.setFollow(on);
    this.scroller.follow(on);
    this.showEnd();
  }

  toEnd() {
    if (this.over) this.scroller.toEnd();
    else this.setFollow(true);
    this.list.focus({ preventScroll: true });
  }

  /** Go to a row; it is shown even if it was filtered away. */
  goTo(row) {
    this.setFollow(false);
    if (this.indexOf(row) < 0) this.setFilter("all");
    const index = this.indexOf(row);
    if (index >= 0) this.scroller.show(index);
    this.showEnd();
  }

  mine(named) {
    return named !== null && this.runs.some((run) => run.id === named.run)
      && (this.options.attempt === null || named.attempt === null || named.attempt === this.options.attempt);
  }

  toTarget() {
    const { run, line } = this.target;
    if (!(this.model.runs.get(run)?.lines >= line)) return;
    const row = this.model.find(run, line);
    this.target = null;
    if (!row) return;
    this.mark(row);
    this.goTo(row);
  }

  /** Mark the line, and name it in the address. */
  mark(row) {
    const before = this.painter.marked;
    this.painter.marked = row;
    for (const each of [before, row]) if (each) this.scroller.changed(each, this.indexOf(each));
    const link = linkTo({ run: row.run, line: row.n, attempt: this.options.attempt });
    if (location.hash !== link) history.replaceState(history.state, "", link);
  }

  clicked(event) {
    const number = event.target.closest?.(".log-n");
    if (!number || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const seq = Number(number.closest(".log-row").dataset.seq);
    this.setFollow(false);
    this.mark(this.rows[placeOf(this.rows, seq)]);
  }

  toTrouble() {
    const row = this.model.rows.find(isTrouble);
    if (!row) {
      this.bar.setNoTrouble();
      return;
    }
    this.mark(row);
    this.goTo(row);
    this.list.focus({ preventScroll: true });
  }

  showEnd() {
    this.end.hidden = this.scroller.following || this.scroller.atEnd;
  }

  showEmpty() {
    this.empty.hidden = this.model.rows.length > 0;
    const words = this.over ? t("Nothing was written.") : t("Nothing was written yet.");
    if (this.empty.textContent !== words) this.empty.textContent = words;
  }

  // -- what is shown --------------------------------------------------------------------------------------------------

  setWrap(on, keep = false) {
    this.bar.setWrap(on);
    if (on !== this.scroller.wrap) this.scroller.setWrap(on);
    if (keep) localStorage.setItem(WRAP_KEPT, on ? "yes" : "no");
  }

  setFilter(name) {
    if (name === this.filter) return;
    const first = this.scroller.first?.seq ?? 0;
    this.filter = name;
    this.bar.setFilter(name);
    this.update();
    this.rows = this.model.rows.filter((row) => this.seen(row));
    this.scroller.list(this.rows);
    if (!this.scroller.following) this.scroller.show(placeOf(this.rows, first), "start");
    this.setSearch(this.search.text);
    this.showEnd();
  }

  // -- searching ------------------------------------------------------------------------------------------------------

  setSearch(text) {
    const same = text === this.search.text;
    this.search = this.painter.search = new Search(text);
    if (!same) this.painter.current = null;
    this.looking = !same && text ? this.scroller.first?.seq ?? 0 : null; // from here on the first hit is gone to
    this.scroller.repaint();
    this.goOnSearching();
  }

  goOnSearching() {
    clearTimeout(this.searching);
    const more = this.search.go(this.rows);
    if (more) this.searching = setTimeout(() => this.goOnSearching());
    if (this.looking !== null && this.search.hits.length) {
      const hit = this.search.from(this.looking - 1, 1);
      if (hit.seq >= this.looking || !more) {
        this.looking = null;
        this.at(hit);
      }
    }
    this.showHits(more);
  }

  showHits(busy = false) {
    const { current } = this.painter;
    const place = current ? placeOf(this.search.hits, current.seq) : -1;
    const there = place >= 0 && this.search.hits[place] === current;
    this.bar.setHits(there ? place + 1 : 0, this.search.hits.length, { searching: Boolean(this.search.text), busy });
  }

  toHit(step) {
    const from = this.painter.current?.seq ?? (this.scroller.first?.seq ?? 0) - (step > 0 ? 1 : 0);
    const hit = this.search.from(from, step);
    if (hit) this.at(hit);
    this.showHits();
  }

  at(row) {
    const before = this.painter.current;
    this.painter.current = row;
    for (const each of [before, row]) if (each) this.scroller.changed(each, this.indexOf(each));
    this.goTo(row);
  }

  // -- keys -----------------------------------------------------------------------------------------------------------

  searchKey(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      this.toHit(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.bar.input.value = "";
      this.setSearch("");
      this.list.focus({ preventScroll: true });
    }
  }

  key(event) {
    const typing = event.target === this.bar.input;
    const find = (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "f";
    if (find || (!typing && event.key === "/" && !event.ctrlKey && !event.metaKey)) {
      event.preventDefault();
      this.bar.input.focus();
      this.bar.input.select();
    } else if (event.target === this.list && !event.ctrlKey && !event.metaKey && !event.altKey) this.listKey(event);
  }

  listKey(event) {
    const acts = {
      End: () => this.toEnd(),
      Home: () => {
        this.setFollow(false);
        this.scroller.toStart();
        this.showEnd();
      },
      n: () => this.toHit(1),
      N: () => this.toHit(-1),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
