// The page about the API: finding calls by words, and which call of the contents is being read.

import { tn } from "./words.js";

const find = document.getElementById("find");
const calls = [...document.querySelectorAll(".call[data-words]")];
const inContents = (id) => document.querySelectorAll(`.contents [data-call="${id}"]`);

function show() {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const call of calls) {
    const fits = words.every((word) => call.dataset.words.includes(word));
    call.hidden = !fits;
    for (const entry of inContents(call.id)) entry.hidden = !fits;
    shown += fits ? 1 : 0;
  }
  for (const chapter of document.querySelectorAll(".chapter[data-chapter]")) {
    const empty = !chapter.querySelector(".call:not([hidden])");
    chapter.hidden = empty;
    for (const entry of document.querySelectorAll(`.contents [data-chapter="${chapter.dataset.chapter}"]`)) entry.hidden = empty;
  }
  document.getElementById("nothing").hidden = shown > 0;
  document.getElementById("found").textContent = words.length ? tn("%(n)s call", "%(n)s calls", shown) : "";
}

/** Mark the call whose panel is the first one in sight. */
function follow() {
  const seen = new Set();
  const mark = (entries) => {
    for (const entry of entries) entry.isIntersecting ? seen.add(entry.target) : seen.delete(entry.target);
    const first = calls.find((call) => seen.has(call));
    for (const link of document.querySelectorAll(".contents [aria-current]")) link.removeAttribute("aria-current");
    if (!first) return;
    for (const entry of inContents(first.id)) {
      const link = entry.querySelector("a");
      link.setAttribute("aria-current", "true");
      const list = link.closest("nav.wide");
      if (list && (link.offsetTop < list.scrollTop || link.offsetTop > list.scrollTop + list.clientHeight - 40))
        list.scrollTop = link.offsetTop - list.clientHeight / 2;
    }
  };
  const watch = new IntersectionObserver(mark, { rootMargin: "-60px 0px -40% 0px" });
  for (const call of calls) watch.observe(call);
}

find.closest("label").hidden = false;
find.addEventListener("input", show);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  find.focus();
});
// A link to a call that is filtered away shows it all the same; one in the narrow contents closes them.
addEventListener("hashchange", () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.closest("[hidden]")) {
    find.value = "";
    show();
    target.scrollIntoView();
  }
});
document.querySelector(".narrow-contents").addEventListener("click", (event) => {
  if (event.target.closest("a")) event.currentTarget.open = false;
});
if (find.value) show();
follow();
