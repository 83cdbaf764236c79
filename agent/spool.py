"""The spool: an attempt's output on disk, written by the shepherd while the agent reads it (agent/spool_reader.py).

Output is one row of bytes, both streams in arrival order, counted from offset 0. It is stored as frames (a header,
then the bytes) in files `output.OFFSET`, each named after the offset of its first byte and never changed again once
the next one exists. The first half of the limit stays; of the rest only the newest half is kept, by removing the
oldest files. What could not be written, or was removed before the reader acknowledged it, is a gap, never silence.
Standard library only, and small: the shepherd imports it.
"""

from __future__ import annotations

import os
import struct
import time

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PREFIX = "output."
MAGIC = 0xF5
HEADER = struct.Struct("<BBxxIQ")  # MAGIC, stream, length, offset
_FILE_MOST = 1024 * 1024
_FILE_LEAST = 4096
_PIECES_MOST = 512  # of one writev, well below IOV_MAX
_RETRY_S = 1.0


def file_name(offset: int) -> str:
    """The name of the file whose first byte stands at `offset`; names sort as offsets do."""
    return f"{PREFIX}{offset:016d}"


def file_size(limit: int) -> int:
    """How many bytes of output go into one file of a spool with this limit."""
    return max(_FILE_LEAST, min(_FILE_MOST, limit // 16))


def survey(directory: str) -> tuple[int, list[list[int]]]:
    """(end offset, gaps as [offset, length]) of a spool nobody writes any more, by its frame headers."""
    end, gaps = 0, []
    for name in sorted(name for name in os.listdir(directory) if name.startswith(PREFIX)):
        offset = int(name[len(PREFIX) :])
        if offset > end:
            gaps.append([end, offset - end])
        end = offset
        fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            size, at = os.fstat(fd).st_size, 0
            while len(header := os.pread(fd, HEADER.size, at)) == HEADER.size:
                magic, _, length, offset = HEADER.unpack(header)
                at += HEADER.size + length
                if magic != MAGIC or offset != end or at > size:
                    break  # torn, or never written before the power went
                end += length
        finally:
            os.close(fd)
    return end, gaps


class SpoolWriter:
    """Writes one attempt's output. `append` never raises: what the disk does not take becomes a gap."""

    def __init__(
        self,
        directory: str,
        limit: int,
        *,
        write: Callable[[int, Sequence[bytes | memoryview]], int] = os.writev,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit`: bytes kept, half for the head and half for the tail."""
        self.offset = 0  # bytes the script has written so far
        self.failure: str | None = None  # the last reason why something could not be written
        self.unwritten = 0  # bytes lost to such reasons
        self._half = limit // 2
        self._file_size = file_size(limit)
        self._directory = directory
        self._write = write
        self._clock = clock
        self._fd = -1
        self._start = 0  # offset at which the open file begins
        self._end = 0  # offset at which it is full
        self._good = 0  # length of the open file up to its last whole frame
        self._tail: list[tuple[int, int]] = []  # closed files after the head, as (first, end offset), oldest first
        self._acknowledged = 0
        self._gaps: list[list[int]] = []
        self._retry_at = 0.0

    @property
    def gaps(self) -> list[list[int]]:
        """[offset, length] of what was written by the script and is in no file, unless it was acknowledged before."""
        return self._gaps

    def acknowledge(self, offset: int) -> None:
        """The reader needs nothing below `offset` any more."""
        self._acknowledged = max(self._acknowledged, offset)

    def append(self, stream: int, pieces: list[bytes]) -> None:
        """Add the pieces, all of one stream. One write for all that fits into the open file."""
        room = self._room()
        batch: list[bytes | memoryview] = []
        size = 0
        for piece in pieces:
            rest: bytes | memoryview = piece
            while size + len(rest) > room or len(batch) >= _PIECES_MOST:
                fits = min(room - size, len(rest))
                batch.append(memoryview(rest)[:fits])
                self._frame(stream, batch, size + fits)
                rest = memoryview(rest)[fits:]
                batch, size, room = [], 0, self._room()
            if rest:
                batch.append(rest)
                size += len(rest)
        if batch:
            self._frame(stream, batch, size)

    def close(self) -> None:
        """Nothing comes any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room(self) -> int:
        # How much fits before the next file is due; the head ends with a file of its own.
        if self.offset >= self._end:
            self._rotate()
        return self._end - self.offset

    def _rotate(self) -> None:
        self._leave_file()
        self._start = self.offset
        self._end = self.offset + self._file_size
        if self._start < self._half:
            self._end = min(self._end, self._half)

    def _leave_file(self) -> None:
        if self._fd < 0:
            return
        self.close()
        if self._start >= self._half:
            self._tail.append((self._start, self.offset))

    def _frame(self, stream: int, batch: list[bytes | memoryview], size: int) -> None:
        if size == 0:
            return
        if self._fd < 0 and not self._open():
            self._lose(size)
            return
        header = HEADER.pack(MAGIC, stream, size, self.offset)
        wanted = HEADER.size + size
        try:
            written = self._write(self._fd, [header, *batch])
            if written < wanted:
                written = self._write_rest(b"".join([header, *batch])[written:], written)
        except OSError as error:
            self._failed(error, size)
            return
        self._good += written
        self.offset += size
        self._drop_oldest()

    def _write_rest(self, rest: bytes, written: int) -> int:
        while rest:
            count = self._write(self._fd, [rest])
            rest = rest[count:]
            written += count
        return written

    def _open(self) -> bool:
        if self._retry_at and self._clock() < self._retry_at:
            return False
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(f"{self._directory}/{file_name(self.offset)}", flags, 0o600)
        except OSError as error:
            self._note(error)
            return False
        self._start = self.offset
        self._good = 0
        return True

    def _failed(self, error: OSError, size: int) -> None:
        self._note(error)
        try:
            os.ftruncate(self._fd, self._good)
        except OSError:
            pass  # a torn frame at the end of a file is no frame to the reader either
        self._leave_file()
        self._lose(size)

    def _note(self, error: OSError) -> None:
        self.failure = error.strerror or str(error)
        self._retry_at = self._clock() + _RETRY_S

    def _lose(self, size: int) -> None:
        self._add_gap(self.offset, self.offset + size)
        self.unwritten += size
        self.offset += size
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        # A file goes when all of it is older than the newest half of the limit.
        while self._tail and self.offset - self._tail[0][1] >= self._half:
            first, end = self._tail.pop(0)
            try:
                os.unlink(f"{self._directory}/{file_name(first)}")
            except OSError:
                pass
            self._add_gap(max(first, self._acknowledged), end)

    def _add_gap(self, first: int, end: int) -> None:
        if first >= end:
            return
        # Files go in order, yet an older one may go after a newer part was lost to a full disk.
        merged: list[list[int]] = []
        for start, length in sorted([*self._gaps, [first, end - first]]):
            if merged and merged[-1][0] + merged[-1][1] >= start:
                merged[-1][1] = max(merged[-1][1], start + length - merged[-1][0])
            else:
                merged.append([start, length])
        self._gaps = merged
