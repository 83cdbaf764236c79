// The page's one stream of events. Closed while the page is hidden; resumed from the last event, so nothing is missed and
// nothing comes twice. `reset` (what was missed cannot be told any more) loads the page anew; `away` and `back` tell of the master.

import { notice } from "./notices.js";
import { language, t } from "./words.js";

const RETRY_LEAST_MS = 1000;
const RETRY_MOST_MS = 30000;
const LOST_AFTER_MS = 5000;

let lostTimer = 0;

function show(state) {
  const mark = document.getElementById("live");
  if (!mark || mark.dataset.state === state) return;
  if (state === "trying" && mark.dataset.state === "lost") return;
  mark.dataset.state = state;
  const time = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit" }).format(Date.now());
  const words = { open: t("live"), trying: t("connecting…"), closed: t("not live"), lost: t("not connected since %(time)s: this may be old", { time }) };
  mark.querySelector("span").textContent = words[state];
  clearTimeout(lostTimer);
  if (state === "trying") lostTimer = setTimeout(() => show("lost"), LOST_AFTER_MS);
}

/**
 * Follow the events at `path`, from `after` (an event's id, or null for a fresh start).
 * `on` maps kinds (`task`, `run`, `agent`, `output`, `reset`) to functions of the parsed object and the event's id, which
 * is "0" in a snapshot but for its last event.
 * `mark: false` leaves the page's live mark alone (for a second stream). Answers {close()}.
 */
export function follow(path, after, on, { mark = true } = {}) {
  let source = null;
  let last = after;
  let closed = false;
  let retry = RETRY_LEAST_MS;
  let timer = 0;
  const said = (state) => mark && show(state);

  function take(event) {
    if (event.lastEventId && event.lastEventId !== "0") last = event.lastEventId;
    retry = RETRY_LEAST_MS;
    if (event.type === "reset") {
      if (on.reset) on.reset();
      else reload();
      return;
    }
    on[event.type]?.(JSON.parse(event.data), event.lastEventId);
  }

  function open() {
    clearTimeout(timer);
    if (closed || source || document.hidden) return;
    said("trying");
    const url = new URL(path, location.origin);
    if (last) url.searchParams.set("after", last);
    source = new EventSource(url);
    source.onopen = () => said("open");
    source.onerror = () => {
      said("trying");
      // A browser tries again by itself unless it was refused; then it is for us, at growing intervals.
      if (source?.readyState === EventSource.CLOSED) {
        shut();
        sayIfLoggedOut();
        timer = setTimeout(open, retry * (0.75 + Math.random() / 2));
        retry = Math.min(retry * 2, RETRY_MOST_MS);
      }
    };
    // The stream is there, but what it is made from is not.
    source.addEventListener("away", () => said("lost"));
    source.addEventListener("back", () => said("open"));
    for (const kind of ["task", "run", "agent", "output", "reset"]) if (on[kind] || kind === "reset") source.addEventListener(kind, take);
  }

  function shut() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function seen() {
    if (document.hidden) {
      shut();
      said("closed");
    } else open();
  }

  document.addEventListener("visibilitychange", seen);
  addEventListener("pagehide", shut);
  addEventListener("pageshow", open);
  open();
  return {
    close() {
      closed = true;
      shut();
      document.removeEventListener("visibilitychange", seen);
      removeEventListener("pagehide", shut);
      removeEventListener("pageshow", open);
    },
  };
}

let saidSo = false;

/** A refused stream does not tell why; a page that leads to the way in does. */
async function sayIfLoggedOut() {
  if (saidSo) return;
  try {
    const answer = await fetch(location.pathname, { method: "HEAD", redirect: "manual", cache: "no-store" });
    if (answer.type !== "opaqueredirect") return;
  } catch {
    return;
  }
  saidSo = true;
  notice(t("You are logged out here: load the page to log in again."));
}

/** Load the page anew, but not again and again. */
function reload() {
  const before = Number(sessionStorage.getItem("muster:reloaded") ?? 0);
  if (Date.now() - before < 5000) {
    notice(t("This page could not be kept up to date: load it again."));
    return;
  }
  sessionStorage.setItem("muster:reloaded", String(Date.now()));
  location.reload();
}
