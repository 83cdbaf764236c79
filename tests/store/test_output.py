"""The output store: appended once each, bounded, read back by offset; against a model that keeps every byte."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import gevent
import hypothesis.strategies as st
import pytest
from hypothesis import given

from common import faults
from common.errors import InvalidRequest, StoreUnavailable
from common.model import Stream
from master.output import OutputChunk, OutputPiece, OutputStore
from master.store import output_db
from master.store.output_db import MERGE_BELOW, cut

OpenOutput = Callable[[], OutputStore]


@pytest.fixture
def open_output(tmp_path: Path) -> Iterator[OpenOutput]:
    opened: list[OutputStore] = []

    def open_store() -> OutputStore:
        store = OutputStore(tmp_path / "output.db", readers=1)
        store.open()
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def output(open_output: OpenOutput) -> OutputStore:
    return open_output()


def chunk(offset: int, content: bytes = b"", *, run: str = "r", attempt: int = 1, stream: int = 1, gap: int = 0,
          limit: int = 1 << 20) -> OutputChunk:  # fmt: skip
    segments = [(stream, len(content))] if content else []
    return OutputChunk(run, attempt, offset, content, segments, gap, limit)


def read_all(
    store: OutputStore, *, stream: Stream = Stream.ALL, limit: int = 7, run: str = "r"
) -> tuple[bytes, OutputPiece]:
    """Everything from the start, page by page, and the last page."""
    found: list[bytes] = []
    offset = 0
    while True:
        piece = store.read(run, 1, stream=stream, offset=offset, limit=limit)
        assert len(piece.data) <= limit and piece.next_offset >= offset
        found.append(piece.data)
        if piece.next_offset == piece.size:
            return b"".join(found), piece
        assert piece.next_offset > offset
        offset = piece.next_offset


def test_what_was_appended_is_read_by_stream_and_offset(output: OutputStore) -> None:
    assert output.append([chunk(0, b"out1"), chunk(4, b"err\xff\xfe", stream=2)]) == {"r": 9}
    assert output.append([chunk(9, b"out2")]) == {"r": 13}
    everything = output.read("r", 1)
    assert everything == OutputPiece(
        data=b"out1err\xff\xfeout2", next_offset=13, size=13, gaps=[], segments=[(0, 1, 4), (4, 2, 5), (9, 1, 4)]
    )
    assert output.read("r", 1, stream=Stream.STDOUT).data == b"out1out2"
    assert output.read("r", 1, stream=Stream.STDERR).segments == [(4, 2, 5)]
    middle = output.read("r", 1, offset=3, limit=3)
    assert (middle.data, middle.next_offset, middle.segments) == (b"1er", 6, [(3, 1, 1), (4, 2, 2)])
    assert output.read("r", 1, offset=13).data == b""
    assert output.read("r", 1, offset=99).next_offset == 99
    assert output.size("r", 1) == 13


def test_attempts_and_runs_stand_apart(output: OutputStore) -> None:
    acked = output.append([chunk(0, b"one"), chunk(0, b"three", run="s"), chunk(0, b"two!", attempt=2)])
    assert acked == {"r": 4, "s": 5}
    assert [output.read(*key).data for key in (("r", 1), ("r", 2), ("s", 1))] == [b"one", b"two!", b"three"]


def test_an_attempt_without_output_is_empty(output: OutputStore) -> None:
    assert output.read("r", 1) == OutputPiece(data=b"", next_offset=0, size=0, gaps=[], segments=[])
    assert output.size("r", 1) == 0
    assert output.kept("r", 1).sha256 == hashlib.sha256().hexdigest() and output.kept("r", 1).gaps == []


def test_a_repeated_chunk_is_acknowledged_and_stored_once(output: OutputStore) -> None:
    for _ in range(3):
        assert output.append([chunk(0, b"abc"), chunk(3, b"def", stream=2)]) == {"r": 6}
    assert output.append([chunk(0, b"abc")]) == {"r": 6}
    assert output.read("r", 1).data == b"abcdef"


def test_of_an_overlapping_chunk_only_the_rest_is_stored(output: OutputStore) -> None:
    output.append([chunk(0, b"abcd")])
    overlapping = OutputChunk("r", 1, 2, b"cdEFg", [(1, 2), (2, 2), (1, 1)])
    assert output.append([overlapping]) == {"r": 7}
    piece = output.read("r", 1)
    assert piece.data == b"abcdEFg"
    assert piece.segments == [(0, 1, 4), (4, 2, 2), (6, 1, 1)]


def test_a_chunk_behind_the_known_end_is_left_for_its_turn(output: OutputStore) -> None:
    assert output.append([chunk(0, b"ab"), chunk(5, b"fgh")]) == {"r": 2}
    assert output.append([chunk(2, b"cde")]) == {"r": 5}
    assert output.append([chunk(5, b"fgh")]) == {"r": 8}
    assert output.read("r", 1).data == b"abcdefgh"


def test_a_declared_gap_moves_the_end_and_is_told(output: OutputStore) -> None:
    assert output.append([chunk(0, b"ab"), chunk(2, gap=10), chunk(12, b"cd")]) == {"r": 14}
    assert output.append([chunk(2, gap=10)]) == {"r": 14}
    assert output.append([chunk(10, gap=6)]) == {"r": 16}
    piece = output.read("r", 1)
    assert (piece.data, piece.gaps, piece.size, piece.next_offset) == (b"abcd", [(2, 10), (14, 2)], 16, 16)
    assert output.read("r", 1, offset=5).segments == [(12, 1, 2)]
    assert output.kept("r", 1).gaps == [(2, 10), (14, 2)]


def test_head_and_tail_stay_and_the_middle_becomes_a_gap(output: OutputStore) -> None:
    offset = 0
    written = bytes(range(256)) * 8
    for start in range(0, len(written), 100):
        part = written[start : start + 100]
        offset = output.append([chunk(offset, part, limit=501)])["r"]
        kept, last = read_all(output)
        assert kept == (written[:offset] if offset <= 501 else written[:251] + written[offset - 250 : offset])
        assert last.gaps == ([] if offset <= 501 else [(251, offset - 501)])
    assert output.kept("r", 1).sha256 == hashlib.sha256(written[:251] + written[-250:]).hexdigest()


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_tiny_limits_keep_what_they_say(output: OutputStore, limit: int) -> None:
    output.append([chunk(0, b"abcdefgh", limit=limit)])
    output.append([chunk(8, b"ijk", limit=limit)])
    kept, last = read_all(output)
    assert kept == {0: b"", 1: b"a", 2: b"ak", 3: b"abk"}[limit]
    assert sum(length for _, length in last.gaps) + len(kept) == last.size == 11


@pytest.mark.parametrize(
    "wrong",
    [
        OutputChunk("r", 1, -1, b"a", [(1, 1)]),
        OutputChunk("r", 1, 0, b"ab", [(1, 1)]),
        OutputChunk("r", 1, 0, b"ab", [(1, 3)]),
        OutputChunk("r", 1, 0, b"ab", [(3, 2)]),
        OutputChunk("r", 1, 0, b"ab", [(1, 3), (2, -1)]),
        OutputChunk("r", 1, 0, b"ab", [(1, 2)], gap=3),
        OutputChunk("r", 1, 0, gap=-3),
    ],
)
def test_a_chunk_that_cannot_be_is_refused_and_nothing_is_stored(output: OutputStore, wrong: OutputChunk) -> None:
    with pytest.raises(InvalidRequest, match="run r"):
        output.append([chunk(0, b"fine", run="s"), wrong])
    assert output.size("s", 1) == 0


def test_deleting_takes_all_of_a_run_and_nothing_else(output: OutputStore) -> None:
    for number in range(150):
        output.append([chunk(number * MERGE_BELOW, b"x" * MERGE_BELOW, limit=1 << 30)])
    output.append([chunk(0, b"second", attempt=2), chunk(0, b"stays", run="s")])
    output.delete(["r", "unknown"])
    assert output.size("r", 1) == output.size("r", 2) == 0
    assert output.read("s", 1).data == b"stays"
    output.delete([])
    assert output.append([chunk(0, b"anew")]) == {"r": 4}


def test_many_small_writes_make_few_rows(output: OutputStore, tmp_path: Path) -> None:
    offset = 0
    for number in range(200):
        offset = output.append([chunk(offset, b"a line of text\n" * 3, stream=1 + number % 2)])["r"]
    db = sqlite3.connect(tmp_path / "output.db")
    assert db.execute("SELECT count(*) FROM pieces").fetchone()[0] <= 1 + offset // (MERGE_BELOW // 2)
    db.close()
    assert output.read("r", 1, stream=Stream.STDERR).data == b"a line of text\n" * 300


@pytest.mark.parametrize("limit", [1 << 20, 100])
def test_output_of_crumbs_with_gaps_between_makes_few_rows(
    output: OutputStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(output_db, "GAPS_MOST", 10)
    crumbs = [
        part for at in range(0, 400, 2) for part in (chunk(at, b"%d" % (at % 10), limit=limit), chunk(at + 1, gap=1))
    ]
    for at in range(0, len(crumbs), 40):
        output.append(crumbs[at : at + 40])
    output.append([chunk(400, b"the end")])
    data, piece = read_all(output)
    assert piece.size == 407
    assert data.startswith(b"0246802468") and data.endswith(b"68the end")
    assert 10 <= len(piece.gaps) <= 25
    assert sum(length for _, length in piece.gaps) + len(data) == piece.size
    with sqlite3.connect(tmp_path / "output.db") as db:
        assert db.execute("SELECT count(*) FROM pieces").fetchone()[0] <= 25


def test_bytes_that_wait_for_their_commit_are_counted(output: OutputStore) -> None:
    writers = [gevent.spawn(output.append, [chunk(0, b"x" * 1_000, run=f"r{n}")]) for n in range(20)]
    gevent.idle()
    seen = output.pending_bytes
    gevent.joinall(writers, raise_error=True)
    assert 0 < seen <= 20_000 and output.pending_bytes == 0


def test_a_failed_commit_acknowledges_nothing(output: OutputStore) -> None:
    output.append([chunk(0, b"ab")])
    faults.arm("output-before-commit=fail")
    try:
        with pytest.raises(StoreUnavailable):
            output.append([chunk(2, b"cd")])
    finally:
        faults.arm("")
    assert output.problem() is not None and output.pending_bytes == 0
    assert output.read("r", 1).data == b"ab"
    assert output.append([chunk(2, b"cd")]) == {"r": 4}
    assert output.problem() is None


def test_it_is_all_there_after_a_restart(output: OutputStore, open_output: OpenOutput) -> None:
    output.append([chunk(0, b"ab"), chunk(2, gap=3)])
    output.close()
    again = open_output()
    assert again.append([chunk(5, b"cd")]) == {"r": 7}
    assert read_all(again)[0] == b"abcd"


def test_acknowledged_output_survives_kill_9(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import gevent
from master.output import OutputChunk, OutputStore
store = OutputStore(Path(sys.argv[1])); store.open()
def work(run):
    offset = 0
    while True:
        line = f"{run} {offset}\\n".encode()
        offset = store.append([OutputChunk(run, 1, offset, line, [(1, len(line))])])[run]
        print(run, offset, flush=True)
gevent.joinall([gevent.spawn(work, f"r{n}") for n in range(8)], raise_error=True)
"""
    path = tmp_path / "output.db"
    storm = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert storm.stdout is not None
    lines = [storm.stdout.readline() for _ in range(300)]
    storm.kill()
    lines += storm.stdout.readlines()
    storm.wait()
    storm.stdout.close()
    acked = {run: int(offset) for run, offset in (line.split() for line in lines if line.endswith("\n"))}
    store = OutputStore(path)
    store.open()
    for run, offset in acked.items():
        written = b""
        while len(written) < offset:
            written += f"{run} {len(written)}\n".encode()
        stored = read_all(store, run=run, limit=1 << 20)[0]
        assert stored[:offset] == written
    store.close()


