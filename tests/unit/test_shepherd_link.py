"""The agent's end of the shepherd's socket, against a shepherd that says exactly what the test wants, when it wants."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.attempt import ExitRecord
from agent.shepherd_link import LinkClosed, ShepherdLink, ShepherdUnavailable, StartRefused
from common.ids import uuid7
from common.version import VERSION

PATIENCE_S = 20.0
NO_SHEPHERD = ("/bin/false",)


class FakeShepherd:
    """Listens like a shepherd and answers hello; everything else is up to the test."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path / "shepherd.sock"))
        self.listener.listen(4)
        self.version = VERSION
        self.list_answer: list[dict[str, Any]] = [{"event": "listed", "running": [], "ended": []}]
        self.requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.agents: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                agent, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._speak, args=(agent,), daemon=True).start()

    def _speak(self, agent: socket.socket) -> None:
        with agent, agent.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                if request["op"] == "hello":
                    self.send(agent, {"event": "hello", "protocol": 1, "version": self.version, "pid": 4711})
                elif request["op"] == "list":
                    self.send(agent, *self.list_answer)
                    self.agents.put(agent)
                else:
                    self.requests.put(request)

    def send(self, agent: socket.socket, *events: dict[str, Any]) -> None:
        """All events in one piece, as they arrive when the agent is slow."""
        agent.sendall(b"".join(json.dumps(event).encode() + b"\n" for event in events))

    def request(self) -> dict[str, Any]:
        return self.requests.get(timeout=PATIENCE_S)

    def agent(self) -> socket.socket:
        """The next agent that has connected and asked for the list."""
        return self.agents.get(timeout=PATIENCE_S)


@pytest.fixture
def shepherd(short_path: Path) -> Iterator[FakeShepherd]:
    one = FakeShepherd(short_path)
    yield one
    one.listener.close()


@pytest.fixture
def link(shepherd: FakeShepherd, short_path: Path) -> Iterator[ShepherdLink]:
    one = ShepherdLink(short_path, command=NO_SHEPHERD)
    yield one
    one.close(stop_idle=False)


def a_record(run_id: str, **changes: Any) -> dict[str, Any]:
    return ExitRecord(run_id=run_id, attempt=1, lease="l", outcome="exit", exit_code=3, **changes).to_wire()


def running(run_id: str) -> dict[str, Any]:
    about = {"lease": "l", "pid": 5, "started_at_ms": 6, "output_limit": 7, "output_end": 8}
    return {"run_id": run_id, "attempt": 1, **about, "from_a_newer_shepherd": True}


def spec(run_id: str) -> dict[str, Any]:
    return {"run_id": run_id, "attempt": 1, "lease": "l"}


def listed(*attempts: dict[str, Any], ended: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"event": "listed", "running": list(attempts), "ended": list(ended)}


def test_an_end_right_behind_the_list_is_not_missed(shepherd: FakeShepherd, link: ShepherdLink) -> None:
    run_id = uuid7()
    shepherd.list_answer = [listed(running(run_id)), {"event": "ended", "record": a_record(run_id)}]
    listing = link.connect()
    assert link.adopt(listing.running[0]).result(PATIENCE_S).exit_code == 3


def test_an_end_right_behind_the_list_is_not_missed_when_reconnecting(
    shepherd: FakeShepherd, link: ShepherdLink
) -> None:
    run_id = uuid7()
    link.connect()
    future = link.start(spec(run_id))
    assert shepherd.request()["op"] == "start"
    shepherd.list_answer = [listed(running(run_id)), {"event": "ended", "record": a_record(run_id)}]
    shepherd.agent().shutdown(socket.SHUT_RDWR)
    assert future.result(PATIENCE_S).exit_code == 3


def test_what_never_arrived_is_sent_again_with_its_kill_and_what_arrived_is_not(
    shepherd: FakeShepherd, link: ShepherdLink
) -> None:
    link.connect()
    arrived, lost, done = uuid7(), uuid7(), uuid7()
    futures = {run_id: link.start(spec(run_id)) for run_id in (arrived, lost, done)}
    link.kill((lost, 1), why="cancel", grace_s=2.0)
    for _ in range(4):
        shepherd.request()
    shepherd.list_answer = [listed(running(arrived), ended=(a_record(done),))]
    shepherd.agent().shutdown(socket.SHUT_RDWR)
    agent = shepherd.agent()
    assert shepherd.request()["spec"]["run_id"] == lost
    kill = shepherd.request()
    assert (kill["op"], kill["run_id"], kill["why"], kill["grace_s"]) == ("kill", lost, "cancel", 2.0)
    assert futures[done].result(PATIENCE_S).exit_code == 3
    assert not futures[arrived].done()
    shepherd.send(agent, {"event": "ended", "record": a_record(arrived)}, {"event": "ended", "record": a_record(lost)})
    assert futures[lost].result(PATIENCE_S).exit_code == futures[arrived].result(PATIENCE_S).exit_code == 3


