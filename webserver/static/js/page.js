// What every page does: the menu of narrow screens, local times, notices, copying, and asking before what cannot be undone.

import { notice } from "./notices.js";
import { el, showTimes } from "./view.js";
import { t } from "./words.js";

const TICK_MS = 1000;

function menu() {
  const button = document.querySelector(".menu-button");
  if (!button) return;
  const side = button.closest(".side");
  const set = (open) => {
    side.classList.toggle("open", open);
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => set(!side.classList.contains("open")));
  side.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && side.classList.contains("open")) {
      set(false);
      button.focus();
    }
  });
}

async function copy(button) {
  const source = document.querySelector(button.dataset.copy);
  const text = source.value ?? source.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without HTTPS a browser has no clipboard for pages: select the text instead.
    const area = el("textarea", { class: "unseen", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) {
      getSelection().selectAllChildren(source);
      return;
    }
  }
  notice(t("Copied."));
}

/** Ask in a dialog; resolves to whether the person agreed. */
export function ask(question, { agree = t("Yes"), refuse = t("No"), danger = false } = {}) {
  return new Promise((resolve) => {
    const yes = el("button", { type: "submit", value: "yes", class: danger ? "danger full" : false }, agree);
    const no = el("button", { type: "submit", value: "no", class: "secondary", autofocus: true }, refuse);
    const words = el("p", { id: "question" }, question);
    const form = el("form", { method: "dialog" }, el("footer", {}, no, yes));
    const dialog = el("dialog", { "aria-labelledby": "question" }, el("article", {}, words, form));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** `data-confirm="question"` on a button or form: it goes on only when the person agrees. */
function confirming() {
  const agreed = new WeakSet();
  document.addEventListener(
    "click",
    async (event) => {
      const button = event.target.closest?.("button[data-confirm]");
      if (!button || agreed.has(button)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      const yes = await ask(button.dataset.confirm, {
        agree: button.dataset.agree ?? t("Yes"),
        refuse: button.dataset.refuse ?? t("No"),
        danger: button.classList.contains("danger"),
      });
      button.focus();
      if (!yes) return;
      agreed.add(button);
      button.click();
      agreed.delete(button);
    },
    true,
  );
}

/** A button whose request came to nothing must not look as if it had done something. */
function sayingWhatFailed() {
  const changes = (event) => event.detail.ctx && event.detail.ctx.request?.method !== "GET";
  document.addEventListener("htmx:error", (event) => {
    if (changes(event)) notice(t("Nothing was done: the server cannot be reached. Try again."));
  });
  document.addEventListener("htmx:response:error", (event) => {
    if (!changes(event)) return;
    const answer = event.detail.ctx.response;
    const told = answer.raw?.headers.get("HX-Trigger") || (answer.raw?.headers.get("Content-Type") ?? "").startsWith("text/html");
    if (!told) notice(t("Nothing was done: the server answered with the error %(status)s.", { status: answer.status }));
  });
}

/** The way in, open in one tab, goes on by itself when another tab has logged in. */
function awaitingLogin() {
  if (!document.querySelector("[data-awaits-login]")) return;
  addEventListener("focus", async () => {
    const answer = await fetch(location.href, { method: "HEAD", redirect: "manual", cache: "no-store" }).catch(() => null);
    if (answer?.type === "opaqueredirect") location.reload();
  });
}

/** What a person had typed does not stay in the browser for whoever logs in next. */
function forgettingDrafts() {
  document.querySelector("form[action='/logout']")?.addEventListener("submit", () => {
    for (const key of Object.keys(sessionStorage)) if (key.startsWith("muster:draft:")) sessionStorage.removeItem(key);
  });
}

/** Links that look like buttons are pressed by the space bar, too. */
function linksAsButtons() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== " " || !event.target.matches?.("a[role=button]")) return;
    event.preventDefault();
    event.target.click();
  });
}

menu();
forgettingDrafts();
linksAsButtons();
confirming();
sayingWhatFailed();
awaitingLogin();
showTimes();
setInterval(() => document.hidden || showTimes(), TICK_MS);
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copy(button);
});
document.addEventListener("muster:notice", (event) => notice(event.detail.text));
document.addEventListener("htmx:after:swap", () => showTimes());
setTimeout(() => document.querySelectorAll("#notices > .notice").forEach((each) => each.remove()), 7000);
