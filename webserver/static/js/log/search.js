// Finds rows: those that contain a text, and the first that tells of an error. Pure: no DOM.

const SLICE_ROWS = 4000;
const TROUBLE = /error|failed|traceback|fatal|错误|失败/i;
// What programs say when all is well.
const NO_TROUBLE = /\b(?:0|no|without) (?:errors?|failed)\b|\b(?:errors?|failed)\s*[:=]\s*0\b|错误[:：]\s*0\b|失败[:：]\s*0\b/gi;

/** Whether a row is the kind one looks for first when something went wrong. */
export function isTrouble(row) {
  if (row.kind !== "line") return false;
  if (row.stream === "stderr" && row.text.trim()) return true;
  return TROUBLE.test(row.text) && TROUBLE.test(row.text.replace(NO_TROUBLE, ""));
}

/** Where the row with `seq`, or the first one behind it, is in `rows`, which are sorted by it. */
export function placeOf(rows, seq) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].seq < seq) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A search for `text`, upper and lower case alike, over rows that come and go. `hits` are the rows that contain it. */
export class Search {
  constructor(text) {
    this.text = text;
    this.pattern = text ? new RegExp(text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu") : null;
    this.hits = [];
    this.next = 0; // rows from this seq on are not looked at yet
  }

  /** Look at some more of `rows`; answers whether any are left. */
  go(rows, slice = SLICE_ROWS) {
    if (!this.pattern) return false;
    const from = placeOf(rows, this.next);
    const end = Math.min(rows.length, from + slice);
    for (let i = from; i < end; i += 1) if (this.contains(rows[i])) this.hits.push(rows[i]);
    if (end > from) this.next = rows[end - 1].seq + 1;
    return end < rows.length;
  }

  /** Look at a row again that has changed. */
  again(row) {
    if (!this.pattern || row.seq >= this.next) return;
    const place = placeOf(this.hits, row.seq);
    const there = this.hits[place] === row;
    if (this.contains(row) === there) return;
    this.hits.splice(place, there ? 1 : 0, ...(there ? [] : [row]));
  }

  /** Rows before `seq` are gone. */
  forget(seq) {
    const gone = placeOf(this.hits, seq);
    if (gone) this.hits.splice(0, gone);
  }

  contains(row) {
    if (row.kind !== "line") return false;
    this.pattern.lastIndex = 0;
    return this.pattern.test(row.text);
  }

  /** Where the text is in `line`: [start, end, start, end, ...]. */
  places(line) {
    if (!this.pattern) return [];
    this.pattern.lastIndex = 0;
    return Array.from(line.matchAll(this.pattern)).flatMap((found) => [found.index, found.index + found[0].length]);
  }

  /** The hit after (`step` 1) or before (-1) the row with `seq`, going round at the ends; null when there is none. */
  from(seq, step) {
    if (!this.hits.length) return null;
    const place = placeOf(this.hits, seq);
    const there = this.hits[place]?.seq === seq;
    const wanted = step > 0 ? place + (there ? 1 : 0) : place - 1;
    return this.hits[(wanted + this.hits.length) % this.hits.length];
  }
}
