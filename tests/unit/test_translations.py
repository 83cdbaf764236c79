"""The catalogues of pages and command line: complete, fresh, true to their sources, and nothing is said beside them."""

from __future__ import annotations

import ast
import io
import json
import re
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.catalog import Message
from babel.messages.pofile import read_po
from jinja2 import Environment

ROOT = Path(__file__).parents[2]
WEB = ROOT / "webserver"
LANGUAGE = "translations/zh_Hans_CN"
DOMAINS = ("webserver", "muster")
HAN = re.compile("[\u4e00-\u9fff]")
SAME_IN_ALL_LANGUAGES = {"API", "CPU", "NAME", "muster", "ID", "ci、backup、laptop…"}
"""Names that are no words of a language."""
ELSEWHERE_OTHERWISE = {"enrolled", "run"}
"""Said in another way by the command line, where it heads a column instead of standing in a sentence."""


def messages(domain: str) -> list[Message]:
    po = ROOT / domain / LANGUAGE / "LC_MESSAGES/messages.po"
    return [message for message in read_po(io.BytesIO(po.read_bytes())) if message.id]


def forms(text: str | tuple[str, ...] | list[str] | None) -> list[str]:
    return [text] if isinstance(text, str) else list(text or ())


def places(text: str) -> list[str]:
    """What a text leaves to be filled in, in both ways of writing it."""
    in_braces = {name for _, name, _, _ in string.Formatter().parse(text) if name} if "{" in text else set()
    return sorted(in_braces | set(re.findall(r"%\((\w+)\)[-+0-9.]*[a-z]|\$", text)) | set(re.findall(r"%%|\$", text)))


def code(text: str) -> list[str]:
    """What a person types or reads as it is, whatever the language."""
    return sorted(re.findall(r"`[^`]+`|(?<![\w-])--[a-z-]+|MUSTER_\w+|/usr/\S+|/bin/\w+|muster up|TERM|KILL", text))


# The catalogues


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_catalogue_is_fresh_and_complete(domain: str) -> None:
    tool = next(ROOT.glob("*/translate.py"), ROOT / "webserver/assets/translate.py")
    done = subprocess.run([sys.executable, tool, "--check", domain], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "complete\n"), done.stdout


@pytest.mark.parametrize("domain", DOMAINS)
def test_translations_fill_in_the_same_values_and_keep_code_as_it_is(domain: str) -> None:
    wrong = [
        (message.id, said)
        for message in messages(domain)
        for said in forms(message.string)
        if places(said) != places(forms(message.id)[-1]) or code(said) != code(forms(message.id)[-1])
    ]
    assert wrong == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_nothing_is_fuzzy_or_left_in_english(domain: str) -> None:
    assert [message.id for message in messages(domain) if message.fuzzy] == []
    letters = re.compile(r"[A-Za-z]{2}")
    english = [
        text
        for message in messages(domain)
        for text in forms(message.string)
        if letters.search(re.sub(r"%\(\w+\)[-+0-9.]*[a-z]", "", text)) and not HAN.search(text)
    ]
    assert set(english) - SAME_IN_ALL_LANGUAGES == set()


@pytest.mark.parametrize("domain", DOMAINS)
def test_chinese_sentences_have_chinese_marks(domain: str) -> None:
    wrong = [
        said
        for message in messages(domain)
        for said in forms(message.string)
        if re.search(r"[\u4e00-\u9fff][,;:?!.]", said)
    ]
    assert wrong == []


def test_pages_and_command_line_say_the_same_in_the_same_words() -> None:
    in_pages, in_commands = ({m.id: m.string for m in messages(domain) if isinstance(m.id, str)} for domain in DOMAINS)
    both = (in_pages.keys() & in_commands.keys()) - ELSEWHERE_OTHERWISE
    assert {text: (in_pages[text], in_commands[text]) for text in both if in_pages[text] != in_commands[text]} == {}


# Whether everything that is said is in the catalogue


