// The script of the form: an editor that keeps every byte, a file that is uploaded or dropped, and line ends to be mended.
//
// The document of the editor is split at "\n" only, so a "\r" stays in its line, where it is shown as a mark. What is not
// UTF-8 text is kept as bytes beside the editor. So what is sent is what was pasted or uploaded, unless somebody edits it.

import { createEditor } from "../vendor/codemirror.js";
import { notice } from "./notices.js";
import { plain } from "./plain.js";
import { setText, size } from "./view.js";
import { t, tn } from "./words.js";

const SHOWN_BYTES = 4000;
const LOOK_MS = 150;
const byId = (id) => document.getElementById(id);

/** The bytes in base64. */
export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

/** The bytes of base64. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

/** The bytes as text, or null when they are not UTF-8; a byte-order mark stays. */
function asText(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** Which highlighting suits the interpreter that was chosen, or the first line. */
function languageOf(interpreter, other, text) {
  const first = text.slice(0, 200).split("\n", 1)[0];
  const said = interpreter === "other" ? other : interpreter || (first.startsWith("#!") ? first : "sh");
  if (/python/.test(said)) return "python";
  return /\b(ba|da|z|k|a)?sh\b/.test(said) ? "shell" : "text";
}

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// CodeMirror's own words, where a person meets them.
function phrases() {
  return {
    Find: t("Find"), Replace: t("Replace"), next: t("next"), previous: t("previous"), all: t("all"),
    "match case": t("match case"), regexp: t("regular expression"), "by word": t("whole words"), replace: t("replace"),
    "replace all": t("replace all"), close: t("close"), "Go to line": t("Go to line"), go: t("go"),
    "Control character": t("Control character"), "current match": t("current match"), "on line": t("on line"),
    "replaced match on line $": t("replaced match on line $"), "replaced $ matches": t("replaced $ matches"),
    "Selection deleted": t("Selection deleted"),
  };
}

/** Make the editor of `form`; `changed` is called after every change. */
export function scriptField(form, changed) {
  const limit = Number(form.dataset.maxScript);
  const interpreter = form.elements.interpreter;
  const other = form.elements.interpreter_other;
  const file = byId("file");
  const area = byId("script");
  let binary = null; // bytes that are no text
  let fileName = "";
  let timer = 0;

  byId("editor").hidden = false;
  const editor = createEditor({
    parent: byId("editor"),
    dark: isDark(),
    nonce: document.querySelector("meta[name=nonce]").content,
    label: t("Script"),
    leaveHint: t("Press Escape, then Tab, to leave the editor."),
    phrases: phrases(),
    onChange: () => look(),
  });
  area.remove();
  const { view } = editor;

  /** Text as a document whose lines keep their "\r". */
  const lines = (text) => view.state.doc.constructor.of(text.split("\n"));

  const getText = () => view.state.doc.toString();

  function setDocument(text) {
    view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: lines(text) }, selection: { anchor: 0 } });
  }

  /** What follows from the text, soon. */
  function look() {
    clearTimeout(timer);
    timer = setTimeout(lookNow, LOOK_MS);
  }

  function lookNow() {
    const text = binary ? "" : getText();
    editor.setLanguage(languageOf(interpreter.value, other.value, text));
    showMend(text);
    changed();
  }

  function showMend(text) {
    const crlf = (text.match(/\r\n/g) ?? []).length;
    const bare = (text.match(/\r(?!\n)/g) ?? []).length;
    const newlines = (text.match(/\n/g) ?? []).length;
    const bom = text.startsWith("\ufeff");
    const found = [];
    if (crlf && crlf === newlines && !bare) found.push(t("The lines end with CRLF, as on Windows: shells stumble over that."));
    else if (crlf || bare) found.push(tn("%(n)s line ends with CR or CRLF, others do not.", "%(n)s lines end with CR or CRLF, others do not.", crlf + bare));
    if (bom) found.push(t("A byte-order mark at the start hides the first line (#!)."));
    const box = byId("mend");
    box.hidden = found.length === 0;
    const said = found.join(" ");
    if (box.querySelector("span").textContent !== said) box.querySelector("span").textContent = said;
    box.querySelector("button").textContent = crlf || bare ? t("Convert to \\n line ends") : t("Remove the byte-order mark");
  }

  function mend() {
    setDocument(getText().replace(/^\ufeff/, "").replace(/\r\n?/g, "\n"));
    lookNow();
    editor.focus();
  }

  function show() {
    byId("editor").hidden = binary !== null;
    byId("binary").hidden = binary === null;
    if (binary) byId("binary").querySelector("pre").textContent = plain(new TextDecoder().decode(binary.subarray(0, SHOWN_BYTES)));
    byId("file-line").hidden = !fileName && !binary;
    setText(byId("file-name"), fileName || t("Script that is not text"));
    setText(byId("file-size"), binary ? size(binary.length) : "");
  }

  /** Take these bytes as the script. */
  function setBytes(bytes, name = "") {
    const text = asText(bytes);
    binary = text === null ? bytes : null;
    fileName = name;
    setDocument(text ?? "");
    show();
    lookNow();
  }

  async function load(chosen) {
    if (chosen.size > limit) {
      notice(t("%(name)s has %(size)s; at most %(most)s are accepted.", { name: chosen.name, size: size(chosen.size), most: size(limit) }));
      return;
    }
    setBytes(new Uint8Array(await chosen.arrayBuffer()), chosen.name);
  }

  file.addEventListener("change", async () => {
    if (file.files[0]) await load(file.files[0]);
    file.value = "";
  });
  byId("upload").addEventListener("click", () => file.click());
  byId("file-remove").addEventListener("click", () => {
    setBytes(new Uint8Array());
    editor.focus();
  });
  byId("mend").querySelector("button").addEventListener("click", mend);

  // Anywhere on the page: a file that misses the editor would be opened by the browser in place of the form.
  const card = byId("script-card");
  const carriesFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    card.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || card.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    card.classList.remove("dropping");
    if (!carriesFile(event)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.dataTransfer.files[0]) load(event.dataTransfer.files[0]);
  }, true);
  view.dom.addEventListener("paste", (event) => {
    const pasted = event.clipboardData?.getData("text/plain") ?? "";
    if (event.target.closest(".cm-panel") || !pasted.includes("\r")) return; // CodeMirror would take every "\r" for a line end
    event.preventDefault();
    event.stopPropagation();
    view.dispatch({ ...view.state.replaceSelection(lines(pasted)), userEvent: "input.paste", scrollIntoView: true });
  }, true);

  function interpreterChanged() {
    byId("other-line").hidden = interpreter.value !== "other";
    look();
  }
  interpreter.addEventListener("change", interpreterChanged);
  other.addEventListener("input", look);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => editor.setDark(isDark()));

  setBytes(fromBase64(form.elements.script_base64.value));
  interpreterChanged();
  return {
    bytes: () => binary ?? new TextEncoder().encode(getText()),
    setBytes,
    interpreterChanged,
    get fileName() { return fileName; },
    focus: () => (binary ? byId("upload").focus() : editor.focus()),
    invalid: (message) => {
      view.contentDOM.toggleAttribute("aria-invalid", Boolean(message));
      if (message) view.contentDOM.setAttribute("aria-invalid", "true");
    },
  };
}
