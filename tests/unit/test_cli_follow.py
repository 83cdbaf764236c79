"""Following a task: events become marked lines; broken streams, gaps, retries and repeats leave the output whole."""

import base64
import itertools
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.follow import Choice, Detached, Follower, polled
from muster.cli.live import Lines, Printer
from muster.client import Client, Unavailable
from tests.support.rest_server import (
    RUN_ID,
    TASK_ID,
    Asked,
    RestServer,
    Said,
    page,
    problem,
    run_json,
    serving,
    task_json,
)

STREAM = f"GET /tasks/{TASK_ID}/events"
_ids = itertools.count(1)


def sse(kind: str, content: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(content)}\nid: {next(_ids)}\n\n".encode()


def out(text: bytes, offset: int, *, stream: str = "stdout", run_id: str = RUN_ID, attempt: int = 1) -> bytes:
    content = {"run_id": run_id, "attempt": attempt, "stream": stream, "offset": offset}
    return sse("output", {**content, "data": base64.b64encode(text).decode()})


def running(**more: Any) -> bytes:
    return sse("run", run_json(**more))


def done(state: str = "succeeded", **more: Any) -> bytes:
    return sse("run", run_json(state=state, outcome="exit", exit_code=0, **more))


END = sse("task", task_json(state="succeeded", counts={"succeeded": 1}))


@pytest.fixture
def server() -> Iterator[RestServer]:
    with serving() as made:
        yield made


def follow(server: RestServer, *streams: bytes | Said, **more: Any) -> Follower:
    server.answers[STREAM] = [stream if isinstance(stream, Said) else Said(raw=stream) for stream in streams]
    options = {"printer": Printer(names=["web-1"]), "ask": lambda: Choice.DETACH, **more}
    with Client(server.url, "t", retry_for_s=0) as client:
        follower = Follower(client, TASK_ID, **options)
        assert follower.follow().state == "succeeded"
    return follower


