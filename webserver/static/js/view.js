// Puts objects of the API into elements: the one place where scripts write into a page. Everything goes in as text.

import { plain } from "./plain.js";
import { language, number, t } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const icons = new URL("../vendor/icons.svg", import.meta.url).pathname;

const STATE_ICONS = {
  waiting: "hourglass", delayed: "clock", ready: "hourglass", leased: "circle-dot", running: "loader",
  succeeded: "circle-check", failed: "circle-x", cancelled: "ban", paused: "circle-pause", skipped: "skip-forward",
  expired: "clock", buried: "inbox", online: "circle-check", offline: "wifi-off", draining: "circle-slash",
  conflict: "triangle-alert",
};
export const TASK_FINAL = new Set(["succeeded", "failed", "cancelled"]);
export const RUN_FINAL = new Set(["succeeded", "failed", "cancelled", "skipped", "expired"]);
const ORDER = ["succeeded", "failed", "cancelled", "skipped", "expired", "running", "leased", "ready", "delayed"];

/** A state in words. */
export function stateWord(state) {
  switch (state) {
    case "waiting": return t("waiting");
    case "delayed": return t("delayed");
    case "ready": return t("waiting");
    case "leased": return t("claimed");
    case "running": return t("running");
    case "succeeded": return t("succeeded");
    case "failed": return t("failed");
    case "cancelled": return t("cancelled");
    case "paused": return t("paused");
    case "skipped": return t("skipped");
    case "expired": return t("expired");
    case "buried": return t("buried");
    case "online": return t("online");
    case "offline": return t("offline");
    case "draining": return t("draining");
    case "conflict": return t("conflict");
    default: return state;
  }
}

/** Why an attempt ended, as said in a row; empty before its end. */
export function outcomeWords(run) {
  switch (run.outcome) {
    case null: case undefined: return "";
    case "exit": return t("exit code %(code)s", { code: run.exit_code });
    case "signal": return t("ended by %(signal)s", { signal: run.signal });
    case "timeout": return t("timed out");
    case "spawn_error": return t("could not be started");
    case "lost": return t("lost: its agent fell silent");
    case "interrupted": return t("interrupted");
    case "rebooted": return t("its host was restarted");
    case "output_limit": return t("wrote too much output");
    case "refused": return t("refused by the agent");
    default: return run.outcome;
  }
}

/** The state a task is shown in: a paused one that is not over is `paused`. */
export function shownState(task) {
  return task.paused && !TASK_FINAL.has(task.state) ? "paused" : task.state;
}

/** Set the text of `element`, or of what `selector` finds in it, if it differs. */
export function setText(element, text, selector) {
  const target = selector ? element?.querySelector(selector) : element;
  const shown = plain(text);
  // A time in it that ticks may say the same at this moment, and would tick on.
  if (target && (target.firstElementChild || target.textContent !== shown)) target.textContent = shown;
}

/** An icon of the sprite. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `${icons}#i-${name}`);
  svg.append(use);
  return svg;
}

/** Make an element: `el("a", {href: "/", class: "x"}, "text", child…)`. Texts are made plain. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    made.setAttribute(key, value === true ? "" : plain(value));
  }
  made.append(...children.filter((c) => c !== null && c !== undefined).map((c) => (c instanceof Node ? c : plain(c))));
  return made;
}

/** Show `state` in a badge that the template macro `badge` made. */
export function setBadge(badge, state) {
  if (!badge || badge.classList.contains(`s-${state}`)) return;
  badge.className = `badge s-${state}`;
  badge.replaceChildren(icon(STATE_ICONS[state] ?? "info"), el("span", {}, stateWord(state)));
}

/** A new badge. */
export function badge(state) {
  const made = el("span", { class: "badge", "data-f": "state" });
  setBadge(made, state);
  return made;
}

/** Draw the shares of a task's states into a bar that the template macro `progress` made. */
export function setProgress(svg, counts, total) {
  if (!svg) return;
  const rects = [];
  const words = [];
  let left = 0;
  for (const state of ORDER) {
    const n = counts[state] ?? 0;
    if (!n) continue;
    const width = (100 * n) / Math.max(1, total);
    const rect = document.createElementNS(SVG, "rect");
    for (const [key, value] of Object.entries({ class: `s-${state}`, x: left, y: 0, width, height: 1 })) rect.setAttribute(key, value);
    rects.push(rect);
    words.push(`${n} ${stateWord(state)}`);
    left += width;
  }
  svg.replaceChildren(...rects);
  svg.setAttribute("aria-label", words.join(", "));
}

