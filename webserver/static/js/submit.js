// The page /submit: one form whose script and hosts are kept by submit_script.js and submit_targets.js. Says the plan back,
// shows the form as commands, sends it without leaving the page before it is accepted, and keeps what was typed in this tab.

import { notice } from "./notices.js";
import { fromBase64, scriptField, toBase64 } from "./submit_script.js";
import { targetList } from "./submit_targets.js";
import { el, icon } from "./view.js";
import { t } from "./words.js";

const PLAN_MS = 300;
const PLAN_AFTER_HOST_MS = 1500;
const DRAFT_MS = 400;
const EXACT = new Set(["csrf", "key", "start", "script", "script_base64", "file", "target", "more_targets", "as"]);
const byId = (id) => document.getElementById(id);
const form = byId("submit");
const draftKey = `muster:draft:${location.pathname}${location.search}`;
let ready = false;
let sending = false;

for (const element of document.querySelectorAll(".scripted-only")) element.hidden = false;
document.documentElement.classList.add("scripted");

// -- what is sent ---------------------------------------------------------------------------------------------------

form.addEventListener("formdata", (event) => {
  const sent = event.formData;
  for (const name of ["script", "file", "more_targets", "target"]) sent.delete(name);
  for (const name of targets.chosen()) sent.append("target", name);
  sent.set("script_base64", withScript ? toBase64(script.bytes()) : "");
});
let withScript = true;

function formData(full) {
  withScript = full;
  try {
    return new FormData(form);
  } finally {
    withScript = true;
  }
}

/** Post to a page address and get the part it answers; throws when there is no answer. */
function post(path, body, signal) {
  const headers = { "HX-Request": "true", "X-Csrf-Token": document.querySelector("meta[name=csrf]").content };
  return fetch(path, { method: "POST", body, headers, signal, redirect: "error" });
}

/** Put a part of ours into the page. */
function put(place, html) {
  const made = document.createElement("template");
  made.innerHTML = html;
  place.replaceChildren(made.content);
}

/** What a refusal without a part says. */
function refusal(answer) {
  try {
    return JSON.parse(answer.headers.get("HX-Trigger"))["muster:notice"].text;
  } catch {
    return t("The server answered with an error (%(status)s).", { status: answer.status });
  }
}

/** Log in again, then come back: what was typed is kept in this tab. */
function logIn() {
  saveDraft();
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
}

// -- the plan -------------------------------------------------------------------------------------------------------

let planTimer = 0;
let planAsked = null;

function planSoon(after = PLAN_MS) {
  clearTimeout(planTimer);
  planTimer = setTimeout(sayPlan, after);
}

async function sayPlan() {
  planAsked?.abort();
  planAsked = new AbortController();
  const place = byId("plan");
  try {
    const answer = await post("/submit/plan", formData(false), planAsked.signal);
    if (answer.status === 401) return;
    const said = answer.ok ? await answer.text() : "";
    if (answer.ok) put(place, said);
    else place.replaceChildren(el("p", { class: "muted" }, refusal(answer)));
  } catch (error) {
    if (error.name !== "AbortError") place.replaceChildren(el("p", { class: "muted" }, t("The plan cannot be told now: the server cannot be reached.")));
  }
}

// -- faults ---------------------------------------------------------------------------------------------------------

function unmark(element) {
  element.removeAttribute("aria-invalid");
  const left = (element.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => id && !id.endsWith("-fault"));
  if (left.length) element.setAttribute("aria-describedby", left.join(" "));
  else element.removeAttribute("aria-describedby");
}

function clearFaults() {
  byId("faults").replaceChildren();
  for (const element of form.querySelectorAll("small.fault")) element.remove();
  for (const element of form.querySelectorAll("[aria-invalid], fieldset[aria-describedby]")) unmark(element);
  script.invalid("");
}

/** The field was changed: what was wrong with it is told no longer; nor is what was wrong with no field of its own. */
function mended(name) {
  const list = [...byId("faults").querySelectorAll("[data-fault]")];
  if (!byId("faults").childElementCount) return;
  byId(`${name}-fault`)?.remove();
  const field = byId(name);
  for (const element of [field, ...(field?.querySelectorAll("[aria-invalid]") ?? [])]) if (element) unmark(element);
  if (name === "script") script.invalid("");
  const left = list.filter((item) => item.dataset.fault && item.dataset.fault !== name);
  for (const item of list) if (!left.includes(item)) item.remove();
  if (!left.length) byId("faults").replaceChildren();
}

