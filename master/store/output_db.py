"""SQL of the output database: pieces appended at the known end, a bounded middle, ranges read back.

Kept are the first half of an attempt's `output_limit` and the last half of what came after; the piece that the border
of the tail runs through is stored whole, and read only from the border on. So what is kept depends on the bytes alone,
never on how they were cut into chunks. Only an attempt with thousands of gaps keeps less: its rows are bounded, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

MERGE_BELOW: Final = 8 * 1024
"""Neighbouring pieces are stored as one up to this size: a script that writes byte by byte fills no table."""

GAPS_MOST: Final = 1_000
"""Gaps that the head of an attempt may have, and its tail. Beyond it the head is closed, and the tail gives up its
oldest bytes, so that there the middle is one gap."""

Segments = list[tuple[int, int]]
"""(stream number, length) in order; the lengths add up to the bytes they describe."""


@dataclass(slots=True)
class Extent:
    """How far an attempt's output is known, and how much of it is kept."""

    num: int
    limit: int
    size: int
    head: int
    tail: int

    @property
    def head_most(self) -> int:
        """Bytes that the head may hold."""
        return self.limit - self.limit // 2

    @property
    def tail_most(self) -> int:
        """Bytes that the tail shows."""
        return self.limit // 2

    @property
    def hidden(self) -> int:
        """Bytes of the oldest tail piece that lie before the border: stored, never shown."""
        return max(0, self.tail - self.tail_most)


@dataclass(frozen=True, slots=True)
class Piece:
    """Kept bytes that begin at `start`."""

    start: int
    segments: Segments
    content: bytes


def _pieces_most(size: int) -> int:
    """Pieces that so many bytes with `GAPS_MOST` gaps can be stored in: of two neighbours one is half full or more."""
    return GAPS_MOST + 2 * size // MERGE_BELOW + 1


def cut(segments: Sequence[tuple[int, int]], begin: int, end: int) -> Segments:
    """The segments of the bytes from `begin` to `end`, neighbours of one stream joined."""
    found: Segments = []
    at = 0
    for stream, length in segments:
        first, last = max(at, begin), min(at + length, end)
        at += length
        if first < last:
            if found and found[-1][0] == stream:
                found[-1] = (stream, found[-1][1] + last - first)
            else:
                found.append((stream, last - first))
    return found


class OutputReadTx:
    """A snapshot of the output database."""

    __slots__ = ("db",)

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def extent(self, run_id: str, attempt: int) -> Extent | None:
        """What is known of an attempt; None before its first byte."""
        sql = "SELECT num, output_limit, size, head, tail FROM outputs WHERE run_id = ? AND attempt = ?"
        row = self.db.execute(sql, (run_id, attempt)).fetchone()
        return None if row is None else Extent(*row)

    def gaps(self, extent: Extent) -> list[tuple[int, int]]:
        """(offset, length) of what is not kept below the known end, in order."""
        border = self._border(extent)
        sql = (
            "SELECT before, start FROM (SELECT start, lag(start + length, 1, 0) OVER (ORDER BY start) AS before FROM"
            " (SELECT max(start, CASE part WHEN 1 THEN ? ELSE 0 END) AS start,"
            " start + length - max(start, CASE part WHEN 1 THEN ? ELSE 0 END) AS length"
            " FROM pieces WHERE num = ?)) WHERE start > before ORDER BY start"
        )
        found = [(before, start - before) for before, start in self.db.execute(sql, (border, border, extent.num))]
        last = self.db.execute(
            "SELECT start + length FROM pieces WHERE num = ? ORDER BY start DESC LIMIT 1", (extent.num,)
        ).fetchone()
        end = 0 if last is None else last[0]
        return [*found, (end, extent.size - end)] if end < extent.size else found

    def pieces(self, extent: Extent, *, offset: int, most: int) -> list[Piece]:
        """Kept pieces that end behind `offset`, in order, until they hold `most` bytes; trimmed at both ends."""
        border = self._border(extent)
        sql = "SELECT part, start, segments, content FROM pieces WHERE num = ? AND start > ? ORDER BY start"
        found: list[Piece] = []
        first = self.db.execute(
            "SELECT max(start) FROM pieces WHERE num = ? AND start <= ?", (extent.num, offset)
        ).fetchone()[0]
        for part, start, packed, content in self.db.execute(sql, (extent.num, -1 if first is None else first - 1)):
            begin = max(offset, border if part else 0) - start
            if begin >= len(content):
                continue
            begin = max(begin, 0)
            end = min(len(content), begin + most)
            segments = cut(msgspec.msgpack.decode(packed, type=Segments), begin, end)
            found.append(Piece(start + begin, segments, content[begin:end]))
            most -= end - begin
            if most <= 0:
                break
        return found

    def _border(self, extent: Extent) -> int:
        """Where the shown tail begins; 0 while all of it is shown."""
        if not extent.hidden:
            return 0
        sql = "SELECT start FROM pieces WHERE num = ? AND part = 1 ORDER BY start LIMIT 1"
        row = self.db.execute(sql, (extent.num,)).fetchone()
        return 0 if row is None else row[0] + extent.hidden


