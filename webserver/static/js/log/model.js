// What was written by one run or several, as rows in the order of arrival: lines, gaps, notes. Pure: no DOM, no network.
//
// Promises that the same bytes give the same rows however they were cut into pieces, that pieces told twice count once,
// and that no more than a set number of lines and characters is kept: the oldest go, and a row says so.
//
// A row is {seq, kind, ...}; `seq` grows. Kinds: `line` {run, n, stream, text, marks, more, open}, `gap` {run, offset,
// length}, `attempt` {run, attempt}, `dropped` {lines}, `fault` {text}.

import { plain } from "../plain.js";
import { escapeAt, restyle } from "./ansi.js";
import { Line } from "./line.js";

// eslint-disable-next-line no-control-regex
const SPECIAL = /[\n\r\b\x1b]/g;
const KEPT_SHARE = 0.95; // after dropping, so that it is not done for every line

/** One pipe of one run: what is needed to go on writing it. */
class Pen {
  constructor(run, stream) {
    this.run = run;
    this.stream = stream;
    this.begin();
  }

  begin() {
    // A mark at the start of the text is shown like everywhere else.
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    this.pending = ""; // an escape whose end is not there yet
    this.returned = false; // a carriage return that may be the first half of a line's end
    this.style = 0;
    this.line = null;
    this.row = null;
  }
}

export class Output {
  /** `single`: a new attempt takes the place of the one before; else it follows after it. */
  constructor({ single = false, linesMost = 400_000, charactersMost = 48 * 1024 * 1024 } = {}) {
    this.single = single;
    this.linesMost = linesMost;
    this.charactersMost = charactersMost;
    this.rows = [];
    this.runs = new Map();
    this.seq = 0;
    this.floor = 0; // the seq of the oldest row
    this.characters = 0;
    this.lines = 0;
    this.dropped = 0;
    this.written = new Set(); // pens whose open line is not settled in its row
    this.forget();
  }

  /** Bytes known of all runs, gaps included. */
  get size() {
    let size = 0;
    for (const run of this.runs.values()) size += run.offset;
    return size;
  }

  /** Take in a piece: `bytes` of a pipe ("stdout", "stderr", or "all" where it is not known which) at `offset`. */
  append(bytes, stream, offset, runId, attempt = 1) {
    const run = this.runOf(runId, attempt);
    if (attempt < run.attempt) return;
    if (offset > run.offset) this.gap(runId, run.offset, offset - run.offset, attempt);
    const known = run.offset - offset;
    if (known >= bytes.length) return;
    const fresh = known ? bytes.subarray(known) : bytes;
    run.offset += fresh.length;
    const pen = this.penOf(run, stream);
    this.write(pen, pen.decoder.decode(fresh, { stream: true }));
    this.dropOldest();
  }

  /** Bytes that were not kept. */
  gap(runId, offset, length, attempt = 1) {
    const run = this.runOf(runId, attempt);
    if (attempt < run.attempt || offset + length <= run.offset) return;
    this.flush(run);
    this.add({ kind: "gap", run: runId, offset, length });
    run.offset = offset + length;
  }

  /** Nothing follows of this run: what is still open is shown as it is. */
  end(runId) {
    const run = this.runs.get(runId);
    if (run) this.flush(run);
  }

  /** Say that something could not be got. */
  fault(text) {
    this.add({ kind: "fault", text });
  }

  /** What happened since this was asked last: {cleared, added, changed}, rows that are gone left out. */
  take() {
    this.settle();
    const { cleared, added, changed } = this;
    this.forget();
    const kept = (row) => row.seq >= this.floor;
    const fresh = new Set(added);
    return { cleared, added: added.filter(kept), changed: [...changed].filter((row) => kept(row) && !fresh.has(row)) };
  }

  /** Bring the rows of open lines up to date. */
  settle() {
    for (const pen of this.written) this.show(pen);
    this.written.clear();
  }

  /** The row of line `n` of a run; undefined when it is not there. */
  find(runId, n) {
    return this.rows.findLast((row) => row.kind === "line" && row.n === n && row.run === runId);
  }

  // -- writing --------------------------------------------------------------------------------------------------------

  runOf(runId, attempt) {
    let run = this.runs.get(runId);
    if (!run) this.runs.set(runId, (run = { id: runId, attempt, offset: 0, lines: 0, pens: new Map() }));
    else if (attempt > run.attempt) {
      this.flush(run);
      if (this.single) this.clear();
      Object.assign(run, { attempt, offset: 0, lines: 0, pens: new Map() });
      this.add({ kind: "attempt", run: runId, attempt });
    }
    return run;
  }