/** Which fault a change of this field may mend. */
function faultsOf(name) {
  if (name === "env_name" || name === "env_value") return ["env"];
  if (name === "interpreter") return ["interpreter_other"];
  if (name === "where" || name === "among") return ["count", "targets"];
  if (name === "target") return ["targets"];
  return [name];
}

function markFault(name, message) {
  const said = el("small", { class: "fault", id: `${name}-fault` }, icon("circle-alert"), message);
  if (name === "script") {
    script.invalid(message);
    byId("editor").after(said);
    return;
  }
  const field = byId(name);
  if (!field) return;
  if (field instanceof HTMLFieldSetElement) {
    field.append(said);
    field.setAttribute("aria-describedby", said.id);
    if (name === "env") for (const input of field.querySelectorAll("[name=env_name]")) if (input.value) input.setAttribute("aria-invalid", "true");
    return;
  }
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", [said.id, field.getAttribute("aria-describedby")].filter(Boolean).join(" "));
  (field.id === "count" ? field.closest("fieldset") : field).after(said);
  const hidden = field.closest("details");
  if (hidden) hidden.open = true;
}

let refusedScript = ""; // which one a fault is about

function showFaults(html) {
  clearFaults();
  refusedScript = toBase64(script.bytes());
  put(byId("faults"), html);
  const list = byId("faults").querySelector("[data-key]");
  if (list) form.elements.key.value = list.dataset.key;
  for (const item of byId("faults").querySelectorAll("[data-fault]")) if (item.dataset.fault) markFault(item.dataset.fault, item.dataset.message);
  byId("faults").focus();
  byId("faults").scrollIntoView({ block: "center" });
}

function showTrouble(message) {
  clearFaults();
  byId("faults").replaceChildren(el("section", { class: "alert", role: "alert" }, icon("circle-alert"), el("p", {}, message)));
  byId("faults").focus();
  byId("faults").scrollIntoView({ block: "center" });
}

function focusField(name) {
  if (name === "script") script.focus();
  else if (name === "targets") targets.focus();
  else if (name === "env") (byId("env").querySelector("[aria-invalid]") ?? byId("env").querySelector("input")).focus();
  else byId(name)?.focus();
}

byId("faults").addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (!link) return;
  event.preventDefault();
  focusField(link.getAttribute("href").slice(1));
});

// -- sending, and showing as commands -------------------------------------------------------------------------------

async function send() {
  if (sending) return;
  sending = true;
  const button = byId("send");
  button.setAttribute("aria-busy", "true");
  button.setAttribute("aria-disabled", "true");
  try {
    const answer = await post("/submit", formData(true));
    const next = answer.headers.get("HX-Redirect");
    if (answer.status === 401) logIn();
    else if (answer.ok && next) {
      dropDraft();
      location.assign(next);
      return; // stays sending: a second click must not send again
    } else if (answer.headers.has("HX-Trigger")) showTrouble(refusal(answer));
    else showFaults(await answer.text());
  } catch {
    showTrouble(t("The server cannot be reached. Nothing you typed is lost: send it again in a moment; it makes one task only."));
  }
  sending = false;
  button.removeAttribute("aria-busy");
  button.removeAttribute("aria-disabled");
}

async function showCommands(kind) {
  const body = formData(true);
  body.set("as", kind);
  try {
    const answer = await post("/submit/commands", body);
    if (answer.status === 401) logIn();
    else if (answer.ok) {
      clearFaults();
      put(byId("commands"), await answer.text());
      for (const element of byId("commands").querySelectorAll(".scripted-only")) element.hidden = false;
      byId("command-panel").focus();
      byId("command-panel").scrollIntoView({ block: "nearest" });
    } else if (answer.headers.has("HX-Trigger")) showTrouble(refusal(answer));
    else showFaults(await answer.text());
  } catch {
    notice(t("The server cannot be reached."));
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.submitter?.name === "as") showCommands(event.submitter.value);
  else send();
});
byId("commands").addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) byId("commands").replaceChildren();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
  event.preventDefault();
  event.stopPropagation();
  send();
}, true);
// Enter in a line of text is not yet "submit": too much happens by it.
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("input:not([type=checkbox], [type=radio])")) event.preventDefault();
});

