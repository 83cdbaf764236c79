"""The agent's view of an attempt's output: reads the spool files while the shepherd writes them.

Offsets count the bytes of both streams of the whole attempt in arrival order. A reader goes forward, keeps one file
open and never returns a byte twice unless asked to by its offset; what is not there any more is told as a `Gap`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes as the script wrote them: `data` begins at `offset`; `segments` are (stream, length) in order."""

    offset: int
    segments: list[tuple[int, int]]  # stream 1 stdout, 2 stderr; the lengths add up to len(data)
    data: bytes

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Gap:
    """`length` bytes from `offset` on were written by the script and are not kept."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset after the last byte that is missing."""
        return self.offset + self.length


class SpoolReader:
    """Reads one attempt's spool. Not to be shared by threads."""

    def read_from(self, offset: int, max_bytes: int) -> Chunk | Gap | None:
        """What stands at `offset`: at most `max_bytes` of it, or the gap there, or None: nothing yet."""
        raise NotImplementedError

    def ended(self, total: int) -> None:
        """The attempt is over and wrote `total` bytes: what is missing up to there is a gap from now on."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the open file."""
        raise NotImplementedError
