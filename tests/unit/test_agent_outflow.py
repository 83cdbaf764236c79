"""One attempt's output: what goes out when, what is sent again, what is declared missing, what the hash covers."""

from __future__ import annotations

import hashlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.outflow import COALESCE_S, TRICKLE_S, Outflow, as_wire
from agent.output import Pace
from agent.spool_reader import Chunk, Gap

CHUNK = 100
KEY = ("0192f0c8-0000-7000-8000-000000000001", 1)


class FakeSpool:
    """Bytes from 0 on, some of them gone; a read error when told so."""

    def __init__(self, written: bytes = b"") -> None:
        self.written = written
        self.gone: list[tuple[int, int]] = []
        self.total: int | None = None
        self.errors = 0
        self.closed = 0

    def read_from(self, offset: int, max_bytes: int) -> Chunk | Gap | None:
        if self.errors:
            self.errors -= 1
            raise OSError(5, "Input/output error")
        for begin, length in self.gone:
            if begin <= offset < begin + length:
                return Gap(offset, begin + length - offset)
        stop = min([len(self.written), offset + max_bytes, *(begin for begin, _ in self.gone if begin > offset)])
        data = self.written[offset:stop]
        return Chunk(offset, [(1, len(data))], data) if data else None

    def ended(self, total: int) -> None:
        self.total = total

    def close(self) -> None:
        self.closed += 1


def flow_over(spool: FakeSpool, *, adopted: bool = False) -> Outflow:
    return Outflow(KEY, "lease", spool, adopted=adopted)


def test_first_bytes_wait_a_moment_for_more_and_no_longer() -> None:
    flow = flow_over(FakeSpool(b"hello"))
    assert flow.due_at(CHUNK) == math.inf
    flow.grow(5, 10.0)
    assert flow.due_at(CHUNK) == pytest.approx(10.0 + COALESCE_S)
    flow.grow(5, 10.02)
    assert flow.due_at(CHUNK) == pytest.approx(10.0 + COALESCE_S)


def test_a_trickle_goes_out_in_few_messages() -> None:
    spool = FakeSpool(b"a" * 10)
    flow = flow_over(spool)
    flow.grow(10, 10.0)
    assert flow.take(CHUNK, 10.03) == Chunk(0, [(1, 10)], b"a" * 10)
    spool.written += b"b"
    flow.grow(11, 10.05)
    assert flow.due_at(CHUNK) == pytest.approx(10.03 + TRICKLE_S)


def test_a_full_chunk_does_not_wait() -> None:
    flow = flow_over(FakeSpool(b"a" * CHUNK))
    flow.grow(CHUNK, 10.0)
    assert flow.due_at(CHUNK) == -math.inf


def test_the_end_makes_the_rest_due_at_once() -> None:
    flow = flow_over(FakeSpool(b"hello"))
    flow.grow(5, 10.0)
    flow.finish(5)
    assert flow.due_at(CHUNK) == -math.inf
    piece = flow.take(CHUNK, 10.0)
    assert piece is not None
    assert flow.due_at(CHUNK) == math.inf
    assert not flow.complete
    flow.settle([piece], 5)
    assert flow.complete


def test_what_was_not_acknowledged_is_read_again() -> None:
    flow = flow_over(FakeSpool(b"0123456789"))
    flow.grow(10, 1.0)
    first, second = flow.take(4, 1.0), flow.take(4, 1.0)
    assert first is not None and second is not None
    flow.settle([first, second], 4)
    assert flow.take(4, 1.0) == second
    flow.rewind([second])
    assert flow.due_at(CHUNK) == -math.inf
    assert flow.take(4, 1.0) == second


def test_an_answer_that_was_lost_costs_neither_bytes_nor_the_hash() -> None:
    flow = flow_over(FakeSpool(b"0123456789"))
    flow.grow(10, 1.0)
    piece = flow.take(6, 1.0)
    assert piece is not None
    flow.rewind([piece])
    flow.go_on_from(6)  # what the master says when it is back
    rest = flow.take(CHUNK, 1.0)
    assert rest == Chunk(6, [(1, 4)], b"6789")
    flow.finish(10)
    flow.settle([rest], 10)
    assert flow.sha256 == hashlib.sha256(b"0123456789").hexdigest()


def test_the_master_may_be_ahead_of_us() -> None:
    flow = flow_over(FakeSpool(b"0123456789"), adopted=True)
    flow.go_on_from(7)
    assert flow.take(CHUNK, 1.0) == Chunk(7, [(1, 3)], b"789")
    flow.finish(10)
    flow.settle([], 10)
    assert flow.complete
    assert flow.sha256 is None, "the first bytes were never seen here"