// -- variables ------------------------------------------------------------------------------------------------------

const rows = form.querySelector(".env-rows");
const blankRow = rows.lastElementChild.cloneNode(true);

function addRow(name = "", value = "") {
  const row = blankRow.cloneNode(true);
  row.querySelector("[name=env_name]").value = name;
  row.querySelector("[name=env_value]").value = value;
  rows.append(row);
  return row;
}

byId("env-add").addEventListener("click", () => addRow().querySelector("input").focus());
rows.addEventListener("click", (event) => {
  const button = event.target.closest("[data-remove]");
  if (!button) return;
  const row = button.closest(".env-row");
  const near = row.nextElementSibling ?? row.previousElementSibling;
  row.remove();
  (near ?? addRow()).querySelector("input").focus();
  mended("env");
  touched();
});

// -- the draft ------------------------------------------------------------------------------------------------------

let draftTimer = 0;

function draft() {
  const texts = {};
  for (const [name, value] of formData(false)) if (!EXACT.has(name) && !name.startsWith("env_")) texts[name] = value;
  const env = [...rows.children].map((row) => [row.querySelector("[name=env_name]").value, row.querySelector("[name=env_value]").value]);
  return { texts, env: env.filter(([name, value]) => name || value), targets: targets.chosen(), script: toBase64(script.bytes()), file: script.fileName, start: form.elements.start.value };
}

function saveDraft() {
  clearTimeout(draftTimer);
  if (!ready || sending) return;
  const now = draft();
  try {
    sessionStorage.setItem(draftKey, JSON.stringify(now));
  } catch {
    // A very large script does not fit: keep the rest.
    sessionStorage.setItem(draftKey, JSON.stringify({ ...now, script: null }));
  }
}

function dropDraft() {
  clearTimeout(draftTimer);
  ready = false;
  sessionStorage.removeItem(draftKey);
}

function restoreDraft() {
  const kept = sessionStorage.getItem(draftKey);
  if (!kept || "fresh" in form.dataset) return;
  const before = JSON.parse(kept);
  for (const [name, value] of Object.entries(before.texts)) if (form.elements[name]) form.elements[name].value = value;
  rows.replaceChildren();
  for (const [name, value] of before.env) addRow(name, value);
  addRow();
  form.elements.start.value = before.start;
  targets.choose(before.targets);
  if (before.script !== null) script.setBytes(fromBase64(before.script), before.file);
  script.interpreterChanged();
  notice(t("What you had typed here is back. Clear begins anew."));
}

byId("clear").addEventListener("click", () => {
  dropDraft();
  location.assign(location.pathname + location.search);
});
// A page that was sent and comes back from the browser's memory must not send the same once more.
addEventListener("pageshow", (event) => event.persisted && sending && location.reload());
addEventListener("pagehide", () => document.body.dataset.touched && saveDraft());

// -- all together ---------------------------------------------------------------------------------------------------

function touched() {
  if (!ready) return;
  document.body.dataset.touched = "yes";
  planSoon();
  clearTimeout(draftTimer);
  draftTimer = setTimeout(saveDraft, DRAFT_MS);
}

function whereChanged() {
  const any = form.elements.where.value === "any";
  form.classList.toggle("any", any);
  form.elements.count.disabled = false;
}

const targets = targetList(form, (why) => {
  if (why !== "choice") return ready && planSoon(PLAN_AFTER_HOST_MS);
  if (ready) mended("targets");
  return touched();
});
const script = scriptField(form, () => {
  if (ready && byId("faults").childElementCount && toBase64(script.bytes()) !== refusedScript) mended("script");
  touched();
});
form.addEventListener("input", (event) => {
  if (event.target.name && event.target.name !== "file") for (const name of faultsOf(event.target.name)) mended(name);
  touched();
});
form.addEventListener("change", (event) => {
  if (["count", "among"].includes(event.target.name)) form.elements.where.value = "any";
  whereChanged();
  touched();
});
restoreDraft();
whereChanged();
refusedScript = toBase64(script.bytes());
ready = true;
sayPlan();
if (byId("faults").childElementCount) byId("faults").focus();
