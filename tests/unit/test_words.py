"""What the command line says, in English and in Chinese: the catalogue, help pages, complaints, reasons, tables."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.catalog import Message
from babel.messages.pofile import read_po
from hypothesis import given
from hypothesis import strategies as st

from common.model import AgentState, Outcome, RunState, TaskState
from master import sentences
from muster import words
from muster.cli import clicks, output, reasons
from muster.records import Task, read
from muster.terminal import cells
from muster.words import Phrase, paragraphs
from tests.support.rest_server import task_json

ROOT = Path(__file__).parents[2]
PO = ROOT / "muster/translations/zh_Hans_CN/LC_MESSAGES/messages.po"
# Three words of English in a row are a sentence that was forgotten, unless they are code.
ENGLISH = re.compile(r"\b[a-z]{2,} [a-z]{2,} [a-z]{2,}\b")
CODE = re.compile(r"`[^`]*`|^(用法：)?muster( [a-z-]+)*|No such file or directory")


def messages() -> list[Message]:
    return [message for message in read_po(io.BytesIO(PO.read_bytes())) if message.id]


def forms(text: str | tuple[str, ...] | list[str] | None) -> list[str]:
    return [text] if isinstance(text, str) else list(text or ())


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chinese for what is said from now on; what modules made when they were loaded stays English."""
    caches = (words.language, words._catalogue, clicks._sentences)
    monkeypatch.setenv("MUSTER_LANGUAGE", "zh")
    for each in caches:
        each.cache_clear()
    yield
    monkeypatch.undo()
    for each in caches:
        each.cache_clear()


# The catalogue


def places(text: str) -> set[str]:
    """What a text leaves to be filled in, in both ways of writing it."""
    in_braces = {name for _, name, _, _ in string.Formatter().parse(text) if name} if "{" in text else set()
    return in_braces | set(re.findall(r"%\((\w+)\)[-+0-9.]*[a-z]", text))


def test_every_text_of_the_source_is_in_the_catalogue() -> None:
    known = {text for message in messages() for text in forms(message.id)}
    missing = []
    for path in sorted((ROOT / "muster").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("_", "ngettext", "Phrase"):
                first = node.args[0]
                # Within an f-string it would be overlooked by the extraction.
                if isinstance(first, ast.Constant) and first.value not in known:
                    missing.append(f"{path.name}:{node.lineno}: {first.value!r}")
    assert missing == []


def test_every_state_outcome_and_reason_has_its_words() -> None:
    assert set(output.STATE_WORDS) == {*RunState, *TaskState, *AgentState}
    assert set(output._OUTCOME_WORDS) == set(Outcome)
    renamed = {"cancelled_on_request" if code == "cancelled" else code for code in sentences.REASONS}
    assert set(reasons._SENTENCES) == renamed | set(sentences.VERDICTS)
    for code, text in {**sentences.VERDICTS, **sentences.REASONS}.items():
        ours = reasons._SENTENCES["cancelled_on_request" if code == "cancelled" and "request" in text else code]
        assert places(ours) <= places(text), code


# Which language


def help_in(**environ: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("MUSTER_LANGUAGE", "LANG", "LANGUAGE")}
    clean = {name: value for name, value in clean.items() if not name.startswith("LC_")}
    done = subprocess.run(
        [sys.executable, "-m", "muster", "--help"], cwd=ROOT, capture_output=True, env={**clean, **environ}, check=True
    )
    return done.stdout.decode()


@pytest.mark.parametrize(
    ("environ", "first"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "用法：muster [OPTIONS]"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_TW"}, "用法："),
        ({"MUSTER_LANGUAGE": "zh-CN", "LC_ALL": "C", "PYTHONUTF8": "1"}, "用法："),
        ({}, "Usage: muster [OPTIONS]"),
        ({"LANG": "xx_YY.UTF-8"}, "Usage: "),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "Usage: "),
        ({"LANG": "zh_CN.UTF-8", "MUSTER_LANGUAGE": "en"}, "Usage: "),
        ({"LANGUAGE": "zh_CN", "LANG": "de_DE.UTF-8"}, "Usage: "),
    ],
)
def test_the_environment_says_which_language(environ: dict[str, str], first: str) -> None:
    assert help_in(**environ).startswith(first)


def say(code: str) -> list[str]:
    """What a program that speaks Chinese prints, as the JSON list in its last line."""
    environ = {**os.environ, "MUSTER_LANGUAGE": "zh", "MUSTER_URL": "http://127.0.0.1:9", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environ, check=True
    )
    told: list[str] = json.loads(done.stdout.splitlines()[-1])
    return told


HELP = """
import click, json
from muster.cli.main import cli
told = []
def ask(command, ctx):
    told.append(command.get_help(ctx))
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            ask(child, child.context_class(child, info_name=name, parent=ctx, help_option_names=["-h", "--help"]))
ask(cli, cli.context_class(cli, info_name="muster", max_content_width=100))
print(json.dumps(told))
"""


