"""Server-sent events: the parser, and a subscription over a server that breaks off."""

import base64
import json
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client import Client, Event, NotFound, Unreachable
from muster.sse import Message, parse
from tests.support.rest_server import TASK_ID, RestServer, Said, problem, run_json, serving, task_json

STREAM = f"GET /tasks/{TASK_ID}/events"


def sse(event: str, data: object, event_id: int | None = None) -> bytes:
    end = f"id: {event_id}\n\n" if event_id is not None else "\n"
    return f"event: {event}\ndata: {json.dumps(data)}\n{end}".encode()


def output(text: bytes, offset: int, event_id: int, **more: object) -> bytes:
    content = {"run_id": "r", "attempt": 1, "stream": "stdout", "offset": offset, **more}
    return sse("output", {**content, "data": base64.b64encode(text).decode()}, event_id)


def messages(raw: bytes) -> list[Message]:
    return list(parse(raw.splitlines(keepends=True)))


def test_the_parser_reads_events_comments_and_lines_in_parts() -> None:
    raw = b": hello\n\nevent: a\ndata: 1\ndata: 2\nid: 7\n\ndata:x\n\nretry: 5\n\nid: 8\n\n"
    assert messages(raw) == [Message("a", "1\n2", "7"), Message("message", "x", None), Message("message", "", "8")]


def test_an_event_that_was_cut_off_is_left_out() -> None:
    assert messages(b"data: whole\n\ndata: cut\n") == [Message("message", "whole", None)]
    assert messages(b"data: whole\n\ndata: cu") == [Message("message", "whole", None)]


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\r\n")), st.integers(1, 99))))
def test_what_is_written_is_read(events: list[tuple[str, int]]) -> None:
    raw = b"".join(f"event: e\ndata: {text}\nid: {number}\n\n".encode() for text, number in events)
    lines = [line + b"\n" for line in raw.split(b"\n")[:-1]]
    assert list(parse(lines)) == [Message("e", text, str(number)) for text, number in events]


@given(st.binary())
def test_the_parser_survives_any_bytes(raw: bytes) -> None:
    messages(raw)


@pytest.fixture
def server() -> Iterator[RestServer]:
    with serving() as made:
        yield made


@pytest.fixture
def client(server: RestServer) -> Client:
    return Client(server.url, "t", retry_for_s=0)


def take(client: Client, count: int) -> list[Event]:
    with client.events(TASK_ID, patience_s=5) as subscription:
        return [next(subscription) for _ in range(count)]


def test_events_come_as_records(server: RestServer, client: Client) -> None:
    raw = sse("task", task_json(), 1) + sse("run", run_json(), 2) + output(b"\xff\xfe", 5, 3) + sse("reset", {}, 4)
    server.answers[STREAM] = Said(raw=raw + sse("news", {"of": "a newer version"}, 5) + sse("task", task_json(), 6))
    task, run, written, reset, again = take(client, 5)
    assert task.task is not None and task.task.id == TASK_ID
    assert run.run is not None and run.run.where == "web-1" and run.run_id == run.run.id
    assert (written.run_id, written.attempt, written.stream, written.offset, written.data) == (
        *("r", 1, "stdout", 5, b"\xff\xfe"),
    )
    assert (reset.kind, again.kind, again.id) == ("reset", "task", "6")


def test_a_stream_that_breaks_off_goes_on_behind_the_last_event(server: RestServer, client: Client) -> None:
    whole = output(b"b", 1, 8)
    server.answers[STREAM] = [
        Said(raw=output(b"a", 0, 7) + b"event: output\ndata: {"),
        Said(raw=whole, cut=len(whole) - 3),
        Said(cut=0),
        problem(503, "unavailable", "The master is away."),
        Said(raw=whole + output(b"c", 2, 9)),
    ]
    assert b"".join(event.data for event in take(client, 3)) == b"abc"
    asked = [request.headers.get("Last-Event-ID") for request in server.asked]
    assert asked == [None, "7", "7", "7", "7"]


def test_the_id_of_an_event_without_data_counts(server: RestServer, client: Client) -> None:
    server.answers[STREAM] = [Said(raw=b"id: 41\n\n"), Said(raw=output(b"a", 0, 42))]
    take(client, 1)
    assert server.asked[-1].headers["Last-Event-ID"] == "41"


def test_a_refusal_is_raised(server: RestServer, client: Client) -> None:
    server.answers[STREAM] = problem(404, "not_found", "There is no such task.")
    with pytest.raises(NotFound):
        take(client, 1)


def test_patience_ends() -> None:
    with serving() as server, Client(server.url, "t") as client:
        server.answers[STREAM] = Said(raw=sse("task", task_json(), 1))
        subscription = client.events(TASK_ID, patience_s=0.2)
        next(subscription)
    with pytest.raises(Unreachable):
        next(subscription)


def test_close_from_another_thread_ends_the_wait(server: RestServer, client: Client) -> None:
    said = threading.Event()

    def answer(asked: object) -> Said:
        return Said(raw=sse("task", task_json(), 1), headers={"Content-Length": "100000"})

    server.answers[STREAM] = answer
    subscription = client.events(TASK_ID)
    next(subscription)

    def close() -> None:
        said.wait(5)
        subscription.close()

    closer = threading.Thread(target=close)
    closer.start()
    said.set()
    assert list(subscription) == []
    closer.join()