def scripts() -> Iterator[tuple[Path, str]]:
    """Own scripts, without their comments."""
    for path in sorted((WEB / "static/js").rglob("*.js")):
        yield path, re.sub(r"/\*.*?\*/|(?<![:\"'`])//[^\n]*", "", path.read_text("utf-8"), flags=re.DOTALL)


SAID = re.compile(r'\b(?:t|tn)\(\s*"((?:[^"\\]|\\.)*)"(?:\s*,\s*"((?:[^"\\]|\\.)*)")?')


def test_scripts_find_all_that_they_say() -> None:
    known = json.loads((WEB / LANGUAGE / "script.json").read_text("utf-8"))
    said = {
        json.loads(f'"{many if call.startswith("tn") and many else one}"')
        for _, text in scripts()
        for call, one, many in ((found[0], found[1], found[2]) for found in SAID.finditer(text))
    }
    assert said - known.keys() == set()
    assert known.keys() - said == set()


def test_scripts_say_only_what_can_be_found() -> None:
    """Texts are given to `t` as they are, not put together, and nothing visible goes past it."""
    wrong = []
    shown = re.compile(
        r'(?:textContent = |notice\(|(?:title|placeholder|"aria-label"): |setText\([\w.]+, )"([^"]*[A-Za-z]{2}[^"]*)"'
    )
    sentence = re.compile(r'"([A-Z][a-z]+(?:,? [A-Za-z]+)+[^"]*)"')
    for path, text in scripts():
        if path.name != "words.js":
            wrong += [(path.name, found[0]) for found in re.finditer(r"(?<![\w.])tn?\((?!\s*\")[^)]*\)", text)]
        rest = SAID.sub("", text)
        rest = re.sub(r'"(?:[^"\\]|\\.)*":', "", rest)  # names of fields
        wrong += [(path.name, found[1]) for each in (shown, sentence) for found in each.finditer(rest)]
    assert wrong == []


SHOWN_ATTRIBUTES = re.compile(
    r'\b(?:title|placeholder|aria-label|alt|data-confirm|data-agree|data-label|data-word)="([^"]*)"'
)
AS_THEY_ARE = {"muster", "API", "curl", "Ctrl+Enter", "/usr/bin/perl -w", "application/json", "UTC"}


def visible(template: str) -> Iterator[str]:
    """What a template shows beside what Jinja puts in."""
    tokens = Environment().lex(template)
    text = "".join(word if kind == "data" else "\x00" for _, kind, word in tokens)
    text = re.sub(r"<(code|pre|script|textarea)\b.*?</\1>", "", text, flags=re.DOTALL)
    yield from (found[1] for found in SHOWN_ATTRIBUTES.finditer(text))
    text = re.sub(r'[\w:-]+=(?:"[^"]*"|\'[^\']*\')', "", text)
    for piece in re.split(r"<[^<>]*>|\x00", text):
        yield piece.strip()


def test_templates_show_nothing_that_is_not_translated() -> None:
    wrong = [
        (path.name, text)
        for path in sorted((WEB / "templates").glob("*.html"))
        for text in visible(path.read_text("utf-8"))
        if re.search(r"[A-Za-z]{2}", text) and text.strip("\x00· ") not in AS_THEY_ARE
    ]
    assert wrong == []


def test_texts_for_the_catalogue_stand_there_as_they_are() -> None:
    """The extraction overlooks what is put together, and what stands in an f-string."""
    wrong = []
    for path in sorted(WEB.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("_", "_l", "ngettext", "gettext"):
                texts = node.args[: 2 if getattr(node.func, "id", "") == "ngettext" else 1]
                if not all(isinstance(text, ast.Constant) for text in texts):
                    wrong.append(f"{path.name}:{node.lineno}")
    assert wrong == []


def test_refusals_of_pages_are_translated() -> None:
    """What a page refuses it says in the visitor's language; what the API refuses stays English."""
    wrong = []
    for path in sorted([*(WEB / "pages").glob("*.py"), *WEB.glob("form*.py")]):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                wrong += [
                    f"{path.name}:{node.lineno}: {text.value}"
                    for text in node.exc.args
                    if isinstance(text, ast.Constant) and isinstance(text.value, str) and " " in text.value
                ]
    assert wrong == []
