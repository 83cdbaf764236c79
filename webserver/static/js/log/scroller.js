// Shows the few rows of a long list that are in view. Its own elements only: what a row looks like is `paint`'s business.
//
// Without wrapping all rows are equally high. With it, heights are estimated from the number of columns, and replaced by
// what they are once a row was shown; what is in view stays where it is when that changes what is above.

import { EvenHeights, Heights } from "./heights.js";
import { columns } from "./line.js";
import { el } from "../view.js";

const MARGIN_ROWS = 12;
// Browsers know no elements of any height. Beyond this, the scroll bar moves through the rows faster than one by one.
const TALL_MOST = 8_000_000;
const SAME_PX = 2;

export class Scroller {
  /** `paint(row)` makes the element of a row; `moved()` is told when the person scrolled up. */
  constructor(element, { paint, moved }) {
    this.element = element;
    this.paint = paint;
    this.moved = moved;
    this.rows = [];
    this.shown = new Map(); // row -> element
    this.following = false;
    this.wrap = false;
    this.wide = 0;
    this.lastTop = 0;
    this.block = el("div", { class: "log-rows" });
    this.canvas = el("div", { class: "log-canvas" }, this.block);
    element.replaceChildren(this.canvas);
    this.measure();
    this.heights = new EvenHeights(this.rowHeight);
    element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(element);
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
  }

  // -- the list -------------------------------------------------------------------------------------------------------

  /** Show these rows from now on. The array is kept: `grown` and `cut` tell of what is done to it. */
  list(rows) {
    this.rows = rows;
    this.shown.clear();
    this.block.replaceChildren();
    this.wide = 0;
    this.heights.clear();
    this.grown();
  }

  /** Rows were added at the end. */
  grown() {
    for (let i = this.heights.length; i < this.rows.length; i += 1) this.heights.append(this.estimate(this.rows[i]));
    this.render();
  }

  /** The first `gone` rows were replaced by `come` others. What is in view stays. */
  cut(gone, come) {
    const place = this.place();
    const at = this.heights.at(place);
    const within = place - this.heights.top(at);
    const length = this.heights.length - gone + come;
    this.heights.clear();
    for (let i = 0; i < length; i += 1) this.heights.append(this.wrap ? this.estimate(this.rows[i]) : 0);
    if (!this.following) this.goTo(at < gone ? 0 : this.heights.top(at - gone + come) + within);
    this.draw();
  }

  /** A row looks different now. */
  changed(row, index) {
    if (index >= 0 && index < this.heights.length) this.heights.set(index, this.estimate(row));
    this.shown.get(row)?.remove();
    this.shown.delete(row);
    this.draw();
  }

  /** All rows look different now. */
  repaint() {
    this.shown.clear();
    this.block.replaceChildren();
    this.draw();
  }

  setWrap(wrap) {
    const index = this.heights.at(this.place());
    this.wrap = wrap;
    this.heights = wrap ? new Heights() : new EvenHeights(this.rowHeight);
    this.element.classList.toggle("wraps", wrap);
    this.list(this.rows);
    if (!this.following) this.show(index, "start");
  }

  // -- where it is ----------------------------------------------------------------------------------------------------

  /** Bring row `index` into view: to the "start", or the "middle". */
  show(index, where = "middle") {
    this.render(); // the canvas must be as tall as the rows are by now
    const room = where === "middle" ? Math.max(0, (this.view - this.rowHeight) / 2) : 0;
    this.goTo(this.heights.top(index) - room);
    this.render();
    // With wrapping, what is around it has its true height only now.
    this.goTo(this.heights.top(index) - room);
    this.render();
  }

  follow(on) {
    this.following = on;
    if (on) this.toEnd();
  }

  toEnd() {
    this.render();
    this.goTo(Infinity);
    this.render();
    this.goTo(Infinity);
  }

  toStart() {
    this.goTo(0);
    this.render();
  }

  get atEnd() {
    return this.lastTop + this.view >= Math.min(this.heights.total, TALL_MOST) - this.rowHeight / 2;
  }

  /** The row at the top of what is seen. */
  get first() {
    return this.rows[this.heights.at(this.place())];
  }

  /** How many rows tall a pixel of the scroll bar is: 1 but for very long lists. */
  get scale() {
    const total = this.heights.total;
    return total > TALL_MOST ? (total - this.view) / (TALL_MOST - this.view) : 1;
  }

  place() {
    return this.element.scrollTop * this.scale;
  }