def test_gaps_are_sent_and_remembered_once() -> None:
    spool = FakeSpool(b"0123456789")
    spool.gone = [(3, 4)]
    flow = flow_over(spool)
    flow.grow(10, 1.0)
    flow.finish(10)
    pieces = [flow.take(CHUNK, 1.0) for _ in range(3)]
    assert pieces == [Chunk(0, [(1, 3)], b"012"), Gap(3, 4), Chunk(7, [(1, 3)], b"789")]
    flow.settle([piece for piece in pieces if piece], 10)
    flow.settle([piece for piece in pieces if piece], 10)
    assert flow.gaps == [(3, 4)]
    assert flow.sha256 == hashlib.sha256(b"012789").hexdigest()


def test_output_that_the_record_tells_of_and_the_spool_has_not_is_a_gap() -> None:
    flow = flow_over(FakeSpool(b"01"))
    flow.finish(10)
    assert flow.take(CHUNK, 1.0) == Chunk(0, [(1, 2)], b"01")
    assert flow.take(CHUNK, 1.0) == Gap(2, 8)
    assert flow.take(CHUNK, 1.0) is None


def test_news_of_output_that_is_not_readable_yet_costs_no_loop() -> None:
    flow = flow_over(FakeSpool())
    flow.grow(CHUNK, 1.0)
    assert flow.take(CHUNK, 1.0) is None
    assert flow.due_at(CHUNK) == math.inf


def test_a_disk_that_cannot_be_read_is_tried_again_and_then_given_up() -> None:
    spool = FakeSpool(b"0123456789")
    spool.errors = 100
    flow = flow_over(spool)
    flow.grow(10, 1.0)
    assert flow.take(CHUNK, 1.0) is None
    assert flow.due_at(CHUNK) == pytest.approx(2.0)
    flow.finish(10)
    pieces = [flow.take(CHUNK, float(second)) for second in range(2, 6)]
    assert pieces == [None, None, None, Gap(0, 10)]


def test_nobody_wants_it() -> None:
    flow = flow_over(FakeSpool(b"0123456789"))
    flow.grow(10, 1.0)
    piece = flow.take(CHUNK, 1.0)
    assert piece is not None
    flow.settle([piece], None)
    assert flow.due_at(CHUNK) == math.inf
    assert not flow.complete
    flow.finish(10)
    assert flow.complete


def test_the_master_asks_for_what_nobody_wanted() -> None:
    flow = flow_over(FakeSpool(b"0123456789"))
    flow.discard()
    flow.finish(10)
    flow.go_on_from(4)
    assert not flow.complete
    assert flow.take(CHUNK, 1.0) == Chunk(4, [(1, 6)], b"456789")


def test_pieces_on_the_wire() -> None:
    flow = flow_over(FakeSpool())
    head = {"run_id": KEY[0], "attempt": 1, "lease": "lease", "offset": 7}
    assert as_wire(flow, Gap(7, 3)) == {**head, "gap": 3}
    assert as_wire(flow, Chunk(7, [(2, 1)], b"x")) == {**head, "segments": [(2, 1)], "data": b"x"}


@given(
    st.binary(min_size=1, max_size=300),
    st.lists(st.sampled_from(["take", "ack", "half", "lost", "register"]), max_size=60),
)
def test_every_byte_arrives_once_whatever_is_lost(written: bytes, happenings: list[str]) -> None:
    spool = FakeSpool(written)
    flow = flow_over(spool)
    received = bytearray()
    sent: list[Chunk | Gap] = []

    def arrive(pieces: list[Chunk | Gap]) -> None:
        for piece in pieces:
            if isinstance(piece, Chunk) and piece.offset == len(received):
                received.extend(piece.data)

    def exchange() -> None:
        while True:
            piece = flow.take(17, 1.0)
            if piece is None or len(sent) == 4:
                break
            sent.append(piece)

    flow.grow(len(written), 1.0)
    for happening in happenings:
        if happening == "take":
            exchange()
        elif happening == "ack":
            arrive(sent)
            flow.settle(list(sent), len(received))
        elif happening == "half":
            arrive(sent[: len(sent) // 2])
            flow.settle(list(sent), len(received))
        elif happening == "lost":
            arrive(sent)  # it came, its answer did not
            flow.rewind(list(sent))
        else:
            flow.go_on_from(len(received))
        if happening != "take":
            sent.clear()
    flow.finish(len(written))
    flow.rewind([])
    sent.clear()
    for _ in range(200):
        if flow.complete:
            break
        exchange()
        arrive(sent)
        flow.settle(list(sent), len(received))
        sent.clear()
    assert bytes(received) == written
    assert flow.complete
    assert flow.sha256 in (None, hashlib.sha256(written).hexdigest())


def test_messages_shrink_on_a_slow_link_and_grow_on_a_quick_one() -> None:
    pace = Pace(1024 * 1024)
    assert pace.budget == 256 * 1024
    pace.learn(256 * 1024, 0.05)
    pace.learn(512 * 1024, 0.05)
    pace.learn(1024 * 1024, 0.05)
    assert pace.budget == 1024 * 1024
    for _ in range(20):
        pace.learn(pace.budget, 3.0)
    assert pace.budget == Pace.LEAST
    pace.learn(10, 0.01)
    assert pace.budget == Pace.LEAST, "a small message says nothing about large ones"
