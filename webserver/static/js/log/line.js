// One line as a terminal would show it once everything was written: text, its styles, and how much of it is not kept.
//
// Most lines are only ever written at their end, and are a string. The first move back (carriage return, backspace) makes
// a line cells, which can be overwritten: that is how progress bars come to show their last state only. Pure: no DOM.

/** Characters kept of a line; what is beyond is counted. */
const LINE_MOST = 10_000;

const TAB = 8;
const JOINED_MOST = 8; // marks (accents) on one character
const SIMPLE = /^[\x20-\x7e]*$/;
const MARK = /^[\p{Mn}\p{Me}]$/u;
const WIDE = new RegExp(
  "[\\u1100-\\u115f\\u2e80-\\ua4cf\\uac00-\\ud7a3\\uf900-\\ufaff\\ufe30-\\ufe6f\\uff00-\\uff60\\uffe0-\\uffe6"
    + "\\u{1f300}-\\u{1faff}\\u{20000}-\\u{3fffd}]", "u");

function widthOf(character) {
  if (character < "\u0300") return 1;
  return MARK.test(character) ? 0 : WIDE.test(character) ? 2 : 1;
}

/** How many columns `text` takes, about. */
export function columns(text) {
  if (SIMPLE.test(text)) return text.length;
  let n = 0;
  for (const character of text) n += character === "\t" ? TAB - (n % TAB) : widthOf(character);
  return n;
}

export class Line {
  /** A line that begins in `style`. */
  constructor(style) {
    this.style = style;
    this.text = "";
    this.marks = []; // [start, style, start, style, ...], the first of them none
    this.more = 0;
    this.cells = null;
  }

  /** Write `text`, which has no control characters but tabs. */
  put(text) {
    if (this.cells) this.cells.put(text, this.style);
    else {
      const room = LINE_MOST - this.text.length;
      if (room > 0) this.mark();
      this.more += Math.max(0, text.length - room);
      if (room > 0) this.text += text.length > room ? text.slice(0, room) : text;
    }
  }

  /** Move to column `n`, counted from 0. */
  to(n) {
    this.asCells().column = Math.max(0, n);
  }

  /** Move by `n` columns. */
  by(n) {
    const cells = this.asCells();
    cells.column = Math.max(0, Math.min(cells.column + n, 10 * LINE_MOST));
  }

  /** Erase (0: what follows, 1: what is before, 2: the line). */
  erase(part) {
    if (part === 0 && !this.cells) return; // at the end there is nothing behind
    this.asCells().erase(part);
  }

  /** What is to be shown: {text, marks, more}. `marks` is null for text without any style. */
  shown() {
    if (this.cells) return this.cells.shown();
    // What was cut may have been cut within a character.
    const cut = this.more && /[\ud800-\udbff]$/.test(this.text);
    return {
      text: cut ? this.text.slice(0, -1) : this.text,
      marks: this.marks.length ? this.marks.slice() : null,
      more: this.more + (cut ? 1 : 0),
    };
  }

  mark() {
    const last = this.marks.length ? this.marks[this.marks.length - 1] : 0;
    if (this.style !== last) this.marks.push(this.text.length, this.style);
  }

  asCells() {
    if (!this.cells) {
      const { text, marks, more } = this.shown();
      this.cells = new Cells();
      let from = 0;
      let style = 0;
      for (let i = 0; marks && i < marks.length; i += 2) {
        this.cells.put(text.slice(from, marks[i]), style);
        [from, style] = [marks[i], marks[i + 1]];
      }
      this.cells.put(text.slice(from), style);
      this.cells.column += more;
      this.cells.reach = this.cells.column;
    }
    return this.cells;
  }
}

/** A row of a terminal. The second cell of a wide character is empty. */
class Cells {
  constructor() {
    this.characters = [];
    this.styles = [];
    this.column = 0;
    this.reach = 0;
  }

  put(text, style) {
    for (const character of text) {
      if (character === "\t") {
        for (let n = TAB - (this.column % TAB); n > 0; n -= 1) this.write(" ", 1, style);
        continue;
      }
      const width = widthOf(character);
      if (width) this.write(character, width, style);
      else this.join(character);
    }
  }

  write(character, width, style) {
    if (this.column + width <= LINE_MOST) {
      this.fill();
      this.part(this.column);
      this.part(this.column + width);
      this.set(this.column, character, style);
      if (width === 2) this.set(this.column + 1, "", style);
    }
    this.column += width;
    this.reach = Math.max(this.reach, this.column);
  }

  join(character) {
    let before = Math.min(this.column, this.characters.length) - 1;
    if (this.characters[before] === "") before -= 1;
    if (before >= 0 && this.characters[before].length < JOINED_MOST) this.characters[before] += character;
  }

  erase(part) {
    const end = part === 0 ? this.characters.length : Math.min(this.column + 1, this.characters.length);
    if (part !== 1) {
      const kept = part === 0 ? Math.min(this.column, this.characters.length) : 0;
      this.part(kept);
      this.characters.length = this.styles.length = kept;
      this.reach = part === 0 ? Math.min(this.reach, this.column) : 0;
    } else {
      this.part(end);
      for (let i = 0; i < end; i += 1) this.set(i, " ", 0);
    }
  }

  /** A wide character of which `column` would be the second half falls apart. */
  part(column) {
    if (this.characters[column] === "" && column > 0) {
      this.characters[column - 1] = " ";
      this.characters[column] = " ";
    }
  }

  fill() {
    while (this.characters.length < this.column) this.set(this.characters.length, " ", 0);
  }

  set(column, character, style) {
    this.characters[column] = character;
    this.styles[column] = style;
  }

  shown() {
    const marks = [];
    let text = "";
    let style = 0;
    for (let i = 0; i < this.characters.length; i += 1) {
      if (this.styles[i] !== style) marks.push(text.length, (style = this.styles[i]));
      text += this.characters[i];
    }
    return { text, marks: marks.length ? marks : null, more: Math.max(0, this.reach - LINE_MOST) };
  }
}
