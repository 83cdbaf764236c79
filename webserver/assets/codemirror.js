// The script editor of the pages: CodeMirror 6 with what a shell or Python script needs, behind one function.
// Promises: no style or script the content policy would refuse (pass the page's nonce), and a Tab key that can leave.
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import {
  bracketMatching, HighlightStyle, indentOnInput, indentUnit, StreamLanguage, syntaxHighlighting,
} from "@codemirror/language";
import { python } from "@codemirror/legacy-modes/mode/python";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState } from "@codemirror/state";
import {
  EditorView, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap, lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import colours from "./editor-colours.json";

export { EditorState, EditorView };

const LANGUAGES = {
  shell: StreamLanguage.define(shell),
  python: StreamLanguage.define(python),
  text: [],
};

// Long enough that nobody has to hurry; any other key ends it at once.
const TAB_LEAVES_MS = 600_000;

// The bidirectional embeddings CodeMirror does not mark by itself: they can make a script read otherwise than it runs.
const MORE_SPECIAL_CHARACTERS = /[\u202a-\u202c\u2068]/;

// A page may set --editor-NAME itself; otherwise the colour measured for the theme is taken.
const colour = (theme, name) => `var(--editor-${name}, ${colours[theme][name]})`;

function look(theme) {
  const of = (name) => colour(theme, name);
  const border = `1px solid ${of("muted")}`;
  const marked = { backgroundColor: of("match") };
  return EditorView.theme({
    "&": { color: of("text"), backgroundColor: of("background") },
    "&.cm-focused": { outline: `2px solid ${of("caret")}` },
    ".cm-content": { caretColor: of("caret") },
    ".cm-scroller": { fontFamily: "var(--editor-font, ui-monospace, Menlo, Consolas, monospace)", lineHeight: "1.5" },
    ".cm-gutters": { color: of("muted"), backgroundColor: of("background"), borderRight: border },
    ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: of("line") },
    ".cm-content ::selection, .cm-line::selection": { backgroundColor: of("selection") },
    ".cm-searchMatch, .cm-selectionMatch": marked,
    ".cm-searchMatch.cm-searchMatch-selected": { ...marked, outline: `2px solid ${of("caret")}` },
    "&.cm-focused .cm-matchingBracket": { ...marked, outline: border },
    "&.cm-focused .cm-nonmatchingBracket": { color: of("wrong"), backgroundColor: "transparent", outline: border },
    ".cm-specialChar": { color: of("wrong"), outline: `1px dotted ${of("wrong")}` },
    ".cm-panels": { color: of("text"), backgroundColor: of("line"), borderColor: of("muted") },
    // The panel's fields are small ones in a row, whatever the page says about fields and buttons.
    ".cm-panel.cm-search, .cm-panel.cm-dialog": { padding: "4px 32px 4px 8px" },
    ".cm-panel input:not([type=checkbox]), .cm-panel button:not([name=close])": {
      display: "inline-block", width: "auto", height: "auto", margin: "2px 6px 2px 0", padding: "4px 8px",
      font: "inherit", fontSize: "0.875rem", lineHeight: "1.4", color: of("text"), backgroundColor: of("background"),
      backgroundImage: "none", border, borderRadius: "4px",
    },
    ".cm-panel input[type=checkbox]": { width: "1em", height: "1em", margin: "0 4px 0 0" },
    ".cm-panel label": { display: "inline-block", width: "auto", margin: "2px 8px 2px 0", fontSize: "0.875rem" },
    ".cm-panel button[name=close]": {
      width: "auto", minWidth: "24px", minHeight: "24px", color: of("text"), boxShadow: "none",
    },
  }, { dark: theme === "dark" });
}

function highlighting(theme) {
  const of = (name, ...which) => ({ tag: which, color: colour(theme, name) });
  return syntaxHighlighting(HighlightStyle.define([
    of("keyword", tags.keyword, tags.controlKeyword, tags.operatorKeyword),
    of("string", tags.string, tags.special(tags.string), tags.regexp, tags.escape, tags.quote),
    of("number", tags.number, tags.bool, tags.null, tags.atom),
    of("builtin", tags.standard(tags.variableName), tags.standard(tags.name), tags.typeName),
    of("definition", tags.definition(tags.variableName), tags.function(tags.variableName), tags.className),
    of("variable", tags.special(tags.variableName), tags.attributeName, tags.propertyName),
    of("meta", tags.meta, tags.processingInstruction, tags.annotation),
    of("wrong", tags.invalid),
    { tag: tags.comment, color: colour(theme, "muted"), fontStyle: "italic" },
  ], { themeType: theme }));
}

const THEMES = { light: [look("light"), highlighting("light")], dark: [look("dark"), highlighting("dark")] };

const keys = keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, indentWithTab]);

// Escape, then Tab or Shift-Tab, moves the focus out of the editor (as Ctrl-M, then Tab, does by CodeMirror's own keys).
const escapeFreesTab = EditorView.domEventObservers({
  keyup(event, view) {
    if (event.key === "Escape") view.setTabFocusMode(TAB_LEAVES_MS);
  },
});

/**
 * Makes an editor inside `parent` and returns {view, setLanguage, setDark, getText, setText, focus}.
 *
 * language: "shell", "python" or "text" (anything else counts as "text"); label: what the editor is called;
 * leaveHint: how to leave it by keyboard, said after the label; phrases: {English: translated} for CodeMirror's own
 * words (search panel, announcements); nonce: the page's style nonce; onChange: called with the editor after every
 * change of the text, also by setText. Line endings become "\n" in getText.
 */
export function createEditor({
  parent, doc = "", language = "text", dark = false, nonce = "", label = "",
  leaveHint = "Press Escape, then Tab, to leave the editor.", phrases = {}, onChange = null,
}) {
  const languageSlot = new Compartment();
  const themeSlot = new Compartment();
  const languageOf = (name) => (Object.hasOwn(LANGUAGES, name) ? LANGUAGES[name] : LANGUAGES.text);
  const themeOf = (isDark) => (isDark ? THEMES.dark : THEMES.light);
  const state = EditorState.create({
    doc,
    extensions: [
      nonce ? EditorView.cspNonce.of(nonce) : [],
      EditorState.phrases.of(phrases),
      lineNumbers(), highlightActiveLineGutter(), highlightActiveLine(),
      highlightSpecialChars({ addSpecialChars: MORE_SPECIAL_CHARACTERS }),
      history(), indentUnit.of("    "), EditorState.tabSize.of(4), indentOnInput(), bracketMatching(), closeBrackets(),
      search({ top: true }), highlightSelectionMatches(),
      keys, escapeFreesTab,
      EditorView.contentAttributes.of({ "aria-label": [label, leaveHint].filter(Boolean).join(". ") }),
      EditorView.updateListener.of((update) => {
        if (update.docChanged && onChange) onChange(editor);
      }),
      languageSlot.of(languageOf(language)), themeSlot.of(themeOf(dark)),
    ],
  });
  const view = new EditorView({ state, parent });
  const editor = {
    view,
    setLanguage: (name) => view.dispatch({ effects: languageSlot.reconfigure(languageOf(name)) }),
    setDark: (isDark) => view.dispatch({ effects: themeSlot.reconfigure(themeOf(isDark)) }),
    getText: () => view.state.doc.toString(),
    setText: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    focus: () => view.focus(),
  };
  return editor;
}