def test_an_adopted_attempt_that_nobody_knows_any_more_was_interrupted(
    shepherd: FakeShepherd, link: ShepherdLink
) -> None:
    run_id = uuid7()
    shepherd.list_answer = [listed(running(run_id))]
    future = link.adopt(link.connect().running[0])
    shepherd.list_answer = [listed()]
    shepherd.agent().shutdown(socket.SHUT_RDWR)
    record = future.result(PATIENCE_S)
    assert (record.outcome, record.lease) == ("interrupted", "l")


def test_a_refusal_ends_the_future_unless_a_successor_can_be_asked(shepherd: FakeShepherd, link: ShepherdLink) -> None:
    link.connect()
    agent = shepherd.agent()
    run_id = uuid7()
    future = link.start(spec(run_id))
    refusal = {"event": "refused", "run_id": run_id, "attempt": 1, "state": "stopping", "detail": "It ends."}
    shepherd.send(agent, refusal)
    shepherd.request()
    agent.shutdown(socket.SHUT_RDWR)
    successor = shepherd.agent()
    assert shepherd.request()["spec"]["run_id"] == run_id
    shepherd.send(successor, {**refusal, "state": "not_started", "detail": "The disk is full."})
    with pytest.raises(StartRefused, match="The disk is full"):
        future.result(PATIENCE_S)


def test_messages_that_make_no_sense_do_not_end_the_link(shepherd: FakeShepherd, link: ShepherdLink) -> None:
    told: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
    link.on_output = lambda *news: told.put(news)
    link.connect()
    run_id = uuid7()
    shepherd.send(
        shepherd.agent(),
        {"event": "ended"},
        {"event": "ended", "record": {"outcome": "fine"}},
        {"event": "ended", "record": a_record(uuid7())},
        {"event": "dance"},
        {},
        {"event": "error", "detail": "said the shepherd"},
        {"event": "output", "run_id": run_id, "attempt": 1, "end": 9},
    )
    assert told.get(timeout=PATIENCE_S) == (run_id, 1, 9)


def test_forgetting_waits_for_a_shepherd(shepherd: FakeShepherd, link: ShepherdLink) -> None:
    key = (uuid7(), 1)
    link.forget([key])
    link.connect()
    link.forget([])
    assert shepherd.request() == {"op": "forget", "attempts": [list(key)]}


def test_closing_ends_the_futures_and_nothing_starts_afterwards(shepherd: FakeShepherd, link: ShepherdLink) -> None:
    link.connect()
    future = link.start(spec(uuid7()))
    link.close(stop_idle=True)
    with pytest.raises(LinkClosed):
        future.result(PATIENCE_S)
    with pytest.raises(LinkClosed):
        link.start(spec(uuid7())).result(PATIENCE_S)
    link.kill((uuid7(), 1), why="cancel")
    link.forget([(uuid7(), 1)])
    link.close(stop_idle=True)
    assert [shepherd.request()["op"] for _ in range(2)] == ["start", "stop"]
    assert link.status == "closed"


def test_a_shepherd_that_cannot_be_started_is_unavailable(short_path: Path) -> None:
    link = ShepherdLink(short_path, command=NO_SHEPHERD)
    with pytest.raises(ShepherdUnavailable, match=r"shepherd\.log says why"):
        link.connect()
    link.close(stop_idle=False)
    missing = ShepherdLink(short_path / "missing", command=NO_SHEPHERD)
    with pytest.raises(ShepherdUnavailable, match="could not be started"):
        missing.connect()
    missing.close(stop_idle=False)


def test_a_list_that_cannot_be_read_is_an_error_not_a_guess(shepherd: FakeShepherd, link: ShepherdLink) -> None:
    shepherd.list_answer = [{"event": "listed", "running": [{"run_id": 1}], "ended": []}]
    with pytest.raises(ShepherdUnavailable, match="cannot be read"):
        link.connect()


def test_links_leave_no_descriptors_behind(shepherd: FakeShepherd, short_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        link = ShepherdLink(short_path, command=NO_SHEPHERD)
        link.connect()
        link.close(stop_idle=False)
        shepherd.agent()
    assert len(os.listdir("/proc/self/fd")) < before + 10  # the fake's threads may be about to close theirs
