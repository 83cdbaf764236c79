"""The output of attempts: appended as agents send it, acknowledged after the commit, read back by offset.

Offsets count over both streams of an attempt; kept bytes plus gaps are all bytes written. Appending is idempotent:
what was acknowledged before is acknowledged again, and a chunk behind the known end is left for its turn. Of each
attempt the first and the last half of its limit are kept. Memory is bounded by what waits for the next commit.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from common.errors import InvalidRequest
from common.model import STREAM_NUMBERS, Stream
from master.store.file import Shape, SqliteFile
from master.store.migrate import REVISIONS
from master.store.output_db import Extent, OutputReadTx, OutputWriteTx, Segments, cut

_SHAPE: Final = Shape(
    name="output", branch="output_versions", revision=REVISIONS["output_versions"], cache_kib=4 * 1024
)
_STREAMS: Final = frozenset(STREAM_NUMBERS.values())
_DELETED_AT_ONCE: Final = 64
_READ_AT_ONCE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Bytes of an attempt from `offset` on, or a declared `gap` of that many bytes there.

    `segments` are (stream number, length) in order and add up to the bytes. `limit`: bytes kept of the attempt, fixed
    by its first chunk.
    """

    run_id: str
    attempt: int
    offset: int
    content: bytes = b""
    segments: Segments = field(default_factory=list)
    gap: int = 0
    limit: int = 16 * 1024 * 1024

    def check(self) -> None:
        """Raises `InvalidRequest` for a chunk that cannot be."""
        if self.offset < 0 or self.gap < 0 or (self.gap and self.content):
            raise InvalidRequest.of("chunks", f"run {self.run_id}: a chunk has an offset and either bytes or a gap")
        lengths = [length for stream, length in self.segments if stream in _STREAMS and length > 0]
        if len(lengths) != len(self.segments) or sum(lengths) != len(self.content):
            raise InvalidRequest.of("chunks", f"run {self.run_id}: the segments of a chunk must add up to its bytes")


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """What was read: the bytes, where to go on, and what is known of the whole attempt.

    `segments` are (offset, stream number, length) of the bytes in order, `gaps` (offset, length) over [0, `size`).
    """

    data: bytes
    next_offset: int
    size: int
    gaps: list[tuple[int, int]]
    segments: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of an attempt: the SHA-256 of the kept bytes in order, and what is missing as (offset, length)."""

    sha256: str
    gaps: list[tuple[int, int]]


class _NoMemory:
    """The output database has no counters: everything it knows is in its rows."""

    def load(self, db: sqlite3.Connection) -> None:
        """See `writer.Ledger`."""

    def open_tx(self, db: sqlite3.Connection) -> OutputWriteTx:
        """See `writer.Ledger`."""
        return OutputWriteTx(db)

    def keep(self, tx: Any) -> None:
        """See `writer.Ledger`."""

    def seal(self, db: sqlite3.Connection) -> None:
        """See `writer.Ledger`."""

    def committed(self) -> None:
        """See `writer.Ledger`."""

    def undone(self) -> None:
        """See `writer.Ledger`."""


class OutputStore:
    """The output database at `path`. Calls come from greenlets of the hub that opened it.

    `busy_s`: seconds to wait for a lock that another program has on the file. `readers`: reader threads.
    """

    def __init__(self, path: Path, *, busy_s: float = 10.0, readers: int = 2) -> None:
        self._file = SqliteFile(
            path, _SHAPE, ledger=_NoMemory(), open_read=OutputReadTx, busy_s=busy_s, readers=readers
        )
        self._pending_bytes = 0

    def open(self) -> None:
        """Migrate if needed and start the threads. Raises `StoreUnavailable` with what to do."""
        self._file.open()

    def close(self) -> None:
        """Finish what is queued, commit, stop the threads. May be called twice."""
        self._file.close()

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for their commit; agents are told `slow` when it grows too large."""
        return self._pending_bytes

    def problem(self) -> str | None:
        """Why the last write failed; None once one succeeded again."""
        return self._file.problem()

    def stats(self) -> dict[str, Any]:
        """See `base.Store.stats`."""
        return self._file.stats()

    def append(self, chunks: Sequence[OutputChunk]) -> dict[str, int]:
        """Store chunks in one transaction; answers, after the commit, each run's offset to go on from.

        Raises `InvalidRequest` for a chunk that cannot be, `StoreFull` or `StoreUnavailable`; then none is stored.
        """
        for chunk in chunks:
            chunk.check()
        weight = sum(len(chunk.content) for chunk in chunks)
        self._pending_bytes += weight
        try:
            return self._file.write(lambda tx: _append(tx, chunks))
        finally:
            self._pending_bytes -= weight

    def size(self, run_id: str, attempt: int) -> int:
        """Bytes known so far, gaps included: the offset to go on from."""

        def size(tx: OutputReadTx) -> int:
            extent = tx.extent(run_id, attempt)
            return 0 if extent is None else extent.size

        return self._file.read(size)

    def read(
        self, run_id: str, attempt: int, *, stream: Stream = Stream.ALL, offset: int = 0, limit: int = _READ_AT_ONCE
    ) -> OutputPiece:
        """Up to `limit` kept bytes from `offset` on, and of those only `stream`'s.

        Go on at `next_offset` until it is `size`; an answer without bytes does not mean the end.
        """
        return self._file.read(lambda tx: _read(tx, run_id, attempt, stream, max(0, offset), max(1, limit)))

    def kept(self, run_id: str, attempt: int) -> Kept:
        """What is kept of an attempt."""
        return self._file.read(lambda tx: _kept(tx, run_id, attempt))

    def delete(self, run_ids: Sequence[str]) -> None:
        """Delete all output of these runs, in steps that hold up nobody for long."""
        ids = list(run_ids)
        while ids and self._file.write(lambda tx: tx.delete_some(ids, most=_DELETED_AT_ONCE)) == _DELETED_AT_ONCE:
            pass


