// Terminal escapes, read without obeying them: colours become a style, moves within a line are told, all else vanishes.
//
// A style is a number: colour of the text (0 none, 1-8 the eight colours, 9-16 their bright forms), the same of the ground,
// and attributes. Of 256 and true colours the nearest of the sixteen is taken, since only those are legible on light and
// dark. ansi_up is not used: it answers HTML, and what scripts wrote goes into pages as text only. Pure: no DOM.

const GROUND_BIT = 5;
const COLOUR = 0x1f;
const BOLD = 1 << 10;
const FAINT = 1 << 11;
const ITALIC = 1 << 12;
const UNDERLINE = 1 << 13;
const INVERSE = 1 << 14;
const STRUCK = 1 << 15;

const SET = { 1: BOLD, 2: FAINT, 3: ITALIC, 4: UNDERLINE, 7: INVERSE, 9: STRUCK, 21: UNDERLINE };
const UNSET = { 22: BOLD | FAINT, 23: ITALIC, 24: UNDERLINE, 27: INVERSE, 29: STRUCK };
const CUBE = [0, 95, 135, 175, 215, 255];

// All lengths are bounded, so that a sequence that never ends can neither hide what follows nor pile up.
/* eslint-disable no-control-regex */
const CSI = /\x1b\[([0-?]{0,128})([ -/]{0,8})([@-~])/y;
const CSI_OPEN = /\x1b\[[0-?]{0,128}[ -/]{0,8}$/y;
const STRING = /\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)/y;
const STRING_OPEN = /\x1b[\]PX^_][^\x07\x1b\n]{0,4096}\x1b?$/y;
const SHORT = /\x1b[ -/]{0,8}[0-~]/y;
const SHORT_OPEN = /\x1b[ -/]{0,8}$/y;
/* eslint-enable no-control-regex */

function at(pattern, text, index) {
  pattern.lastIndex = index;
  return pattern.exec(text);
}

/**
 * The escape at `index` of `text`, which is an ESC: {length, final, params}, where `final` is "" for what means nothing here.
 * null: `text` ends before the escape does. Length 1 with `final` null: not an escape, the ESC stands for itself.
 */
export function escapeAt(text, index) {
  const next = text[index + 1];
  if (next === "[") {
    const found = at(CSI, text, index);
    if (found) return { length: found[0].length, final: found[2] ? "" : found[3], params: found[1] };
    return at(CSI_OPEN, text, index) ? null : { length: 1, final: null, params: "" };
  }
  const [whole, open] = next !== undefined && "]PX^_".includes(next) ? [STRING, STRING_OPEN] : [SHORT, SHORT_OPEN];
  const found = at(whole, text, index);
  if (found) return { length: found[0].length, final: "", params: "" };
  return at(open, text, index) ? null : { length: 1, final: null, params: "" };
}

/** `style` after the parameters of an SGR escape ("1;31"). */
export function restyle(style, params) {
  if (!/^[\d;:]*$/.test(params)) return style;
  const parts = params.split(";");
  for (let i = 0; i < parts.length; i += 1) {
    const sub = parts[i].split(":").map(Number);
    const code = sub[0];
    if (code === 38 || code === 48) {
      const rest = sub.length > 1 ? sub.slice(1) : parts.slice(i + 1).map(Number);
      const [colour, used] = wideColour(rest, sub.length > 1);
      if (sub.length === 1) i += used;
      if (colour) style = withColour(style, code === 48, colour);
    } else style = one(style, code, sub[1]);
  }
  return style;
}

function one(style, code, detail) {
  if (code === 0) return 0;
  if (code === 4 && detail === 0) return style & ~UNDERLINE;
  if (SET[code]) return style | SET[code];
  if (UNSET[code]) return style & ~UNSET[code];
  if (code >= 30 && code <= 37) return withColour(style, false, code - 29);
  if (code === 39) return withColour(style, false, 0);
  if (code >= 40 && code <= 47) return withColour(style, true, code - 39);
  if (code === 49) return withColour(style, true, 0);
  if (code >= 90 && code <= 97) return withColour(style, false, code - 81);
  if (code >= 100 && code <= 107) return withColour(style, true, code - 91);
  return style;
}

function withColour(style, ground, colour) {
  const bit = ground ? GROUND_BIT : 0;
  return (style & ~(COLOUR << bit)) | (colour << bit);
}

/** [colour, how many parameters it took] of `5;n` or `2;r;g;b`; with colons there may be a colour space before r. */
function wideColour(rest, colons) {
  if (rest[0] === 5) return [indexed(rest[1]), 2];
  if (rest[0] === 2) {
    const [r, g, b] = rest.slice(colons && rest.length > 4 ? 2 : 1);
    return [nearest(r, g, b), 4];
  }
  return [0, 1];
}

function indexed(n) {
  if (!(n >= 0 && n < 256)) return 0;
  if (n < 16) return n + 1;
  if (n >= 232) return nearest(...Array(3).fill(8 + 10 * (n - 232)));
  const cube = n - 16;
  return nearest(CUBE[Math.floor(cube / 36)], CUBE[Math.floor(cube / 6) % 6], CUBE[cube % 6]);
}

/** The one of the sixteen that is nearest in hue, or in lightness if there is none; 0 when it is no colour. */
export function nearest(r, g, b) {
  if (![r, g, b].every((part) => part >= 0 && part < 256)) return 0;
  const most = Math.max(r, g, b);
  const spread = most - Math.min(r, g, b);
  if (spread < 32) return most < 64 ? 1 : most < 150 ? 9 : most < 230 ? 8 : 16;
  const turn = most === r ? (g - b) / spread : most === g ? 2 + (b - r) / spread : 4 + (r - g) / spread;
  const hue = (turn * 60 + 360) % 360;
  const colour = [[20, 2], [75, 4], [155, 3], [200, 7], [265, 5], [330, 6], [361, 2]].find(([end]) => hue < end)[1];
  return most > 215 ? colour + 8 : colour;
}

/** The classes (of log.css) that show `style`; empty for none. */
export function classes(style) {
  if (!style) return "";
  let text = style & COLOUR;
  let ground = (style >> GROUND_BIT) & COLOUR;
  const found = [];
  if (style & INVERSE) {
    [text, ground] = [ground, text];
    if (!ground) {
      found.push("a-inverse");
      text = 0;
    }
  }
  if (text) found.push(`a-t${text}`);
  else if (style & FAINT) found.push("a-faint");
  if (ground) found.push(`a-g${ground}`);
  if (style & BOLD) found.push("a-bold");
  if (style & ITALIC) found.push("a-italic");
  if (style & UNDERLINE) found.push("a-underline");
  if (style & STRUCK) found.push("a-struck");
  return found.join(" ");
}
