"""From a script's two pipes into its spool: bytes in arrival order, never decoded, and the pipes always drained.

Reading is paced where a script writes very many very small pieces, so that 200,000 writes are not 200,000 wake-ups.
An unfinished line waits for its end for a moment, so that lines of the two streams are not glued together; within a
stream the order is exact, between the streams it is that of arrival to about 20 ms.
Standard library only, and small: the shepherd imports it.
"""

from __future__ import annotations

import fcntl
import os

from agent.event_loop import NEVER
from agent.spool import SpoolWriter

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Watcher(Protocol):
        """Calls back when a descriptor can be read."""

        def watch(self, fd: int, callback: Callable[[float], None]) -> None:
            """Call `callback(now)` whenever `fd` can be read or is at its end."""

        def watch_writing(self, fd: int, callback: Callable[[float], None]) -> None:
            """Call `callback(now)` once `fd` can be written, instead of when it can be read."""

        def unwatch(self, fd: int) -> None:
            """Stop calling back for `fd`."""


READ_SIZE = 65536
_READS_AT_ONCE = 4  # of one pipe, then the others have their turn
_FLUSH_S = 0.05
_FLUSH_SIZE = 65536
_CARRY_MOST = 4096
_CARRY_S = 0.02
_SMALL = 16384
_HOT_READS = 16  # this many small reads in a row, each within _HOT_S, and the pipe is paced
_HOT_S = 0.015
_PAUSE_S = 0.010
_PAUSE_SMALL_PIPE_S = 0.002
_BIG_PIPE = 1024 * 1024
_DRAIN_MOST = 2 * _BIG_PIPE


class Pipe:
    """One of the two pipes, this end."""

    __slots__ = ("big", "carry", "carry_at", "fd", "hot", "read_at", "resume_at", "stream")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.fd = -1
        self.carry = b""  # an unfinished line
        self.carry_at = 0.0
        self.read_at = 0.0
        self.hot = 0
        self.resume_at = NEVER  # not watched until then
        self.big: bool | None = None  # enlarged; False: could not be