  penOf(run, stream) {
    let pen = run.pens.get(stream);
    if (!pen) run.pens.set(stream, (pen = new Pen(run, stream)));
    return pen;
  }

  write(pen, decoded) {
    const text = pen.pending + decoded;
    pen.pending = "";
    let from = 0;
    while (from < text.length) {
      SPECIAL.lastIndex = from;
      const special = SPECIAL.exec(text)?.index ?? text.length;
      if (special > from) this.put(pen, text.slice(from, special));
      if (special === text.length) return;
      const length = this.control(pen, text, special);
      if (!length) {
        pen.pending = text.slice(special);
        return;
      }
      from = special + length;
    }
  }

  put(pen, text) {
    this.ready(pen).put(plain(text));
    this.written.add(pen);
  }

  /** Obey the control character at `index`; answers how long it is, 0 when its end is not there yet. */
  control(pen, text, index) {
    const code = text[index];
    if (code === "\n") this.endLine(pen);
    else if (code === "\r") pen.returned = true;
    else if (code === "\b") {
      this.ready(pen).by(-1);
      this.written.add(pen);
    } else {
      const found = escapeAt(text, index);
      if (!found) return 0;
      if (found.final === null) this.put(pen, code);
      else if (found.final === "m") this.restyle(pen, found.params);
      else if (found.final) this.move(pen, found.final, found.params);
      return found.length;
    }
    return 1;
  }

  restyle(pen, params) {
    pen.style = restyle(pen.style, params);
    if (pen.line) pen.line.style = pen.style;
  }

  /** What stays within a line is done, as progress bars need it; whatever leaves it has no place in a list of lines. */
  move(pen, final, params) {
    const n = /^\d{0,6}$/.test(params) ? Number(params) : NaN;
    if (!"KGCD".includes(final) || Number.isNaN(n) || (final === "K" && n > 2)) return;
    if (!pen.row && final !== "C") return;
    const line = this.ready(pen);
    if (final === "K") line.erase(n);
    else if (final === "G") line.to(Math.max(1, n) - 1);
    else line.by(Math.max(1, n) * (final === "C" ? 1 : -1));
    this.written.add(pen);
  }

  /** The pen's line, begun if need be, where the next character goes. */
  ready(pen) {
    if (!pen.row) {
      pen.run.lines += 1;
      pen.line = new Line(pen.style);
      pen.row = {
        kind: "line", run: pen.run.id, n: pen.run.lines, stream: pen.stream, text: "", marks: null, more: 0, open: true,
      };
      this.lines += 1;
      this.add(pen.row);
    }
    if (pen.returned) {
      if (pen.line.text || pen.line.cells) pen.line.to(0);
      pen.returned = false;
    }
    return pen.line;
  }

  endLine(pen) {
    pen.returned = false;
    this.ready(pen);
    this.show(pen);
    pen.row.open = false;
    this.written.delete(pen);
    pen.line = pen.row = null;
  }

  show(pen) {
    const before = pen.row.text.length;
    Object.assign(pen.row, pen.line.shown());
    if (pen.row.seq >= this.floor) this.characters += pen.row.text.length - before;
    this.changed.add(pen.row);
  }

  /** Nothing joins on to what this run wrote so far. */
  flush(run) {
    for (const pen of run.pens.values()) {
      this.write(pen, pen.decoder.decode());
      if (pen.pending) this.put(pen, pen.pending);
      if (pen.row) this.endLine(pen);
      pen.begin();
    }
  }

  // -- rows -----------------------------------------------------------------------------------------------------------

  add(row) {
    row.seq = this.seq;
    this.seq += 1;
    this.rows.push(row);
    this.added.push(row);
  }

  dropOldest() {
    if (this.rows.length <= this.linesMost && this.characters <= this.charactersMost) return;
    const rows = this.linesMost * KEPT_SHARE;
    const characters = this.charactersMost * KEPT_SHARE;
    let gone = 0;
    while (gone < this.rows.length - 1 && (this.rows.length - gone > rows || this.characters > characters)) {
      const row = this.rows[gone];
      if (row.kind === "line") {
        this.characters -= row.text.length;
        this.lines -= 1;
        this.dropped += 1;
      }
      gone += 1;
    }
    if (!gone) return;
    this.floor = this.rows[gone - 1].seq;
    const said = { kind: "dropped", lines: this.dropped, seq: this.floor };
    this.rows.splice(0, gone, said);
    this.added.unshift(said);
  }

  clear() {
    this.forget();
    this.cleared = true;
    this.rows = [];
    this.characters = this.lines = this.dropped = 0;
    this.floor = this.seq;
    this.written.clear();
  }

  forget() {
    this.cleared = false;
    this.added = [];
    this.changed = new Set();
  }
}