/** Seconds in the two largest units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds > 0 && seconds < 0.9995) return t("%(n)s ms", { n: Math.max(1, Math.round(seconds * 1000)) });
  if (seconds < 10) return t("%(n)s s", { n: number(Math.round(Math.max(0, seconds) * 10) / 10) });
  const whole = Math.round(seconds);
  if (whole < 60) return t("%(n)s s", { n: whole });
  if (whole < 3600) {
    const m = Math.floor(whole / 60);
    return whole % 60 ? t("%(m)s min %(s)s s", { m, s: whole % 60 }) : t("%(m)s min", { m });
  }
  const minutes = Math.floor(whole / 60);
  const h = Math.floor(minutes / 60);
  if (whole < 86400) return minutes % 60 ? t("%(h)s h %(m)s min", { h, m: minutes % 60 }) : t("%(h)s h", { h });
  return h % 24 ? t("%(d)s d %(h)s h", { d: Math.floor(h / 24), h: h % 24 }) : t("%(d)s d", { d: Math.floor(h / 24) });
}

/** Bytes in binary units. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let n = bytes;
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  const digits = n < 10 && unit > 0 ? 1 : 0;
  return `${new Intl.NumberFormat(language, { maximumFractionDigits: digits }).format(n)} ${units[unit]}`;
}

// -- times ----------------------------------------------------------------------------------------------------------
// `<time datetime data-form>`: `ago` is relative and kept so, `clock` the local time of day, `full` date and time,
// `since` counts up from then (how long something has been running).

const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });
const full = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(language, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

function since(n, unit) {
  // Chinese as written everywhere else here: a space between digits and words.
  return relative.format(Math.round(n), unit).replace(/(\d)(?=\p{Script=Han})/u, "$1 ");
}

/** How long ago `when` was, in words. */
export function ago(when, now = Date.now()) {
  const seconds = (when - now) / 1000;
  const past = Math.abs(seconds);
  if (past < 3) return t("just now");
  if (past < 60) return since(seconds, "second");
  if (past < 3600) return since(seconds / 60, "minute");
  if (past < 86400) return since(seconds / 3600, "hour");
  if (past < 7 * 86400) return since(seconds / 86400, "day");
  return day.format(when);
}

function showTime(element, now) {
  const when = Date.parse(element.getAttribute("datetime"));
  if (Number.isNaN(when)) return;
  const form = element.dataset.form;
  const said = form === "full" ? full.format(when) : form === "clock" ? clock.format(when)
    : form === "since" ? duration(Math.max(0, Math.round((now - when) / 1000))) : ago(when, now);
  if (element.textContent !== said) element.textContent = said;
  if (!element.title) element.title = full.format(when);
}

/** Make the times below `root` local. */
export function showTimes(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[datetime]")) showTime(element, now);
}

/** A new `<time>` of an RFC 3339 moment; null for none. */
export function time(moment, form = "ago") {
  if (!moment) return null;
  const made = el("time", { datetime: moment, "data-form": form });
  showTime(made, Date.now());
  return made;
}

/** Have `slot` show words around a moment: `sentence` has `%(time)s` where it stands. Nothing without a moment. */
export function setTimeWords(slot, sentence, moment) {
  if (!slot) return;
  if (!moment) return slot.replaceChildren();
  const [before, behind] = sentence.split("%(time)s");
  const there = slot.querySelector("time");
  if (there?.getAttribute("datetime") === moment && slot.textContent === before + there.textContent + behind) return;
  slot.replaceChildren(before, time(moment), behind);
}

/** Have `slot` show the moment (or nothing). */
export function setTime(slot, moment, form = "ago") {
  if (!slot) return;
  const there = slot.querySelector("time");
  if (there && moment && there.getAttribute("datetime") === moment && there.dataset.form === form) return;
  slot.replaceChildren(...[time(moment, form)].filter(Boolean));
}