  goTo(place) {
    const { element } = this;
    const most = Math.max(0, Math.min(this.heights.total, TALL_MOST) - this.view);
    // At the end the browser knows best: a scroll bar may take some of the room.
    const wanted = place === Infinity ? most + 100 : Math.round(Math.max(0, place) / this.scale);
    if (Math.abs(element.scrollTop - wanted) >= 1) element.scrollTop = wanted;
    this.lastTop = element.scrollTop;
  }

  scrolled() {
    const { scrollTop } = this.element;
    const up = scrollTop < this.lastTop - SAME_PX;
    this.lastTop = scrollTop;
    if (up && !this.atEnd && this.following) {
      this.following = false;
      this.moved();
    }
    this.draw();
  }

  resized() {
    const { clientWidth, clientHeight } = this.element;
    this.view = clientHeight;
    if (clientWidth === this.width) return this.draw();
    this.width = clientWidth;
    this.measure();
    if (this.wrap) this.setWrap(true);
    return this.draw();
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  /** Draw with the next frame. */
  draw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
    });
  }

  /** Draw now. Asks the browser for a position as seldom as can be: each time it has to lay out the page anew. */
  render() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.following) this.lastTop = this.element.scrollTop;
    this.resize();
    if (this.following) this.goTo(Infinity);
    const place = this.lastTop * this.scale;
    const first = Math.max(0, this.heights.at(place) - MARGIN_ROWS);
    const last = Math.min(this.rows.length, this.heights.at(place + this.view) + 1 + MARGIN_ROWS);
    this.fill(first, last);
    this.put(first);
    if (!this.wrap || !this.settle(first, last, place)) return;
    this.resize();
    if (this.following) this.goTo(Infinity);
    this.put(first);
  }

  resize() {
    const tall = `${Math.min(this.heights.total, TALL_MOST)}px`;
    if (this.tall !== tall) this.canvas.style.setProperty("height", (this.tall = tall));
    if (this.set !== this.wide) this.canvas.style.setProperty("--log-columns", (this.set = this.wide));
  }

  put(first) {
    const top = this.lastTop - (this.lastTop * this.scale - this.heights.top(first));
    this.block.style.setProperty("top", `${top}px`);
  }

  /** Have exactly these rows in the page, and touch only those that come and go: a selection stays. */
  fill(first, last) {
    const wanted = new Set(this.rows.slice(first, last));
    for (const [row, element] of this.shown) {
      if (wanted.has(row)) continue;
      element.remove();
      this.shown.delete(row);
    }
    let there = this.block.firstChild;
    for (const row of wanted) {
      let element = this.shown.get(row);
      if (!element) this.shown.set(row, (element = this.paint(row)));
      if (element === there) there = there.nextSibling;
      else this.block.insertBefore(element, there);
    }
  }

  /** Take over the true heights; answers whether any was different. */
  settle(first, last, place) {
    const anchor = this.heights.at(place);
    const before = this.heights.top(anchor);
    const total = this.heights.total;
    for (let i = first; i < last; i += 1) {
      this.heights.set(i, this.shown.get(this.rows[i]).getBoundingClientRect().height);
    }
    const shift = this.heights.top(anchor) - before;
    if (shift && !this.following) {
      this.resize();
      this.goTo(place + shift);
    }
    return Boolean(shift) || this.heights.total !== total;
  }

  /** How high a row may be. Notices how wide it is, too. */
  estimate(row) {
    const n = columns(row.text ?? "");
    if (n > this.wide) this.wide = n;
    return this.wrap ? this.rowHeight * Math.max(1, Math.ceil(n / this.columns)) : this.rowHeight;
  }

  /** Learn how high a row is and how many columns there are. */
  measure() {
    this.view = this.element.clientHeight;
    const text = el("span", { class: "log-text" }, "0".repeat(10));
    const who = this.element.classList.contains("many") ? el("span", { class: "log-who" }) : null;
    const probe = el("div", { class: "log-row" }, el("span", { class: "log-n" }), who, text);
    this.block.append(probe);
    this.rowHeight = probe.getBoundingClientRect().height || 20;
    const gutter = text.getBoundingClientRect().left - probe.getBoundingClientRect().left;
    const range = document.createRange();
    range.selectNodeContents(text);
    const each = range.getBoundingClientRect().width / 10 || 8;
    const padding = Number.parseFloat(getComputedStyle(text).paddingRight) || 0;
    this.columns = Math.max(10, Math.floor((this.element.clientWidth - gutter - padding) / each));
    probe.remove();
  }
}