class OutputWriteTx(OutputReadTx):
    """The output database, to be changed."""

    __slots__ = ()

    def open_extent(self, run_id: str, attempt: int, *, limit: int) -> Extent:
        """What is known of an attempt; its first call fixes the limit (bytes)."""
        found = self.extent(run_id, attempt)
        if found is not None:
            return found
        sql = "INSERT INTO outputs (run_id, attempt, output_limit, size, head, tail) VALUES (?, ?, ?, 0, 0, 0)"
        num = self.db.execute(sql, (run_id, attempt, limit)).lastrowid
        return Extent(num=num or 0, limit=limit, size=0, head=0, tail=0)

    def save_extent(self, extent: Extent) -> None:
        """Store what `extend` and `skip` have changed."""
        sql = "UPDATE outputs SET size = ?, head = ?, tail = ? WHERE num = ?"
        self.db.execute(sql, (extent.size, extent.head, extent.tail, extent.num))

    def extend(self, extent: Extent, content: bytes, segments: Segments) -> None:
        """Append bytes at the known end."""
        into_head = min(len(content), extent.head_most - extent.head)
        if into_head > 0:
            self._put(extent, 0, extent.size, content[:into_head], cut(segments, 0, into_head))
            extent.head += into_head
        begin = max(into_head, len(content) - extent.tail_most)
        if begin > into_head:  # more than a whole tail at once: nothing older is left of it
            self.db.execute("DELETE FROM pieces WHERE num = ? AND part = 1", (extent.num,))
            extent.tail = 0
        if begin < len(content):
            self._put(extent, 1, extent.size + begin, content[begin:], cut(segments, begin, len(content)))
            extent.tail += len(content) - begin
            self._drop_oldest(extent)
        extent.size += len(content)

    def skip(self, extent: Extent, length: int) -> None:
        """The next `length` bytes will never come: a declared gap."""
        extent.size += length
        head, tail = self._count(extent, 0), self._count(extent, 1)
        if head > _pieces_most(extent.head):
            extent.head = extent.head_most
        if tail > _pieces_most(extent.tail):
            self._drop_first(extent, tail - _pieces_most(extent.tail))

    def _count(self, extent: Extent, part: int) -> int:
        sql = "SELECT count(*) FROM pieces WHERE num = ? AND part = ?"
        number: int = self.db.execute(sql, (extent.num, part)).fetchone()[0]
        return number

    def _drop_first(self, extent: Extent, number: int) -> None:
        sql = "SELECT id, length FROM pieces WHERE num = ? AND part = 1 ORDER BY start LIMIT ?"
        gone = self.db.execute(sql, (extent.num, number)).fetchall()
        extent.tail -= sum(length for _, length in gone)
        self.db.executemany("DELETE FROM pieces WHERE id = ?", [(piece,) for piece, _ in gone])

    def _put(self, extent: Extent, part: int, start: int, content: bytes, segments: Segments) -> None:
        if len(content) < MERGE_BELOW and self._merge(extent, part, start, content, segments):
            return
        sql = "INSERT INTO pieces (num, part, start, length, segments, content) VALUES (?, ?, ?, ?, ?, ?)"
        packed = msgspec.msgpack.encode(segments)
        self.db.execute(sql, (extent.num, part, start, len(content), packed, content))

    def _merge(self, extent: Extent, part: int, start: int, content: bytes, segments: Segments) -> bool:
        sql = (
            "SELECT id, part, start, length, segments, content FROM pieces WHERE num = ? AND length < ?"
            " AND id = (SELECT id FROM pieces WHERE num = ? ORDER BY start DESC LIMIT 1)"
        )
        last = self.db.execute(sql, (extent.num, MERGE_BELOW - len(content), extent.num)).fetchone()
        if last is None or last[1] != part or last[2] + last[3] != start:
            return False
        length = last[3] + len(content)
        joined = cut([*msgspec.msgpack.decode(last[4], type=Segments), *segments], 0, length)
        self.db.execute(
            "UPDATE pieces SET length = ?, segments = ?, content = ? WHERE id = ?",
            (length, msgspec.msgpack.encode(joined), last[5] + content, last[0]),
        )
        return True

    def _drop_oldest(self, extent: Extent) -> None:
        """Remove tail pieces that lie wholly before the border."""
        if not extent.hidden:
            return
        gone = []
        sql = "SELECT id, length FROM pieces WHERE num = ? AND part = 1 ORDER BY start"
        for piece, length in self.db.execute(sql, (extent.num,)):
            if extent.tail - length < extent.tail_most:
                break
            extent.tail -= length
            gone.append((piece,))
        self.db.executemany("DELETE FROM pieces WHERE id = ?", gone)

    def delete_some(self, run_ids: Sequence[str], *, most: int) -> int:
        """Delete up to `most` pieces of these runs, then the runs without any left; answers how many pieces went."""
        marks = ",".join("?" * len(run_ids))
        nums = f"SELECT num FROM outputs WHERE run_id IN ({marks})"
        gone = self.db.execute(
            f"DELETE FROM pieces WHERE id IN (SELECT id FROM pieces WHERE num IN ({nums}) LIMIT ?)", (*run_ids, most)
        ).rowcount
        if gone < most:
            self.db.execute(f"DELETE FROM outputs WHERE run_id IN ({marks})", run_ids)
        return gone
