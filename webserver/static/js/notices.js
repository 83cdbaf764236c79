// Short words at the edge of the page, read out by screen readers, gone after a while.

import { el } from "./view.js";

const SHOWN_MS = 7000;

/** Show `text`. */
export function notice(text) {
  const place = document.getElementById("notices");
  const made = el("p", { class: "notice" }, text);
  place.append(made);
  setTimeout(() => made.remove(), SHOWN_MS);
  while (place.children.length > 4) place.firstElementChild.remove();
}
