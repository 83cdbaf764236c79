"""The spool: what goes in comes out once, in order, or is told as a gap; whatever the disk does."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.spool import HEADER, MAGIC, SpoolWriter, file_name, survey
from agent.spool_reader import Chunk, Gap, SpoolReader


class Disk:
    """Writes like `os.writev`, except when it is told to fail."""

    def __init__(self, draw: random.Random | None = None) -> None:
        self.failures = 0
        self.now = 0.0
        self._draw = draw or random.Random(0)

    def clock(self) -> float:
        return self.now

    def write(self, fd: int, pieces: Sequence[bytes | memoryview]) -> int:
        if not self.failures:
            return os.writev(fd, pieces)
        self.failures -= 1
        raw = b"".join(pieces)
        fits = self._draw.randrange(0, len(raw) + 1) if self._draw.random() < 0.5 else 0
        if fits:
            return os.write(fd, raw[:fits])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def writer_at(path: Path, limit: int, disk: Disk | None = None) -> SpoolWriter:
    disk = disk or Disk()
    return SpoolWriter(str(path), limit, write=disk.write, clock=disk.clock)


def read_all(reader: SpoolReader, *, start: int = 0, most: int = 1 << 20) -> list[Chunk | Gap]:
    found: list[Chunk | Gap] = []
    while (piece := reader.read_from(start, most)) is not None:
        assert piece.offset == start
        found.append(piece)
        start = piece.end
    return found


def total_kept(path: Path) -> int:
    return sum(one.stat().st_size for one in path.iterdir())


def test_streams_and_order_are_kept(tmp_path: Path) -> None:
    writer = writer_at(tmp_path, 1000)
    writer.append(1, [b"one\n", b"two\n"])
    writer.append(2, [b"oops\n"])
    writer.append(1, [b"three\n"])
    reader = SpoolReader(str(tmp_path), 1000)
    assert reader.read_from(0, 100) == Chunk(0, [(1, 8), (2, 5), (1, 6)], b"one\ntwo\noops\nthree\n")
    assert reader.read_from(19, 100) is None
    writer.append(1, [b"four\n"])
    assert reader.read_from(19, 100) == Chunk(19, [(1, 5)], b"four\n")
    assert reader.read_from(9, 3) == Chunk(9, [(2, 3)], b"ops")
    assert writer.gaps == []
    writer.close()
    reader.close()


def test_nothing_is_written_before_there_is_output(tmp_path: Path) -> None:
    writer = writer_at(tmp_path, 1000)
    writer.close()
    assert list(tmp_path.iterdir()) == []
    reader = SpoolReader(str(tmp_path), 1000)
    assert reader.read_from(0, 10) is None
    reader.ended(0)
    assert reader.read_from(0, 10) is None
    assert survey(str(tmp_path)) == (0, [])


def test_head_and_tail_are_kept_and_the_middle_is_a_gap(tmp_path: Path) -> None:
    limit = 200_000
    written = b"".join(b"%09d\n" % i for i in range(100_000))
    writer = writer_at(tmp_path, limit)
    for start in range(0, len(written), 1000):
        writer.append(1, [written[start : start + 1000]])
    writer.close()
    reader = SpoolReader(str(tmp_path), limit)
    reader.ended(writer.offset)
    head, gap, *tail = _joined(read_all(reader))
    assert head == written[:100_000]
    assert gap == (100_000, 800_000)
    assert tail == [written[900_000:]]
    assert total_kept(tmp_path) < limit * 1.2
    (dropped,) = writer.gaps
    assert dropped[0] == 100_000
    assert 900_000 - 12_500 <= dropped[0] + dropped[1] <= 900_000
    assert survey(str(tmp_path)) == (len(written), [dropped])


def _joined(pieces: list[Chunk | Gap]) -> list[bytes | tuple[int, int]]:
    joined: list[bytes | tuple[int, int]] = []
    for piece in pieces:
        if isinstance(piece, Gap):
            joined.append((piece.offset, piece.length))
        elif joined and isinstance(joined[-1], bytes):
            joined[-1] += piece.data
        else:
            joined.append(piece.data)
    return joined


def test_what_was_acknowledged_before_it_went_is_no_gap(tmp_path: Path) -> None:
    writer = writer_at(tmp_path, 20_000)
    for _ in range(20):
        writer.append(1, [b"x" * 5000])
        writer.acknowledge(writer.offset)
    assert writer.offset == 100_000
    assert writer.gaps == []
    for _ in range(20):
        writer.append(1, [b"x" * 5000])
    assert writer.gaps[0][0] == 100_000


def test_a_reader_that_lags_behind_the_ring_is_told_what_it_missed(tmp_path: Path) -> None:
    writer = writer_at(tmp_path, 20_000)
    reader = SpoolReader(str(tmp_path), 20_000)
    writer.append(1, [b"a" * 12_000])
    first = reader.read_from(0, 11_000)
    assert isinstance(first, Chunk)
    writer.append(1, [b"b" * 100_000])
    rest = read_all(reader, start=first.end)
    gap_at = [type(piece) for piece in rest].index(Gap)
    assert gap_at > 0  # the file it had open is still there for it
    assert Gap not in [type(piece) for piece in rest[gap_at + 1 :]]
    assert rest[-1].end == 112_000
    reader.close()


def test_a_torn_frame_is_not_there_yet(tmp_path: Path) -> None:
    writer = writer_at(tmp_path, 1000)
    writer.append(1, [b"whole"])
    writer.close()
    path = tmp_path / file_name(0)
    for torn in (b"\xf5", HEADER.pack(MAGIC, 1, 5, 5), HEADER.pack(MAGIC, 1, 5, 5) + b"torn", b"\0" * 40):
        whole = path.read_bytes()[: HEADER.size + 5]
        path.write_bytes(whole + torn)
        reader = SpoolReader(str(tmp_path), 1000)
        assert reader.read_from(0, 100) == Chunk(0, [(1, 5)], b"whole")
        assert reader.read_from(5, 100) is None
        assert reader.read_from(5, 2) is None  # also where a part of it would do
        assert survey(str(tmp_path)) == (5, [])
        path.write_bytes(whole + HEADER.pack(MAGIC, 2, 5, 5) + b"later")
        assert reader.read_from(5, 100) == Chunk(5, [(2, 5)], b"later")
        reader.close()


def test_a_full_disk_costs_a_gap_and_is_tried_again_after_a_second(tmp_path: Path) -> None:
    disk = Disk()
    writer = writer_at(tmp_path, 1000, disk)
    writer.append(1, [b"before "])
    disk.failures = 1
    writer.append(1, [b"lost "])
    writer.append(1, [b"lost, too "])  # without trying
    assert (writer.failure, writer.unwritten) == (os.strerror(errno.ENOSPC), 15)
    disk.now += 1.0
    writer.append(1, [b"after"])
    writer.close()
    assert writer.gaps == [[7, 15]]
    reader = SpoolReader(str(tmp_path), 1000)
    reader.ended(writer.offset)
    assert _joined(read_all(reader)) == [b"before ", (7, 15), b"after"]


def test_a_directory_that_is_gone_is_survived(tmp_path: Path) -> None:
    writer = writer_at(tmp_path / "missing", 1000)
    writer.append(1, [b"lost"])
    writer.close()
    assert writer.gaps == [[0, 4]]
    reader = SpoolReader(str(tmp_path / "missing"), 1000)
    assert reader.read_from(0, 10) is None
    reader.ended(4)
    assert reader.read_from(0, 10) == Gap(0, 4)


@pytest.mark.parametrize("limit", [0, 1, 2, 10])
def test_tiny_limits(tmp_path: Path, limit: int) -> None:
    writer = writer_at(tmp_path, limit)
    writer.append(1, [b"abcdefghijklmnopqrstuvwxyz"])
    writer.close()
    reader = SpoolReader(str(tmp_path), limit)
    reader.ended(26)
    kept = b"".join(piece.data for piece in read_all(reader) if isinstance(piece, Chunk))
    half = limit // 2
    assert kept == b"abcdefghijklmnopqrstuvwxyz"[:half] + b"abcdefghijklmnopqrstuvwxyz"[26 - half :]


def test_more_pieces_than_one_write_takes(tmp_path: Path) -> None:
    writer = writer_at(tmp_path, 1 << 20)
    writer.append(1, [b"%05d\n" % i for i in range(3000)])
    writer.close()
    reader = SpoolReader(str(tmp_path), 1 << 20)
    assert _joined(read_all(reader)) == [b"".join(b"%05d\n" % i for i in range(3000))]


def test_a_reader_beside_a_fast_writer_sees_no_gap_where_there_is_none(tmp_path: Path) -> None:
    total = 4_000_000
    writer = writer_at(tmp_path, 4 * total)
    writer._file_size = 8192  # many files, as their borders are where it could go wrong
    data = b"".join(b"%07d\n" % i for i in range(total // 8))

    def write() -> None:
        for start in range(0, total, 2000):
            writer.append(1 + start % 2, [data[start : start + 2000]])
        writer.close()

    thread = threading.Thread(target=write)
    reader = SpoolReader(str(tmp_path), 4 * total)
    thread.start()
    end = 0
    while end < total:
        piece = reader.read_from(end, 5000)
        if piece is not None:
            assert isinstance(piece, Chunk), piece
            assert piece.data == data[end : piece.end]
            end = piece.end
    thread.join(20)
    reader.close()


SIZES = st.sampled_from([1, 3, 100, 4096, 5000])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([1, 2]), st.lists(SIZES, min_size=1, max_size=4)),
        st.tuples(st.just("read"), st.sampled_from([1, 700, 9000]), st.integers(1, 4)),
        st.tuples(st.just("fail"), st.integers(1, 2)),
        st.tuples(st.just("wait")),
        st.tuples(st.just("new reader")),
        st.tuples(st.just("acknowledge")),
    ),
    max_size=40,
)


@given(steps=STEPS, limit=st.sampled_from([0, 10, 3000, 30_000, 200_000]), seed=st.integers(0, 1 << 16))
def test_every_byte_is_read_once_or_told_as_a_gap(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]], limit: int, seed: int
) -> None:
    path = tmp_path_factory.mktemp("spool")
    draw = random.Random(seed)
    disk = Disk(draw)
    writer = writer_at(path, limit, disk)
    reader = SpoolReader(str(path), limit)
    written, streams = bytearray(), bytearray()
    position = 0

    def take(piece: Chunk | Gap) -> int:
        assert piece.offset == position
        assert piece.end <= len(written)
        if isinstance(piece, Chunk):
            assert piece.data == bytes(written[position : piece.end])
            told = b"".join(bytes([stream]) * length for stream, length in piece.segments)
            assert told == bytes(streams[position : piece.end])
        return piece.end

    for what, *how in steps:
        if what == "write":
            stream, sizes = how
            pieces = [draw.randbytes(size) for size in sizes]  # type: ignore[attr-defined]
            writer.append(stream, pieces)  # type: ignore[arg-type]
            written += b"".join(pieces)
            streams += bytes([stream]) * (len(written) - len(streams))  # type: ignore[list-item]
            assert writer.offset == len(written)
        elif what == "read":
            for _ in range(how[1]):  # type: ignore[call-overload]
                piece = reader.read_from(position, how[0])  # type: ignore[arg-type]
                if piece is not None:
                    position = take(piece)
        elif what == "fail":
            disk.failures = how[0]  # type: ignore[assignment]
        elif what == "wait":
            disk.now += 1.0
        elif what == "acknowledge":
            writer.acknowledge(position)
        else:
            reader.close()
            reader = SpoolReader(str(path), limit)
    writer.close()
    reader.ended(len(written))
    while (piece := reader.read_from(position, 9000)) is not None:
        position = take(piece)
    assert position == len(written)
    assert total_kept(path) <= limit + max(4096, limit // 16) + 16 * 400
    reader.close()