@dataclass
class Model:
    """Every byte ever written, with its offset and stream."""

    limit: int
    size: int = 0
    written: list[tuple[int, int, int]] = field(default_factory=list)  # (offset, stream, byte)

    def append(self, some: OutputChunk) -> int:
        if some.offset <= self.size:
            streams = [stream for stream, length in some.segments for _ in range(length)]
            placed = zip(range(some.offset, some.offset + len(some.content)), streams, some.content, strict=True)
            self.written += [byte for byte in placed if byte[0] >= self.size]
            self.size = max(self.size, some.offset + len(some.content), some.offset + some.gap)
        return self.size

    def kept(self) -> list[tuple[int, int, int]]:
        head = self.limit - self.limit // 2
        rest = self.written[head:]
        return self.written[:head] + (rest[-(self.limit // 2) :] if self.limit // 2 else [])

    def gaps(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        kept = {offset for offset, _, _ in self.kept()}
        for offset in range(self.size):
            if offset not in kept:
                if found and sum(found[-1]) == offset:
                    found[-1] = (found[-1][0], found[-1][1] + 1)
                else:
                    found.append((offset, 1))
        return found


steps = st.lists(
    st.tuples(
        st.sampled_from(["next"] * 6 + ["repeat", "overlap", "beyond", "gap", "gap-overlap"]),
        st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 9)), min_size=1, max_size=4),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def shared_output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutputStore]:
    store = OutputStore(tmp_path_factory.mktemp("shared") / "output.db", readers=1)
    store.open()
    yield store
    store.close()


@given(steps=steps, limit=st.integers(0, 60), pages=st.integers(1, 50), merged=st.booleans())
def test_whatever_is_appended_the_model_agrees(
    shared_output: OutputStore, steps: list[tuple[str, list[tuple[int, int]]]], limit: int, pages: int, merged: bool,
) -> None:  # fmt: skip
    # `shared_output` serves all examples: each takes a run of its own.
    run = os.urandom(8).hex()
    model = Model(limit)
    for kind, segments in steps:
        length = sum(part for _, part in segments)
        content = os.urandom(length)
        at = {
            "next": model.size, "gap": model.size, "repeat": max(0, model.size - length), "beyond": model.size + 1,
            "overlap": max(0, model.size - length // 2), "gap-overlap": max(0, model.size - length // 2),
        }[kind]  # fmt: skip
        if kind.startswith("gap"):
            some = OutputChunk(run, 1, at, gap=length, limit=limit)
        else:
            some = OutputChunk(run, 1, at, content, segments, limit=limit)
        expected = model.append(some)
        assert shared_output.append([some] if merged else [some, some]) == {run: expected}
    kept = model.kept()
    data, last = read_all(shared_output, run=run, limit=pages)
    assert data == bytes(byte for _, _, byte in kept)
    assert (last.size, last.gaps) == (model.size, model.gaps())
    assert shared_output.kept(run, 1).sha256 == hashlib.sha256(data).hexdigest()
    for stream, number in ((Stream.STDOUT, 1), (Stream.STDERR, 2)):
        only = bytes(byte for _, of, byte in kept if of == number)
        assert read_all(shared_output, run=run, stream=stream, limit=pages)[0] == only


@given(
    segments=st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 5)), max_size=6),
    begin=st.integers(0, 30),
    length=st.integers(0, 30),
)
def test_cutting_segments_agrees_with_cutting_bytes(segments: list[tuple[int, int]], begin: int, length: int) -> None:
    flat = [stream for stream, part in segments for _ in range(part)]
    found = cut(segments, begin, begin + length)
    assert [stream for stream, part in found for _ in range(part)] == flat[begin : begin + length]
    assert all(first[0] != second[0] for first, second in pairwise(found))


def test_a_hundred_megabytes_cost_no_memory(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from master.output import OutputChunk, OutputStore
store = OutputStore(Path(sys.argv[1])); store.open()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
offset, content = 0, b"x" * 262_144
while offset < 100_000_000:
    offset = store.append([OutputChunk("r", 1, offset, content, [(1, len(content))])])["r"]
store.kept("r", 1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
store.close()
"""
    path = tmp_path / "output.db"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30, f"{done.stdout.strip()} MiB more"
    assert path.stat().st_size < 24 * 1024 * 1024
