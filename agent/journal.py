"""What the agent must not forget: attempts about to begin, their ends, and which of those the master has.

DIR/journal.log, one JSON object a line, only ever appended to; `begin` and `ended` return when they are on disk
(fdatasync), and calls of several threads share one. Opening reads it, passes over a torn last line and writes what
is still open into a new file; the same happens whenever it has grown large. Usable from any thread.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.attempt import AttemptKey, ExitRecord
from common import log

logger = logging.getLogger(__name__)

_COMPACT_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """An attempt about to begin: the master is asked, and perhaps allows it, after this is on disk."""

    run_id: str
    attempt: int
    lease: str
    boot_id: str
    at_ms: int

    @property
    def key(self) -> AttemptKey:
        """(run id, attempt)."""
        return (self.run_id, self.attempt)


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """An attempt that was begun and not delivered; `record` once it has ended."""

    begin: Begin
    record: ExitRecord | None


class _Batch:
    """Lines that go to the disk together."""

    __slots__ = ("done", "error", "lines")

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.done = False
        self.error: OSError | None = None


class Journal:
    """The journal of one agent."""

    def __init__(self, path: Path, *, compact_bytes: int = _COMPACT_BYTES) -> None:
        """Open or create the file. Raises OSError if it cannot be read or written."""
        self._path = path
        self._compact_bytes = compact_bytes
        self._lock = threading.Lock()  # guards all below; let go while the disk works
        self._written = threading.Condition(self._lock)
        self._open: dict[AttemptKey, OpenEntry] = {}
        self._batch = _Batch()  # is being gathered
        self._writing = False
        self._fd = -1
        self._size = 0
        self._read()
        self._replace(self._open_lines())

    def open_entries(self) -> list[OpenEntry]:
        """All attempts begun and not delivered, in the order of their beginning."""
        with self._lock:
            return list(self._open.values())

    def begin(self, begins: Iterable[Begin]) -> None:
        """Note attempts about to begin; returns when that is on disk. Raises OSError, then nothing may begin."""
        begins = list(begins)
        with self._lock:
            for begin in begins:
                self._open[begin.key] = OpenEntry(begin, None)
                self._batch.lines.append(_begin_line(begin))
            try:
                self._wait_for(self._batch)
            except OSError:
                for begin in begins:
                    self._open.pop(begin.key, None)
                raise

    def ended(self, record: ExitRecord) -> None:
        """Note how an attempt ended; returns when that is on disk. Raises OSError; it is then known in memory only."""
        with self._lock:
            entry = self._open.get(record.key)
            begin = entry.begin if entry is not None else _begin_of(record)
            self._open[record.key] = OpenEntry(begin, record)
            self._batch.lines.append(_ended_line(record))
            self._wait_for(self._batch)

    def delivered(self, keys: Iterable[AttemptKey]) -> None:
        """The master has these (or never allowed them). Written with the next batch: to lose it costs a repeat only."""
        with self._lock:
            for key in keys:
                if self._open.pop(key, None) is not None:
                    self._batch.lines.append(_line("delivered", key))

    def close(self) -> None:
        """Write what is pending and close the file; a second call does nothing. Raises OSError."""
        with self._lock:
            if self._fd < 0:
                return
            try:
                if self._batch.lines:
                    self._wait_for(self._batch)
            finally:
                os.close(self._fd)
                self._fd = -1

    def _wait_for(self, batch: _Batch) -> None:
        """Under the lock: return when `batch` is on disk. Whoever comes first writes for all that came meanwhile."""
        while not batch.done:
            if self._writing:
                self._written.wait()
            else:
                self._write(batch)
        if batch.error is not None:
            raise OSError(batch.error.errno, batch.error.strerror, str(self._path)) from batch.error

    def _write(self, batch: _Batch) -> None:
        # Nobody writes, so `batch` is the one being gathered: batches are taken in order.
        self._batch = _Batch()
        self._writing = True
        self._lock.release()
        try:
            self._append(b"".join(batch.lines))
        except OSError as error:
            batch.error = error
        finally:
            self._lock.acquire()
            self._writing = False
            batch.done = True
            self._written.notify_all()
        if self._size > self._compact_bytes and not self._writing:
            self._compact_beside()

    def _compact_beside(self) -> None:
        """Under the lock: write the file anew, letting go of the lock meanwhile. Lines that come go into the new one.

        What is open and not written yet gets there twice, which does no harm.
        """
        content = self._open_lines()
        self._writing = True
        self._lock.release()
        try:
            self._replace(content)
        except OSError as error:  # the old file is still good, and the next batch tries again
            logger.warning("journal not compacted", extra=log.fields(path=self._path, error=error.strerror))
        finally:
            self._lock.acquire()
            self._writing = False
            self._written.notify_all()

    def _append(self, lines: bytes) -> None:
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fdatasync(self._fd)
        except OSError:
            # A torn line would swallow the next one. What can't be cut off is ended.
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                os.write(self._fd, b"\n")
            raise
        self._size += len(lines)

    def _read(self) -> None:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return
        unreadable = 0
        for line in raw.split(b"\n"):
            if line and not self._apply(line):
                unreadable += 1
        if unreadable:
            logger.warning("journal lines passed over", extra=log.fields(path=self._path, lines=unreadable))

    def _apply(self, line: bytes) -> bool:
        """Take in one line; False if it cannot be read: torn by a crash, most likely."""
        try:
            entry = json.loads(line)
            key = (str(entry["run_id"]), int(entry["attempt"]))
            if entry["what"] == "begin":
                lease, boot_id = str(entry["lease"]), str(entry["boot_id"])
                begin = Begin(run_id=key[0], attempt=key[1], lease=lease, boot_id=boot_id, at_ms=int(entry["at_ms"]))
                self._open[key] = OpenEntry(begin, None)
            elif entry["what"] == "ended":
                record = ExitRecord.from_wire(entry["record"])
                known = self._open.get(key)
                self._open[key] = OpenEntry(known.begin if known else _begin_of(record), record)
            elif entry["what"] == "delivered":
                self._open.pop(key, None)
            return True
        except (ValueError, KeyError, TypeError):
            return False

    def _open_lines(self) -> bytes:
        lines = []
        for entry in self._open.values():
            lines.append(_begin_line(entry.begin))
            if entry.record is not None:
                lines.append(_ended_line(entry.record))
        return b"".join(lines)

    def _replace(self, content: bytes) -> None:
        """Put a new file in the place of the old one."""
        temporary = self._path.with_name(self._path.name + ".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
            os.rename(temporary, self._path)
            sync_directory(self._path.parent)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, len(content)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _line(what: str, key: AttemptKey, **more: object) -> bytes:
    entry = {"what": what, "run_id": key[0], "attempt": key[1], **more}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _begin_line(begin: Begin) -> bytes:
    return _line("begin", begin.key, lease=begin.lease, boot_id=begin.boot_id, at_ms=begin.at_ms)


def _ended_line(record: ExitRecord) -> bytes:
    return _line("ended", record.key, record=record.to_wire())


def _begin_of(record: ExitRecord) -> Begin:
    # The journal was lost or made anew while the attempt ran; its record says enough.
    at_ms = record.started_at_ms or 0
    return Begin(run_id=record.run_id, attempt=record.attempt, lease=record.lease, boot_id="", at_ms=at_ms)
