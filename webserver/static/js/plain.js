// Untrusted text made plain; the same rules as webserver/plain.py.

const UNSEEN = /[\u0080-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f]/g;

/** `text` with control characters, invisible ones and direction marks shown. */
export function plain(text) {
  return String(text ?? "")
    .replace(CONTROLS, (c) => (c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))))
    .replace(UNSEEN, (c) => `\u27e6${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e7`);
}
