"""One SQLite file and its threads: WAL mode, every answered write synced, one process at a time.

Opening checks the library, takes the lock file, migrates, and starts the writer thread and the readers.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from common.errors import StoreUnavailable
from common.loop import ThreadBridge
from master.store.migrate import migrate
from master.store.writer import GroupWriter, Ledger, Readers

T = TypeVar("T")

OLDEST_SQLITE: Final = (3, 35, 0)


def check_library() -> None:
    """Raises `StoreUnavailable` when Python's SQLite is too old for us."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreUnavailable(
            f"this Python has SQLite {sqlite3.sqlite_version}; muster needs {'.'.join(map(str, OLDEST_SQLITE))} "
            "or newer: use a newer Python or system"
        )


class FileLock:
    """One process per database file: a locked file beside it that names its holder's process id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self) -> None:
        """Lock, or raise `StoreUnavailable` naming the other's pid."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StoreUnavailable(
                f"the store {self._path.with_suffix('')} is in use by another process (pid {holder}): stop it first"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Unlock; the file stays, so that nobody locks one that is being removed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What sets one database file of ours apart from another."""

    name: str  # of the threads and fault points
    branch: str  # the folder of its migrations
    revision: str  # the newest of them
    cache_kib: int  # the writer's page cache


def connect(path: Path, *, busy_s: float, cache_kib: int, query_only: bool = False) -> sqlite3.Connection:
    """A connection as all of ours are: explicit transactions, WAL, every commit synced."""
    db = sqlite3.connect(path, isolation_level=None, timeout=busy_s, cached_statements=256)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA cache_size = -{cache_kib}")
        # Savepoints keep the pages they may have to bring back in memory, not in a file.
        db.execute("PRAGMA temp_store = MEMORY")
        # A log that a long reader let grow is cut back at the next checkpoint.
        db.execute(f"PRAGMA journal_size_limit = {64 * 1024 * 1024}")
        if query_only:
            db.execute("PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


class SqliteFile:
    """The file at `path`, its writer thread and `readers` reader threads; closures are given what `ledger.open_tx` and
    `open_read` make of a connection. `busy_s`: seconds to wait for a lock that another program has on the file.
    """

    def __init__(
        self,
        path: Path,
        shape: Shape,
        *,
        ledger: Ledger,
        open_read: Callable[[sqlite3.Connection], Any],
        busy_s: float,
        readers: int,
    ) -> None:
        self._path = path
        self._shape = shape
        self._ledger = ledger
        self._open_read = open_read
        self._busy_s = busy_s
        self._reader_threads = max(1, readers)
        self._lock = FileLock(path.with_name(path.name + ".lock"))
        self._bridge: ThreadBridge | None = None
        self._writer: GroupWriter | None = None
        self._readers: Readers | None = None

    def open(self) -> None:
        """Migrate if needed and start the threads. Raises `StoreUnavailable` with what to do."""
        check_library()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            self._lock.release()
            raise StoreUnavailable(f"the database {self._path} cannot be opened: {error}") from error
        except BaseException:
            self._lock.release()
            raise
        name = self._shape.name
        self._bridge = ThreadBridge()
        self._writer = GroupWriter(name, self._bridge, connect=self._connect_writer, ledger=self._ledger)
        self._readers = Readers(
            f"{name}-reader",
            self._bridge,
            threads=self._reader_threads,
            connect=self._connect_reader,
            open_tx=self._open_read,
        )
        self._writer.start()
        self._readers.start()

    def _prepare(self) -> None:
        # Mode 0600 before anything is in it: names, environments and tokens' hashes are nobody else's business.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connect(self._path, busy_s=self._busy_s, cache_kib=1024).close()
        migrate(self._path, busy_s=self._busy_s, branch=self._shape.branch, target=self._shape.revision)

    def _connect_writer(self) -> sqlite3.Connection:
        db = connect(self._path, busy_s=self._busy_s, cache_kib=self._shape.cache_kib)
        try:
            self._ledger.load(db)
        except BaseException:
            db.close()
            raise
        return db

    def _connect_reader(self) -> sqlite3.Connection:
        return connect(self._path, busy_s=self._busy_s, cache_kib=4 * 1024, query_only=True)

    def close(self) -> None:
        """Finish what is queued, commit, stop the threads. May be called twice."""
        if self._readers is not None:
            self._readers.stop()
        if self._writer is not None:
            self._writer.stop()
        if self._bridge is not None:
            self._bridge.close()
        self._lock.release()

    def write(self, fn: Callable[[Any], T]) -> T:
        """Run `fn` in a transaction; returns after the commit. See `base.Store.write`."""
        if self._writer is None:
            raise StoreUnavailable("the store is not open")
        return self._writer.run(fn)

    def read(self, fn: Callable[[Any], T]) -> T:
        """What `fn` answers from a snapshot. See `base.Store.read`."""
        if self._readers is None:
            raise StoreUnavailable("the store is not open")
        return self._readers.run(fn)

    def problem(self) -> str | None:
        """See `base.Store.problem`."""
        return None if self._writer is None else self._writer.problem

    def stats(self) -> dict[str, Any]:
        """See `base.Store.stats`."""
        if self._writer is None:
            return {"commits": 0, "closures": 0, "batch_sizes": [], "commit_s": [], "queue": 0}
        return self._writer.stats()
