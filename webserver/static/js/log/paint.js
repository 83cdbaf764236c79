// What rows look like: as elements, with all of their content put in as text.

import { classes } from "./ansi.js";
import { el, icon, size } from "../view.js";
import { number, t, tn } from "../words.js";

const AGENT_COLOURS = 8;

/** The address of a line, for the part behind `#`. */
export function linkTo({ run, line, attempt = null }) {
  return `#run=${encodeURIComponent(run)}${attempt ? `&attempt=${attempt}` : ""}&line=${line}`;
}

/** What such an address says: {run, line, attempt}; null when it is none. */
export function linked(hash = location.hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const line = Number(said.get("line"));
  if (!said.get("run") || !Number.isSafeInteger(line) || line < 1) return null;
  const attempt = Number(said.get("attempt"));
  return { run: said.get("run"), line, attempt: Number.isSafeInteger(attempt) && attempt > 0 ? attempt : null };
}

export class Painter {
  /** `downloadHref(runId, attempt)` is where the raw output is. */
  constructor({ runs, attempt, downloadHref }) {
    this.attempt = attempt;
    this.downloadHref = downloadHref;
    this.many = runs.length > 1;
    this.runs = new Map(runs.map((run, index) => [run.id, { ...run, colour: index % AGENT_COLOURS }]));
    this.search = null;
    this.current = null; // the row that the search is at
    this.marked = null; // the row that the address names
  }

  /** The element of a row. */
  row(row) {
    switch (row.kind) {
      case "line": return this.line(row);
      case "gap": return this.note(row, "triangle-alert", gapWords(row), this.raw(row.run));
      case "attempt": return this.note(row, "rotate-ccw", t("Attempt %(n)s begins here.", { n: row.attempt }));
      case "dropped": return this.note(row, "ellipsis", droppedWords(row), this.many ? null : this.raw([...this.runs.keys()][0]));
      default: return this.note(row, "circle-x", row.text);
    }
  }

  line(row) {
    const made = el("div", { class: "log-row", "data-seq": row.seq });
    if (row.stream === "stderr") made.classList.add("err");
    if (row === this.current) made.classList.add("current");
    if (row === this.marked) made.classList.add("marked");
    const name = t("line %(n)s", { n: row.n });
    const to = linkTo({ run: row.run, line: row.n, attempt: this.attempt });
    // Not in the order of Tab: there are hundreds. Search and "first error" mark their line as well.
    made.append(el("a", { class: "log-n", href: to, "data-n": row.n, "aria-label": name, tabindex: -1 }));
    if (this.many) made.append(this.who(row.run));
    const text = el("span", { class: "log-text" });
    text.append(...this.pieces(row));
    made.append(text);
    if (row.more) made.append(this.tooLong(row));
    return made;
  }

  who(runId) {
    const run = this.runs.get(runId);
    return el("span", { class: `log-who w${run?.colour ?? 0}`, title: run?.name ?? runId }, run?.name ?? runId);
  }

  tooLong(row) {
    const words = tn("… %(n)s more character; see the raw output", "… %(n)s more characters; see the raw output", row.more);
    return el("a", { class: "log-more", href: this.raw(row.run), download: true }, words);
  }

  note(row, iconName, words, href = null) {
    const made = el("div", { class: `log-row log-note n-${row.kind}`, "data-seq": row.seq }, icon(iconName));
    if (this.many && row.run) made.append(this.who(row.run));
    made.append(el("span", { class: "log-text" }, words));
    if (href) made.append(el("a", { href, download: true }, t("Download raw")));
    return made;
  }

  raw(runId) {
    return this.downloadHref(runId, this.attempt ?? this.runs.get(runId)?.attempt ?? null);
  }

  /** The line's text cut where its style changes and where a match of the search begins or ends. */
  pieces(row) {
    const { text, marks } = row;
    const places = this.search?.places(text) ?? [];
    if (!marks && !places.length) return [text]; // already plain
    const cuts = new Set([0, text.length, ...places]);
    for (let i = 0; marks && i < marks.length; i += 2) cuts.add(marks[i]);
    const sorted = [...cuts].filter((cut) => cut <= text.length).sort((a, b) => a - b);
    const made = [];
    let mark = 0;
    let match = 0;
    let style = 0;
    for (let i = 0; i + 1 < sorted.length; i += 1) {
      const from = sorted[i];
      while (marks && mark < marks.length && marks[mark] <= from) [style, mark] = [marks[mark + 1], mark + 2];
      while (match < places.length && places[match + 1] <= from) match += 2;
      const found = match < places.length && places[match] <= from;
      made.push(piece(text.slice(from, sorted[i + 1]), classes(style), found));
    }
    return made;
  }
}

function piece(text, styled, found) {
  if (!styled && !found) return document.createTextNode(text);
  const made = document.createElement(found ? "mark" : "span");
  if (styled) made.className = styled;
  made.textContent = text;
  return made;
}

function gapWords(row) {
  return t("%(size)s were dropped here: %(length)s bytes from offset %(offset)s were not kept.", {
    size: size(row.length), length: number(row.length), offset: number(row.offset),
  });
}

function droppedWords(row) {
  return tn(
    "%(n)s older line is not shown here, to spare this browser's memory; the raw output has all.",
    "%(n)s older lines are not shown here, to spare this browser's memory; the raw output has all.", row.lines,
  );
}
