"""Sending the output of many attempts: fairness, bounds, rhythm, resends."""

from __future__ import annotations

from typing import Any

import pytest

from agent.attempt import AttemptKey
from agent.holdings import Holding, Stage
from agent.output import OutputSender
from agent.spool_reader import Chunk, Gap
from common.errors import CallTimeout, PeerUnreachable, StoreUnavailable, TooLarge
from tests.support.agent_parts import REGISTERED, Parts, ScriptedMaster

KIB = 1024


class Spool:
    """What one attempt has written so far."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.closed = False

    def read_from(self, offset: int, max_bytes: int) -> Chunk | Gap | None:
        piece = self.data[offset : offset + max_bytes]
        return Chunk(offset, [(1, len(piece))], piece) if piece else None

    def ended(self, total: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Sending(Parts):
    """A sender, spools, and a master that keeps what it gets."""

    def __init__(self, **terms: int) -> None:
        master = ScriptedMaster()
        master.answers["register"] = [{**REGISTERED, "settings": terms}]
        super().__init__(master)
        master.answers["output"] = [self._store]
        self.spools: dict[AttemptKey, Spool] = {}
        self.acks: list[tuple[str, int, int]] = []
        self.complete: list[AttemptKey] = []
        self.stored: dict[str, bytearray] = {}
        self.slow = False
        self.sender = OutputSender(
            link=self.link, holdings=self.holdings, spools=self, most_bytes=KIB * KIB, clock=self.clock
        )
        self.sender.on_complete = self.complete.append

    def output(self, run_id: str, attempt: int) -> Spool:
        return self.spools[run_id, attempt]

    def acknowledge(self, run_id: str, attempt: int, offset: int) -> None:
        self.acks.append((run_id, attempt, offset))

    def _store(self, chunks: list[dict[str, Any]]) -> dict[str, Any]:
        acked = {}
        for chunk in chunks:
            stored = self.stored.setdefault(chunk["run_id"], bytearray())
            if chunk["offset"] == len(stored):
                stored += chunk["data"]
            acked[chunk["run_id"]] = len(stored)
        return {"acked": acked, "slow": self.slow}

    def write(self, run_id: str, data: bytes, *, attempt: int = 1) -> Holding:
        key = (run_id, attempt)
        holding = self.holdings.get(key)
        if holding is None:
            holding = Holding(run_id, attempt, f"lease of {run_id}", Stage.RUNNING)
            self.holdings.add(holding)
            self.spools[key] = Spool()
        self.spools[key].data += data
        self.sender.grown({key: len(self.spools[key].data)})
        return holding

    def step(self) -> float | None:
        return self.sender.step(self.now)

    def messages(self) -> list[list[dict[str, Any]]]:
        return self.master.sent("output")


def test_a_trickle_is_about_five_messages_a_second() -> None:
    here = Sending()
    for _ in range(200):
        here.write("a", b"x")
        delay_s = here.step()
        while delay_s is not None and delay_s <= 0:
            delay_s = here.step()
        here.clock.advance(0.01)
    assert 8 <= len(here.messages()) <= 12, "two seconds' worth"


def test_small_writes_of_many_attempts_go_together() -> None:
    here = Sending()
    for number in range(20):
        here.write(f"run-{number}", b"hello\n")
        here.clock.advance(0.001)
    delay_s = here.step()
    assert delay_s is not None
    here.clock.advance(delay_s)
    here.step()
    (message,) = here.messages()
    assert len(message) == 20


def test_a_message_holds_at_most_a_window_of_chunks_of_each_attempt_in_turn() -> None:
    here = Sending(output_chunk=4 * KIB, output_window=3)
    here.write("a", b"a" * 100 * KIB)
    here.write("b", b"b" * 100 * KIB)
    here.step()
    (message,) = here.messages()
    assert sorted(chunk["run_id"] for chunk in message) == ["a", "a", "a", "b", "b", "b"]
    assert all(len(chunk["data"]) == 4 * KIB for chunk in message)


def test_a_message_is_small_at_first_and_bounded_for_ever() -> None:
    here = Sending(output_window=100)
    here.write("a", b"a" * 8 * KIB * KIB)
    while (delay_s := here.step()) is not None:
        here.clock.advance(delay_s)
    sizes = [sum(len(chunk["data"]) for chunk in message) for message in here.messages()]
    assert sizes[0] <= 256 * KIB
    assert max(sizes) <= KIB * KIB
    assert here.stored["a"] == here.spools["a", 1].data


def test_a_flood_does_not_silence_a_trickle() -> None:
    here = Sending(output_chunk=256 * KIB)
    here.write("flood", b"a" * 4 * KIB * KIB)
    here.step()
    here.write("trickle", b"hello\n")
    here.clock.advance(0.05)
    here.step()
    assert here.stored["trickle"] == b"hello\n"
    assert len(here.stored["flood"]) < 4 * KIB * KIB


@pytest.mark.parametrize("error", [CallTimeout(), StoreUnavailable(), TooLarge()])
def test_what_was_not_taken_is_sent_again(error: Exception) -> None:
    here = Sending()
    store = here.master.answers["output"][0]
    here.master.answers["output"] = [error, {"nonsense": 1}, store]
    holding = here.write("a", b"hello\n")
    here.sender.ended(holding, 6)
    assert (here.step() or 0) > 0
    assert (here.step() or 0) > 0
    assert here.complete == []
    here.step()
    assert here.stored["a"] == b"hello\n"
    assert here.complete == [("a", 1)]


def test_after_an_outage_it_goes_on_where_the_master_is() -> None:
    here = Sending()
    store = here.master.answers["output"][0]

    def stored_and_lost(chunks: list[dict[str, Any]]) -> Any:
        store(chunks)  # type: ignore[operator]
        here.master.connected = False
        here.link.connection_changed("lost")
        raise PeerUnreachable("lost")

    here.master.answers["output"] = [stored_and_lost, store]
    holding = here.write("a", b"hello\n")
    here.clock.advance(1.0)
    here.step()
    assert here.step() is None
    here.write("a", b"world\n")
    here.master.connected = True
    here.link.step(here.now)
    here.sender.go_on_from(("a", 1), len(here.stored["a"]))
    here.clock.advance(1.0)
    here.step()
    assert here.stored["a"] == b"hello\nworld\n"
    assert [chunk["offset"] for chunk in here.messages()[1]] == [6]
    here.sender.ended(holding, 12)
    flow = here.sender.flow(("a", 1))
    assert flow is not None and flow.sha256 is not None


def test_a_master_short_of_room_gets_a_pause() -> None:
    here = Sending(output_chunk=4 * KIB, output_window=1)
    here.slow = True
    here.write("a", b"a" * 100 * KIB)
    here.step()
    assert here.step() == pytest.approx(1.0)
    assert len(here.messages()) == 1
    here.clock.advance(1.0)
    here.step()
    assert len(here.messages()) == 2


def test_two_attempts_of_one_run_never_share_a_message() -> None:
    here = Sending()
    here.write("a", b"old", attempt=1)
    here.write("a", b"new", attempt=2)
    here.clock.advance(1.0)
    here.step()
    (message,) = here.messages()
    assert len({chunk["attempt"] for chunk in message}) == 1


def test_an_attempt_without_output_is_complete_at_once() -> None:
    here = Sending()
    holding = Holding("a", 1, "lease", Stage.ENDED)
    here.holdings.add(holding)
    here.sender.ended(holding, 0)
    assert here.complete == [("a", 1)]
    assert here.step() is None
    assert here.messages() == []


def test_an_answer_that_does_not_name_a_run_ends_its_sending() -> None:
    here = Sending()
    here.master.answers["output"] = [{"acked": {}, "slow": False}]
    here.write("a", b"hello\n")
    here.clock.advance(1.0)
    here.step()
    here.clock.advance(1.0)
    assert here.step() is None
    assert len(here.messages()) == 1


def test_acknowledged_output_is_told_to_the_shepherd() -> None:
    here = Sending()
    holding = here.write("a", b"hello\n")
    here.clock.advance(1.0)
    here.step()
    assert here.acks == [("a", 1, 6)]
    here.sender.ended(holding, 6)
    here.sender.forget(("a", 1))
    assert here.sender.flow(("a", 1)) is None
    assert here.spools["a", 1].closed


def test_news_of_an_attempt_that_is_forgotten_is_passed_over() -> None:
    here = Sending()
    here.sender.grown({("gone", 1): 100})
    assert here.step() is None
