"""From two pipes into a spool: nothing is held back for long, nothing glued, nothing woken too often."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.collector import READ_SIZE, Collector
from agent.event_loop import NEVER
from agent.spool import SpoolWriter
from agent.spool_reader import Chunk, SpoolReader

LIMIT = 1 << 24


class Desk:
    """A collector whose descriptors become ready, and whose time passes, only when the test says so."""

    def __init__(self, path: Path) -> None:
        self.now = 100.0
        self.watched: dict[int, Callable[[float], None]] = {}
        self.progress = 0
        self.ends: list[float] = []
        self.collector = Collector(SpoolWriter(str(path), LIMIT), self, on_progress=self._progressed)
        self.out, self.err = self.collector.open(self.ends.append)
        self.held = {1, 2}
        self.out_reader, self.err_reader = self.watched
        self.reader = SpoolReader(str(path), LIMIT)

    def watch(self, fd: int, callback: Callable[[float], None]) -> None:
        self.watched[fd] = callback

    def watch_writing(self, fd: int, callback: Callable[[float], None]) -> None:
        raise AssertionError("a collector only reads")

    def unwatch(self, fd: int) -> None:
        del self.watched[fd]

    def _progressed(self) -> None:
        self.progress += 1

    def write(self, stream: int, data: bytes, *, read: bool = True) -> None:
        os.write(self.out if stream == 1 else self.err, data)
        if read:
            self.ready(stream)

    def ready(self, stream: int) -> None:
        fd = self.out_reader if stream == 1 else self.err_reader
        self.watched[fd](self.now)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with every wake-up that falls into it."""
        until = self.now + seconds
        while self.collector.wake_at <= until:
            self.now = self.collector.wake_at
            self.collector.wake(self.now)
        self.now = until

    def pieces(self) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        end = 0
        while (chunk := self.reader.read_from(end, 1 << 20)) is not None:
            assert isinstance(chunk, Chunk)
            at = 0
            for stream, length in chunk.segments:
                found.append((stream, chunk.data[at : at + length]))
                at += length
            end = chunk.end
        return found

    def let_go(self, stream: int) -> None:
        os.close(self.out if stream == 1 else self.err)
        self.held.discard(stream)

    def close(self) -> None:
        for stream in list(self.held):
            self.let_go(stream)
        for fd in self.collector.close():
            os.close(fd)
        self.reader.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    one = Desk(tmp_path)
    yield one
    one.close()


def test_output_is_readable_after_a_twentieth_of_a_second_and_told_once(desk: Desk) -> None:
    assert desk.collector.wake_at == NEVER
    desk.write(1, b"one\n")
    desk.write(1, b"two\n")
    assert desk.pieces() == []
    assert desk.collector.wake_at == pytest.approx(desk.now + 0.05)
    desk.pass_time(0.05)
    assert desk.pieces() == [(1, b"one\ntwo\n")]
    assert desk.progress == 1
    assert desk.collector.wake_at == NEVER


def test_much_output_is_written_without_waiting(desk: Desk) -> None:
    desk.write(1, b"x" * 65_535 + b"\n")
    assert desk.pieces() == [(1, b"x" * 65_535 + b"\n")]


def test_an_unfinished_line_lets_the_other_streams_line_go_first_but_not_for_long(desk: Desk) -> None:
    desk.write(1, b"first half, ")
    desk.write(2, b"complaint\n")
    desk.write(1, b"second half\n")
    desk.pass_time(0.05)
    assert desk.pieces() == [(2, b"complaint\n"), (1, b"first half, second half\n")]
    desk.write(1, b"prompt: ")
    desk.pass_time(0.1)
    desk.write(2, b"late complaint\n")
    desk.pass_time(0.1)
    assert desk.pieces()[1:] == [(1, b"first half, second half\nprompt: "), (2, b"late complaint\n")]


def test_a_line_that_never_ends_is_not_held_back_while_it_grows(desk: Desk) -> None:
    for percent in range(100):
        desk.write(1, b"\r%d%%" % percent)
        desk.pass_time(0.01)
    assert sum(len(data) for _, data in desk.pieces()) > 300
    assert desk.progress >= 15


def test_a_long_unfinished_line_is_not_kept_in_memory(desk: Desk) -> None:
    for _ in range(40):
        desk.write(1, b"y" * 60_000)
    assert sum(len(data) for _, data in desk.pieces()) >= 40 * 60_000 - READ_SIZE


def test_very_small_pieces_in_a_row_are_read_at_intervals(desk: Desk) -> None:
    reads = 0
    for _ in range(10_000):
        desk.write(1, b"z\n", read=False)
        if desk.out_reader in desk.watched:
            desk.ready(1)
            reads += 1
        desk.pass_time(0.0001)
    assert reads < 10_000 * 0.0001 / 0.01 + 30
    assert desk.err_reader in desk.watched  # the other stream is not slowed down
    # The pipe was enlarged, so that the writer need not wait meanwhile.
    assert fcntl.fcntl(desk.out_reader, fcntl.F_GETPIPE_SZ) > READ_SIZE
    desk.pass_time(0.1)
    desk.ready(1)
    desk.pass_time(0.1)
    assert desk.pieces() == [(1, b"z\n" * 10_000)]


def test_a_slow_writer_is_read_at_once(desk: Desk) -> None:
    for _ in range(100):
        desk.write(1, b"tick\n")
        assert desk.out_reader in desk.watched
        desk.pass_time(0.02)


def test_the_end_comes_when_both_pipes_are_let_go(desk: Desk) -> None:
    desk.write(1, b"no newline", read=False)
    desk.let_go(1)
    desk.ready(1)
    assert desk.collector.open_pipes == 2  # the bytes first
    desk.ready(1)
    assert (desk.collector.open_pipes, desk.ends) == (1, [])
    desk.let_go(2)
    desk.ready(2)
    assert (desk.collector.open_pipes, desk.ends) == (0, [desk.now])
    assert desk.collector.close() == []
    assert desk.pieces() == [(1, b"no newline")]
    assert desk.watched == {}


def test_drain_takes_all_that_is_there_and_close_hands_over_what_is_held(desk: Desk) -> None:
    desk.write(1, b"a" * 60_000, read=False)
    desk.write(2, b"b" * 60_000, read=False)
    desk.let_go(2)
    desk.collector.drain(desk.now)
    assert desk.collector.open_pipes == 1
    (held,) = desk.collector.close()
    assert desk.watched == {}
    assert sorted(desk.pieces()) == [(1, b"a" * 60_000), (2, b"b" * 60_000)]
    os.write(desk.out, b"still possible")
    os.close(held)


def test_a_paused_pipe_is_drained_and_closed_like_any_other(desk: Desk) -> None:
    for _ in range(40):
        desk.write(1, b"z\n", read=False)
        if desk.out_reader in desk.watched:
            desk.ready(1)
        desk.pass_time(0.0001)
    assert desk.out_reader not in desk.watched
    desk.let_go(1)
    desk.let_go(2)
    desk.collector.drain(desk.now)
    assert desk.collector.open_pipes == 0
    assert desk.collector.wake_at < NEVER
    desk.collector.wake(desk.now + 1)
    assert desk.pieces() == [(1, b"z\n" * 40)]