def test_the_help_of_every_command_is_chinese() -> None:
    pages = say(HELP)
    assert len(pages) > 25
    forgotten = [line for page in pages for line in page.splitlines() if ENGLISH.search(CODE.sub("", line))]
    assert forgotten == []
    assert all(page.startswith("用法：") and "  显示此帮助并退出。" in page for page in pages)
    assert "[默认：" in "".join(pages)
    assert max(cells(line) for page in pages for line in page.splitlines()) <= 80


COMPLAIN = """
import contextlib, io, json
from muster.cli.main import main
told = []
for words in json.loads(%r):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try: main(words)
        except SystemExit: pass
    told.append(said.getvalue())
print(json.dumps(told))
"""


def test_click_complains_in_chinese() -> None:
    wrong = (
        *("--nothing", "tasks --nam x", "run --cout 3", "tsks", "nothing-like-it", "agents shw", "show", "show a b"),
        *("show a b c", "show --url", "show --json=1 a", "tasks --limit x", "tasks --limit 0", "run --count x -"),
        *("run --on-stop x -", "run --timeout 5x -", "run --fail-rate 7 -", "tasks --state x", "agents label a b"),
        *("run --count 1 --env x -", "run --count 1 /nowhere", "web --listen 1:2:3", "agents label"),
    )
    told = say(COMPLAIN % json.dumps([line.split() for line in wrong]))
    for line, said in zip(wrong, told, strict=True):
        assert re.search("[\u4e00-\u9fff]", said) and said.count("\n") == 1, (line, said)
        assert not ENGLISH.search(CODE.sub("", said)), (line, said)


# Sentences


def test_a_phrase_is_told_in_english_to_files_and_in_chinese_to_people(chinese: None) -> None:
    phrase = Phrase("%(role)s has stopped (%(how)s)", role="web", how=Phrase("exit code %(code)s", code=3))
    assert (phrase.english, str(phrase)) == ("web has stopped (exit code 3)", "web 已停止（退出码 3）")
    assert words.ngettext("%(num)s lines", "%(num)s lines", 2) == "2 lines"  # of no catalogue


def test_values_may_hold_anything(chinese: None) -> None:
    assert words._("task %(id)s", id="100% {x} %(id)s") == "任务 100% {x} %(id)s"
    assert words._("") == ""
    assert clicks.translated("No such option '{x}%s'.") == "没有选项 '{x}%s'。"
    assert clicks.translated("Invalid value for '--limit': 'x' is not a valid integer range.") == (
        "'--limit' 的值无效：'x' 不是有效的整数。"
    )
    assert clicks.translated("Whatever click may say one day.") == "Whatever click may say one day."


REASONS = """
import json
from muster.cli.reasons import reason, verdict, waiting
from muster.records import Run, Task, read
from tests.support.rest_server import run_json, task_json
busy = {"code": "agent_busy", "args": {"agent": "web-1", "held": 2, "slots": 2}}
final = {"code": "final", "args": {"state": "failed"}}
newer = {"code": "moon_phase", "args": {}}
def wait(*codes): return waiting(read(Run, run_json(waiting_because="web-1 is busy", waiting=list(codes))))
def why(code, **args): return reason(read(Task, task_json(reason={"code": code, "detail": "D", **args})).reason)
print(json.dumps([
    wait(busy, final), wait(busy, newer), wait(), why("fail_count", args={"failed": 2, "total": 9, "limit": 2}),
    why("fail_count"), why("cancelled", args={}), why("moon_phase"), verdict({**newer, "text": "T"}), verdict(final),
]))
"""


def test_codes_are_said_in_words_and_unknown_ones_as_the_server_does() -> None:
    assert say(REASONS) == [
        "web-1 忙：2 个槽位已占用 2 个；已结束（失败）",
        *("web-1 is busy", "web-1 is busy", "9 个运行中有 2 个失败；上限为 fail_count=2"),
        *("D", "应要求取消", "D", "T", "已结束（失败）"),
    ]
    told = {"code": "fail_count", "detail": "2 of 9", "run_id": None, "args": {"failed": 2, "total": 9, "limit": 2}}
    assert reasons.reason(read(Task, task_json(reason=told)).reason) == "2 of 9"  # in English the server's own


def test_how_a_docstring_is_broken_does_not_matter() -> None:
    assert paragraphs("One\n    two.\n\n    \b\n    a  b\n      c\n    ") == [("One two.", False), ("a  b\n  c", True)]


# Columns and lines


def test_columns_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("代理", "state"), [["网页-1", "在线"], ["db", "离线"]])
    output.print_fields({"代理": "a", "id": "b"})
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["代理    STATE", "网页-1  在线", "db      离线", "代理  a", "id    b"]


@given(st.text(alphabet="ab 中文，。（）`-", max_size=60), st.integers(10, 30))
def test_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = clicks.wrap(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    for line in lines:
        pieces = clicks._PIECE.findall(line)
        assert cells(line) <= width or len(pieces) == 1


def test_no_line_begins_with_a_mark_that_ends_a_clause() -> None:
    text = "运行结束，状态为成功。" * 20
    for width in range(10, 40):
        assert all(line[0] not in "，。" for line in clicks.wrap(text, width))