def _append(tx: OutputWriteTx, chunks: Sequence[OutputChunk]) -> dict[str, int]:
    extents: dict[tuple[str, int], Extent] = {}
    acked: dict[str, int] = {}
    for chunk in chunks:
        key = (chunk.run_id, chunk.attempt)
        extent = extents.get(key)
        if extent is None:
            extent = extents[key] = tx.open_extent(chunk.run_id, chunk.attempt, limit=chunk.limit)
        known = extent.size - chunk.offset
        if known >= 0:  # else it lies behind the end, and its turn comes when the agent has been told
            if chunk.gap > known:
                tx.skip(extent, chunk.gap - known)
            elif len(chunk.content) > known:
                rest = chunk.content[known:] if known else chunk.content
                tx.extend(extent, rest, cut(chunk.segments, known, len(chunk.content)))
        acked[chunk.run_id] = extent.size
    for extent in extents.values():
        tx.save_extent(extent)
    return acked


def _read(tx: OutputReadTx, run_id: str, attempt: int, stream: Stream, offset: int, limit: int) -> OutputPiece:
    extent = tx.extent(run_id, attempt)
    if extent is None:
        return OutputPiece(data=b"", next_offset=offset, size=0, gaps=[], segments=[])
    wanted = _STREAMS if stream is Stream.ALL else {STREAM_NUMBERS[stream]}
    found: list[bytes] = []
    segments: list[tuple[int, int, int]] = []
    pieces = tx.pieces(extent, offset=offset, most=limit)
    for piece in pieces:
        at = 0
        for number, length in piece.segments:
            if number in wanted:
                found.append(piece.content[at : at + length])
                segments.append((piece.start + at, number, length))
            at += length
    exhausted = sum(len(piece.content) for piece in pieces) < limit
    # Nothing kept follows: go on behind whatever gap there is at the end.
    end = max(offset, extent.size) if exhausted else pieces[-1].start + len(pieces[-1].content)
    return OutputPiece(data=b"".join(found), next_offset=end, size=extent.size, gaps=tx.gaps(extent), segments=segments)


def _kept(tx: OutputReadTx, run_id: str, attempt: int) -> Kept:
    digest = hashlib.sha256()
    extent = tx.extent(run_id, attempt)
    offset = 0
    while extent is not None:
        pieces = tx.pieces(extent, offset=offset, most=_READ_AT_ONCE)
        if not pieces:
            break
        for piece in pieces:
            digest.update(piece.content)
        offset = pieces[-1].start + len(pieces[-1].content)
    return Kept(sha256=digest.hexdigest(), gaps=[] if extent is None else tx.gaps(extent))