class Collector:
    """Collects the output of one attempt."""

    def __init__(self, spool: SpoolWriter, watcher: Watcher, *, on_progress: Callable[[], None]) -> None:
        """`on_progress` is called after output became readable in the spool, at most every 50 ms."""
        self.spool = spool
        self.last_output_at = 0.0
        self._watcher = watcher
        self._on_progress = on_progress
        self._on_end: Callable[[float], None] | None = None
        self._pipes = (Pipe(1), Pipe(2))
        self._pending: list[tuple[int, list[bytes]]] = []
        self._pending_size = 0
        self._flush_at = NEVER

    def open(self, on_end: Callable[[float], None]) -> tuple[int, int]:
        """Make the pipes and watch them; returns the writing ends, to be closed by the caller once handed over.

        `on_end(now)` is called when the last writer of both has gone. Raises OSError.
        """
        writers = []
        try:
            for pipe in self._pipes:
                pipe.fd, writer = os.pipe()
                writers.append(writer)
                os.set_blocking(pipe.fd, False)
        except OSError:
            for fd in [*writers, *self.close()]:
                os.close(fd)
            raise
        self._on_end = on_end
        first, second = self._pipes
        self._watcher.watch(first.fd, lambda now: self._readable(first, now))
        self._watcher.watch(second.fd, lambda now: self._readable(second, now))
        return writers[0], writers[1]

    @property
    def open_pipes(self) -> int:
        """How many of the two pipes somebody may still write to."""
        return sum(pipe.fd >= 0 for pipe in self._pipes)

    @property
    def wake_at(self) -> float:
        """When `wake` wants to be called."""
        first, second = self._pipes
        return min(self._flush_at, first.resume_at, second.resume_at)

    def wake(self, now: float) -> None:
        """Do what is due at `now`."""
        for pipe in self._pipes:
            if pipe.resume_at <= now:
                pipe.resume_at = NEVER
                self._watcher.watch(pipe.fd, lambda now, pipe=pipe: self._readable(pipe, now))  # type: ignore[misc]
        if self._flush_at <= now:
            self._flush(now)

    def drain(self, now: float) -> None:
        """Read at once what is in the pipes: all that a process wrote before its end is there by then."""
        for pipe in self._pipes:
            left = _DRAIN_MOST
            while pipe.fd >= 0 and left > 0:
                try:
                    data = os.read(pipe.fd, READ_SIZE)
                except BlockingIOError:
                    break
                if data:
                    self._take(pipe, data, now)
                    left -= len(data)
                else:
                    self._end_of(pipe)

    def close(self) -> list[int]:
        """Write out everything and close the spool; returns the pipes that somebody still holds, unwatched.

        They are the caller's to drain: closing them would break whoever writes to them.
        """
        for pipe in self._pipes:
            self._release_carry(pipe)
        self._write_pending()
        self._flush_at = NEVER
        self.spool.close()
        held = []
        for pipe in self._pipes:
            if pipe.fd >= 0:
                self._unwatch(pipe)
                held.append(pipe.fd)
                pipe.fd = -1
        return held

    def _readable(self, pipe: Pipe, now: float) -> None:
        size = 0
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(pipe.fd, READ_SIZE)
            except BlockingIOError:
                break
            if not data:
                self._end_of(pipe)
                if self._on_end is not None and not self.open_pipes:
                    self._on_end(now)
                return
            self._take(pipe, data, now)
            size += len(data)
            if len(data) < READ_SIZE:
                break
        self._pace(pipe, size, now)

    def _pace(self, pipe: Pipe, size: int, now: float) -> None:
        if size >= _SMALL:
            if size >= READ_SIZE and pipe.big is None:
                self._enlarge(pipe)
            return
        pipe.hot = pipe.hot + 1 if now - pipe.read_at < _HOT_S else 0
        pipe.read_at = now
        if pipe.hot >= _HOT_READS:
            if pipe.big is None:
                self._enlarge(pipe)
            self._watcher.unwatch(pipe.fd)
            pipe.resume_at = now + (_PAUSE_S if pipe.big else _PAUSE_SMALL_PIPE_S)

    def _enlarge(self, pipe: Pipe) -> None:
        # The writer shall not have to wait while we pause. A user has a bound for pipe memory, so this may fail.
        try:
            fcntl.fcntl(pipe.fd, fcntl.F_SETPIPE_SZ, _BIG_PIPE)
            pipe.big = True
        except OSError:
            pipe.big = False

    def _end_of(self, pipe: Pipe) -> None:
        self._unwatch(pipe)
        os.close(pipe.fd)
        pipe.fd = -1
        self._release_carry(pipe)

    def _unwatch(self, pipe: Pipe) -> None:
        if pipe.resume_at == NEVER:
            self._watcher.unwatch(pipe.fd)
        pipe.resume_at = NEVER

    def _take(self, pipe: Pipe, data: bytes, now: float) -> None:
        self.last_output_at = now
        cut = data.rfind(b"\n") + 1
        # An unfinished line keeps the time of its first byte, else a slow progress bar would never be shown.
        carry_at = pipe.carry_at if pipe.carry and not cut else now
        if pipe.carry:
            cut += len(pipe.carry) if cut else 0
            data = pipe.carry + data
            pipe.carry = b""
        if 0 < len(data) - cut <= _CARRY_MOST:
            pipe.carry = data[cut:]
            pipe.carry_at = carry_at
            data = data[:cut]
        if data:
            self._put(pipe.stream, data)
        if self._flush_at == NEVER:
            self._flush_at = now + _FLUSH_S

    def _put(self, stream: int, data: bytes) -> None:
        if self._pending and self._pending[-1][0] == stream:
            self._pending[-1][1].append(data)
        else:
            self._pending.append((stream, [data]))
        self._pending_size += len(data)
        if self._pending_size >= _FLUSH_SIZE:
            self._write_pending()

    def _release_carry(self, pipe: Pipe) -> None:
        if pipe.carry:
            self._put(pipe.stream, pipe.carry)
            pipe.carry = b""

    def _write_pending(self) -> None:
        for stream, pieces in self._pending:
            self.spool.append(stream, pieces)
        self._pending.clear()
        self._pending_size = 0

    def _flush(self, now: float) -> None:
        self._flush_at = NEVER
        for pipe in self._pipes:
            if pipe.carry and now - pipe.carry_at >= _CARRY_S:
                self._release_carry(pipe)
            elif pipe.carry:
                self._flush_at = min(self._flush_at, pipe.carry_at + _CARRY_S)
        self._write_pending()
        self._on_progress()
