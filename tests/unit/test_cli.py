"""The command line's own parts: words people write, what is printed, how commands end. No daemon needed."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import SETTINGS, Settings
from muster import transport
from muster.cli import output
from muster.cli.main import COMMANDS, LazyGroup, cli, main
from muster.cli.options import Duration, Share, names, pairs, seconds
from muster.cli.run import exit_code, summary
from muster.records import Run, Task, read
from tests.support.rest_server import (
    RUN_ID,
    TASK_ID,
    RestServer,
    Said,
    agent_json,
    page,
    problem,
    run_json,
    serving,
    task_json,
)

# Words people write


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 30), ("30s", 30), ("5m", 300), ("2h", 7200), ("1.5d", 129600), ("200ms", 0.2), (" 3 s ", 3), (".5", 0.5)],
)
def test_times(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "s", "5 minutes", "-1", "1e3", "1,5", "nan", "٣", "5m30s"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="30s, 5m or 2h"):
        seconds(text)


@given(st.text(max_size=8))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        assert seconds(text) >= 0
    except ValueError:
        pass


def test_shares() -> None:
    assert [Share().convert(text, None, None) for text in ("0.2", "20%", "0", "100%")] == [0.2, 0.2, 0.0, 1.0]
    for text in ("1.1", "120%", "-1", "x", "nan", "%"):
        with pytest.raises(click.BadParameter):
            Share().convert(text, None, None)
    assert Duration().convert(2, None, None) == 2.0


def test_pairs_and_names() -> None:
    assert pairs(("A=b", "C=", "D=e=f"), "--env") == {"A": "b", "C": "", "D": "e=f"}
    for text in ("A", "=b"):
        with pytest.raises(click.BadParameter):
            pairs((text,), "--env")
    assert names(("a, b", "b,c")) == ["a", "b", "c"]


def test_every_setting_is_a_flag_and_the_times_take_units() -> None:
    command = cli.get_command(click.Context(cli), "up")
    assert command is not None
    flags = {param.name: param.type for param in command.params}
    default = Settings()
    for name in SETTINGS:
        is_time = isinstance(getattr(default, name), float)
        assert isinstance(flags[f"setting_{name}"], Duration) == is_time, name
    for name in ("heartbeat", "kill_grace", "feed_age"):
        assert isinstance(flags[f"setting_{name}"], Duration)


# What is printed


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (None, ""),
        (0.04, "40 ms"),
        (0.9996, "1.0 s"),
        (9.96, "10.0 s"),
        (12.4, "12 s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (7800, "2h 10m"),
        (180000, "2d 2h"),
    ],
)
def test_spans(length: float | None, text: str) -> None:
    assert output.span(length) == text


def test_sizes_counts_and_lists() -> None:
    assert [output.size(n) for n in (None, 0, 1023, 1536, 5 << 20, 7 << 40)] == [
        *("", "0 B", "1023 B", "1.5 KiB", "5.0 MiB", "7168.0 GiB"),
    ]
    assert output.counts({"failed": 1, "running": 2, "ready": 0, "odd\x1b": 1}) == "2 running, 1 failed, 1 odd^["
    assert output.name_list(["a\n", "b"]) == "a^J, b"
    assert output.name_list(list("abcdefghij"), most=3) == "a, b, c and 7 more"
    now = datetime(2026, 11, 30, tzinfo=UTC)
    assert output.ago(now - timedelta(hours=2), now) == "2h 00m ago"
    assert output.ago(now + timedelta(hours=2), now) == "just now"  # another machine's clock


def test_a_table_for_programs_has_a_line_a_row_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("task", "name"), [["1", "x" * 300], ["22", "a\nb\x1b[2J"]])
    assert capsys.readouterr().out == f"TASK  NAME\n1     {'x' * 300}\n22    a^Jb^[[2J\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_json_cannot_steer_a_terminal(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    nasty = {"a\x9b2J": "b\x7f\u202ec\x1b\n\ud800 é ☃"}
    output.print_json(nasty)
    shown = capsys.readouterr().out
    assert json.loads(shown) == nasty
    assert ("\x9b" in shown, "\u202e" in shown, "\x7f" in shown) == (not terminal,) * 3
    assert r"\ud800 é ☃" in shown
    if terminal:
        assert r'"a\u009b2J": "b\u007f\u202ec\u001b' in shown


# The group


def test_every_command_can_be_loaded_and_helps() -> None:
    assert isinstance(cli, LazyGroup)
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and (command.help or "").strip(), name
        assert command.name == name or name in ("agent-token",)


def test_help_loads_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys\nfrom muster.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'msgspec', 'zmq', 'gevent', 'flask', 'sqlalchemy', 'http.client', 'muster.client'}\n"
        "print(sorted(heavy & set(sys.modules)), [m for m in sys.modules if m.startswith('muster.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] ['muster.cli.speech', 'muster.cli.main']"


def end(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_an_unknown_command_is_answered_with_what_looks_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert end("taks") == 2
    assert capsys.readouterr().err == "muster: there is no command 'taks'; did you mean tasks? (see `muster --help`)\n"


def test_no_words_at_all_are_answered_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert end() == 2
    without = capsys.readouterr()
    assert end("--help") == 0
    assert (without.out, without.err) == ("", capsys.readouterr().out)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RestServer]:
    with serving() as made:
        monkeypatch.setenv("MUSTER_URL", made.url)
        monkeypatch.setenv("MUSTER_TOKEN", "secret")
        yield made


@pytest.mark.parametrize(
    ("status", "code"), [(400, 2), (401, 2), (403, 2), (404, 1), (409, 1), (422, 2), (500, 1), (507, 5)]
)
def test_a_refusal_is_one_line_and_a_code(
    status: int, code: int, server: RestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["GET /agents/web-1"] = problem(status, "c", "No,\x1b[2J sorry.")
    assert end("agents", "show", "web-1") == code
    hint = " (give one with --token or MUSTER_TOKEN)" if status == 401 else ""
    assert capsys.readouterr().err == f"muster: No,^[[2J sorry.{hint}\n"


def test_all_faulty_fields_are_told(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["POST /tasks"] = problem(422, "invalid_request", "a: bad; b: worse", timeout="bad", env="worse")
    assert end("run", "--count", "1", __file__) == 2
    assert "a: bad; b: worse" in capsys.readouterr().err


def test_a_data_directory_that_is_overruled_is_not_ignored_in_silence(
    server: RestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["GET /agents"] = page(agent_json())
    assert end("agents", "list", "--data", str(tmp_path)) == 0
    told = capsys.readouterr()
    assert told.err == "muster: --data is not used: MUSTER_URL says where the server is\n"
    assert told.out.splitlines()[1].split()[:2] == ["web-1", "online"]


def test_labels_are_changed_one_by_one(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["GET /agents/web-1"] = Said(agent_json(labels={"a": "1", "b": "2"}))
    server.answers["PATCH /agents/web-1"] = Said(agent_json(labels={"a": "x", "c": ""}))
    assert end("agents", "label", "web-1", "a=x", "b-", "c=") == 0
    assert server.asked[-1].json == {"labels": {"a": "x", "c": ""}}
    assert capsys.readouterr().out == "web-1  a=x c\n"


def test_since_may_be_how_long_ago(server: RestServer) -> None:
    server.answers["GET /tasks"] = page()
    end("tasks", "--since", "2h", "--state", "failed", "--limit", "3")
    asked = server.asked[-1].query
    assert (asked["state"], asked["limit"]) == ("failed", "3")
    ago = datetime.now(UTC) - datetime.fromisoformat(asked["since"])
    assert timedelta(hours=1.9) < ago < timedelta(hours=2.1)
    end("tasks", "--since", "2026-01-01T00:00:00Z")
    assert server.asked[-1].query["since"] == "2026-01-01T00:00:00Z"


def test_lists_take_several_states_and_text(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["GET /tasks"] = page()
    assert end("tasks", "--state", "running, waiting", "--until", "2026-01-01T00:00:00Z") == 0
    asked = server.asked[-1].query
    assert (asked["state"], asked["until"]) == ("running,waiting", "2026-01-01T00:00:00Z")
    server.answers["GET /agents"] = page()
    assert end("agents", "list", "--state", "offline,conflict", "--match", "env=prod") == 0
    asked = server.asked[-1].query
    assert (asked["state"], asked["q"]) == ("offline,conflict", "env=prod")
    assert end("tasks", "--state", "running,gone") == 2
    assert "'gone' is none of waiting, running" in capsys.readouterr().err


def test_limit_is_kept_over_pages(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["GET /tasks"] = page(task_json(), task_json(), next="more")
    end("tasks", "--limit", "3")
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "environ", "typed", "token"),
    [
        (["--join", "muster1_a"], None, "", "muster1_a"),
        (["--join", "-"], None, "muster1_b \nmore\n", "muster1_b"),
        ([], "muster1_c", "", "muster1_c"),
        (["--join", "muster1_a"], "muster1_c", "", "muster1_a"),
        ([], None, "", None),
        ([], "", "", None),
    ],
)
def test_a_join_token_comes_by_three_ways_and_stays_in_no_environment(
    words: list[str], environ: str | None, typed: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, str | None]] = []

    def main(settings: object, **said: object) -> int:
        seen.append((said["join_token"], os.environ.get("MUSTER_JOIN_TOKEN")))
        return 0

    monkeypatch.setattr("agent.app.main", main)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", environ or "")
    if environ is None:
        monkeypatch.delenv("MUSTER_JOIN_TOKEN")
    assert end("agent", *words) == 0
    assert seen == [(token, None)]


def test_a_join_token_that_does_not_come_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert end("agent", "--join", "-") == 2
    assert "standard input" in capsys.readouterr().err


# How `muster run` ends


def task(state: str, counts: dict[str, int], **more: Any) -> Task:
    return read(Task, task_json(state=state, counts=counts, total=sum(counts.values()), **more))


@pytest.mark.parametrize(
    ("state", "counts", "reason", "code"),
    [
        ("succeeded", {"succeeded": 3}, None, 0),
        ("failed", {"succeeded": 2, "failed": 1}, None, 1),
        ("failed", {"failed": 1, "expired": 1}, None, 1),
        ("failed", {"failed": 1, "skipped": 4}, "fail_count", 3),
        ("failed", {"failed": 2, "skipped": 4}, "fail_rate", 3),
        ("cancelled", {"cancelled": 1, "succeeded": 1}, "cancelled", 3),
        ("failed", {"expired": 2}, None, 4),
        ("failed", {"succeeded": 1, "expired": 2}, None, 4),
        ("failed", {"succeeded": 1, "cancelled": 1}, None, 3),
    ],
)
def test_the_code_says_how_it_went(state: str, counts: dict[str, int], reason: str | None, code: int) -> None:
    told = {"code": reason, "detail": "because", "run_id": None} if reason else None
    assert exit_code(task(state, counts, reason=told)) == code


def run(name: str, **more: Any) -> Run:
    return read(Run, run_json(agent={"id": name, "name": name}, **more))


def test_the_summary_groups_what_did_not_succeed() -> None:
    runs = [
        run("a", state="succeeded", outcome="exit", exit_code=0),
        run("c", state="failed", outcome="exit", exit_code=3),
        run("b", state="failed", outcome="exit", exit_code=3),
        run("d", state="failed", outcome="signal", signal="SIGKILL"),
        run("e", state="failed", outcome="spawn_error", detail="no such\x1b interpreter"),
        run("f", state="skipped"),
    ]
    ended = task(
        "failed",
        {"succeeded": 1, "failed": 4, "skipped": 1},
        ended_at="2026-11-30T12:00:02.000Z",
        reason={"code": "fail_count", "detail": "4 have failed", "run_id": None},
    )
    assert summary(ended, runs) == [
        f"task {TASK_ID}: 1 succeeded, 4 failed, 1 skipped in 2.0 s",
        "  4 have failed",
        "  exit 3: b, c",
        "  signal SIGKILL: d",
        "  spawn_error: e (no such^[ interpreter)",
        "  skipped: f",
    ]
    assert summary(task("succeeded", {"succeeded": 1}), runs[:1]) == []


def test_nothing_runs_everywhere_by_accident(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["GET /agents"] = page(agent_json(), agent_json(name="web-2"))
    assert end("run", __file__) == 2
    assert re.search(r"say where to run: --on A,B or --count N; agents: web-1, web-2 ", capsys.readouterr().err)
    assert "POST /tasks" not in server.paths()


def test_json_outlives_an_outage_that_is_longer_than_a_call_is_repeated(
    server: RestServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def pass_time(seconds: float) -> None:
        now[0] += max(seconds, 1.0)

    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pass_time))
    away = problem(503, "peer_unreachable", "The master is away.")
    server.answers["POST /tasks"] = Said(task_json(), status=201)
    server.answers[f"GET /tasks/{TASK_ID}"] = [*[away] * 25, Said(task_json(state="succeeded"))]
    server.answers[f"GET /tasks/{TASK_ID}/runs"] = [*[away] * 25, page(run_json())]
    assert end("run", "--json", "--count", "1", __file__) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["id"] == RUN_ID
    server.answers[f"GET /tasks/{TASK_ID}"] = away
    assert end("run", "--json", "--count", "1", __file__) == 5
    assert capsys.readouterr().err == (f"muster: The master is away; task {TASK_ID} goes on without being followed\n")


def test_a_refusal_while_waiting_names_the_task(server: RestServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["POST /tasks"] = Said(task_json(), status=201)
    server.answers[f"GET /tasks/{TASK_ID}"] = problem(401, "unauthorized", "The token is not valid.")
    # Not 2: that would say that nothing was submitted.
    assert end("run", "--json", "--count", "1", __file__) == 5
    assert TASK_ID in capsys.readouterr().err


def test_why_of_a_task_tells_of_each_run_that_is_not_final(
    server: RestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = run_json(id="r1", state="ready")
    server.answers[f"GET /tasks/{TASK_ID}/runs"] = page(waiting, run_json(id="r2", state="succeeded"))
    server.answers["GET /runs/r1/why"] = Said({"run": waiting, "verdicts": [{"code": "busy", "text": "web-1 is busy"}]})
    assert end("why", TASK_ID) == 0
    assert capsys.readouterr().out == "r1  web-1  ready\n  web-1 is busy\n"