def test_lines_are_marked_and_go_to_the_stream_they_came_from(
    server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    written = out(b"one\ntw", 0) + out(b"bad\n", 6, stream="stderr") + out(b"o\nlast", 10)
    follower = follow(server, sse("task", task_json()) + running() + written + done() + END)
    told = capsysbinary.readouterr()
    assert told.out == b"web-1 | one\nweb-1 | two\nweb-1 | last\n"
    assert told.err == b"web-1 ! bad\n"
    assert follower.runs[RUN_ID].state == "succeeded"


def test_bytes_pass_as_they_are_when_nobody_looks(
    server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    follow(server, running() + out(b"\xff\xfe\x1b[2J\r\n10%\r20%\n", 0) + done() + END, printer=Printer(prefix=False))
    assert capsysbinary.readouterr().out == b"\xff\xfe\x1b[2J\r\n10%\r20%\n"


def test_what_a_snapshot_repeats_is_shown_once(server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    first = running() + out(b"abc", 0) + out(b"def\n", 3)
    again = sse("reset", {}) + running() + out(b"abcdef\nghi\n", 0) + done() + END
    follow(server, first, again)
    assert capsysbinary.readouterr().out == b"web-1 | abcdef\nweb-1 | ghi\n"


def test_a_gap_is_told_and_never_glued_over(server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    follow(server, running() + out(b"head", 0) + out(b"tail\n", 1004) + done() + END)
    told = capsysbinary.readouterr()
    assert told.out == b"web-1 | head\nweb-1 | tail\n"
    assert told.err == b"web-1: 1000 bytes were not kept\n"


def test_another_attempt_begins_anew(server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    first = running() + out(b"first", 0)
    second = running(attempt=2) + out(b"second\n", 0, attempt=2) + out(b"late", 5, attempt=1)
    follow(server, first + second + done(attempt=2) + END)
    told = capsysbinary.readouterr()
    assert told.out == b"web-1 | first\nweb-1 | second\n"
    assert told.err == b"web-1: attempt 2\n"


def test_a_run_whose_agent_is_not_known_yet_is_looked_up(
    server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    server.answers[f"GET /runs/{RUN_ID}"] = Said(run_json())
    follow(server, running(agent=None) + out(b"x\n", 0) + done() + END)
    assert capsysbinary.readouterr().out == b"web-1 | x\n"


def test_only_what_is_wanted_is_shown(server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    other = {"id": "2", "agent": {"id": "b", "name": "web-2"}}
    both = running() + running(**other) + out(b"mine\n", 0) + out(b"err\n", 5, stream="stderr")
    follow(
        server,
        both + out(b"other\n", 0, run_id="2") + done() + END,
        wanted=lambda run: run.where == "web-1",
        stream="stderr",
    )
    told = capsysbinary.readouterr()
    assert (told.out, told.err) == (b"", b"web-1 ! err\n")


def test_an_interrupt_may_detach_cancel_or_go_on(
    server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    choices = [Choice.GO_ON, Choice.CANCEL, Choice.DETACH]
    server.answers[f"POST /tasks/{TASK_ID}/cancel"] = Said(task_json(), status=202)
    signals = [signal.SIGINT]

    def answer(asked: Asked) -> Said:
        if signals:  # the first Ctrl-C, once the stream is asked for
            os.kill(os.getpid(), signals.pop())
        return Said(raw=running())

    def ask() -> Choice:
        choice = choices.pop(0)
        if choices:  # and the next ones
            os.kill(os.getpid(), signal.SIGINT)
        return choice

    server.answers[STREAM] = answer
    before = signal.getsignal(signal.SIGINT)
    with Client(server.url, "t", retry_for_s=0) as client, pytest.raises(Detached):
        Follower(client, TASK_ID, printer=Printer(), ask=ask).follow()
    assert signal.getsignal(signal.SIGINT) is before
    assert f"POST /tasks/{TASK_ID}/cancel" in server.paths()
    assert b"cancelling" in capsysbinary.readouterr().err


def test_without_a_stream_the_task_is_polled(server: RestServer, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    server.answers[f"GET /tasks/{TASK_ID}"] = Said(task_json(state="succeeded", counts={"succeeded": 1}))
    server.answers[f"GET /tasks/{TASK_ID}/runs"] = page(run_json(state="succeeded", output_bytes=4))
    headers = {"X-Output-Size": "4", "X-Output-Next": "4"}
    server.answers[f"GET /runs/{RUN_ID}/output"] = Said(raw=b"abc\n", headers=headers)
    follow(server, problem(405, "not_allowed", "A proxy lets no stream through."))
    assert capsysbinary.readouterr().out == b"web-1 | abc\n"


def test_a_server_in_trouble_is_no_reason_to_poll(server: RestServer) -> None:
    server.answers[STREAM] = problem(507, "store_full", "The disk is full.")
    client = Client(server.url, "t", retry_for_s=0)
    subscription = client.events(TASK_ID, patience_s=0.0)
    with pytest.raises(Unavailable):
        next(subscription)


def test_polling_asks_for_what_is_new_only(server: RestServer) -> None:
    written = b"0123456789"
    sizes = iter([4, 4, 10, 10])
    states = iter(["running", "running", "running", "succeeded"])
    server.answers[f"GET /tasks/{TASK_ID}"] = lambda asked: Said(task_json(state=next(states)))
    server.answers[f"GET /tasks/{TASK_ID}/runs"] = lambda asked: page(run_json(output_bytes=next(sizes)))

    def output(asked: Asked) -> Said:
        begin, known = int(asked.query["offset"]), 4 if len(asked_offsets) == 0 else 10
        asked_offsets.append(begin)
        return Said(raw=written[begin:known], headers={"X-Output-Size": str(known), "X-Output-Next": str(known)})

    asked_offsets: list[int] = []
    server.answers[f"GET /runs/{RUN_ID}/output"] = output
    pauses: list[float] = []
    with Client(server.url, "t") as client:
        events = list(polled(client, TASK_ID, pause=pauses.append))
    assert b"".join(event.data for event in events if event.kind == "output") == written
    assert asked_offsets == [0, 4]
    assert len(pauses) == 3
    assert [event.kind for event in events][-1] == "task"


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_lines_are_the_same_however_the_bytes_come(pieces: list[bytes]) -> None:
    lines = Lines()
    found = [line for piece in pieces for line in lines.feed(piece)] + lines.end()
    whole = b"".join(pieces)
    assert b"\n".join(found) == whole.removesuffix(b"\n")


def test_a_line_without_end_is_given_in_pieces() -> None:
    lines = Lines()
    found = [line for _ in range(30) for line in lines.feed(b"x" * 10_000)] + lines.end()
    assert b"".join(found) == b"x" * 300_000
    assert max(map(len, found)) == 64 * 1024
