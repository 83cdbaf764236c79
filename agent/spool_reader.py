"""The agent's view of an attempt's output: reads the spool files while the shepherd writes them.

Offsets count the bytes of both streams of the whole attempt in arrival order. A reader goes forward, keeps one file
open and never returns a byte twice unless asked to by its offset; what is not there any more is told as a `Gap`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass

from agent.spool import HEADER, MAGIC, PREFIX


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

    def __init__(self, directory: str, limit: int) -> None:
        """`directory` is the attempt's, `limit` its `output_limit`."""
        self._directory = directory
        self._half = limit // 2
        self._total: int | None = None
        self._fd = -1
        self._file_start = -1
        self._frame_at = 0  # where in the file the next frame begins
        self._frame_offset = 0  # the offset of its first byte of output
        self._position = -1  # the offset the next read is expected at; inside that frame, or its start

    def read_from(self, offset: int, max_bytes: int) -> Chunk | Gap | None:
        """What stands at `offset`: at most `max_bytes` of it, or the gap there, or None: nothing yet.

        After `ended`, what lies between the head and the newest half of the limit is a gap even if it is still on
        disk, and None means: that was all. Raises OSError if the disk cannot be read.
        """
        trimmed = self._trimmed(offset)
        if trimmed is not None:
            return trimmed
        if self._total is not None:
            max_bytes = min(max_bytes, self._total - offset)
        if max_bytes <= 0:
            return None
        while True:
            if offset != self._position:
                starts = self._starts()
                index = bisect_right(starts, offset) - 1
                if index < 0:
                    return self._gap(offset, starts[0]) if starts else self._rest(offset)
                if not self._open(starts[index]):
                    continue  # just dropped
                self._go_to(offset)
            chunk = self._take(offset, max_bytes)
            if chunk is not None:
                return chunk
            later = next((start for start in self._starts() if start > self._file_start), None)
            if later is None:
                return self._rest(offset)
            # A later file exists, so this one is complete. But what came between our read and that look must not be
            # taken for a gap: read once more before leaving.
            chunk = self._take(offset, max_bytes)
            if chunk is not None:
                return chunk
            if later > offset:
                return self._gap(offset, later)
            self.close()

    def ended(self, total: int) -> None:
        """The attempt is over and wrote `total` bytes: what is missing up to there is a gap from now on."""
        self._total = total

    def close(self) -> None:
        """Close the open file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._file_start = self._position = -1

    def _trimmed(self, offset: int) -> Gap | None:
        if self._total is None or offset < self._half:
            return None
        tail = self._total - self._half
        return Gap(offset, tail - offset) if offset < tail else None

    def _gap(self, offset: int, end: int) -> Gap:
        return Gap(offset, (end if self._total is None else min(end, self._total)) - offset)

    def _rest(self, offset: int) -> Gap | None:
        """Nothing is at `offset` and nothing behind it: a gap up to the end, once that is known, or not written yet."""
        if self._total is not None and offset < self._total:
            return Gap(offset, self._total - offset)
        return None

    def _starts(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(int(name[len(PREFIX) :]) for name in names if name.startswith(PREFIX))

    def _open(self, start: int) -> bool:
        self.close()
        try:
            self._fd = os.open(f"{self._directory}/{PREFIX}{start:016d}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        self._file_start = self._frame_offset = self._position = start
        self._frame_at = 0
        return True

    def _go_to(self, offset: int) -> None:
        """Stand at `offset` in the open file, or at its end if it does not reach so far."""
        while self._frame_offset < offset:
            header = os.pread(self._fd, HEADER.size, self._frame_at)
            frame = self._parse(header, 0)
            if frame is None or self._frame_offset + frame[1] > offset:
                break
            self._next_frame(frame[1])
        self._position = offset

    def _parse(self, raw: bytes, at: int) -> tuple[int, int] | None:
        """(stream, length) of the header at `at`; None: none there yet, or none that continues this file."""
        if len(raw) - at < HEADER.size:
            return None
        magic, stream, length, offset = HEADER.unpack_from(raw, at)
        if magic != MAGIC or offset != self._frame_offset or stream not in (1, 2):
            return None
        return stream, length

    def _next_frame(self, length: int) -> None:
        self._frame_at += HEADER.size + length
        self._frame_offset += length

    def _take(self, offset: int, max_bytes: int) -> Chunk | None:
        """Up to `max_bytes` at `offset` from the whole frames of the open file."""
        if self._fd < 0:
            return None
        skip = offset - self._frame_offset  # bytes of the first frame that were returned before
        raw = os.pread(self._fd, max_bytes + skip + 64 * HEADER.size, self._frame_at)
        view = memoryview(raw)
        parts: list[memoryview] = []
        segments: list[tuple[int, int]] = []
        at = size = 0
        while size < max_bytes:
            frame = self._parse(raw, at)
            if frame is None:
                break
            stream, length = frame
            begin = at + HEADER.size + skip
            have = min(length - skip, max_bytes - size, len(raw) - begin)
            whole = skip + have == length
            if not whole and not self._is_whole(length):
                break
            parts.append(view[begin : begin + have])
            if segments and segments[-1][0] == stream:
                segments[-1] = (stream, segments[-1][1] + have)
            else:
                segments.append((stream, have))
            size += have
            if not whole:
                break
            at += HEADER.size + length
            skip = 0
            self._next_frame(length)
        if not size:
            return None
        self._position = offset + size
        return Chunk(offset, segments, b"".join(parts))

    def _is_whole(self, length: int) -> bool:
        # A frame of which only a part was asked for: is the rest of it on disk, or is it torn?
        return os.fstat(self._fd).st_size >= self._frame_at + HEADER.size + length
