"""The store over SQLite: `base.Store` in one file, `muster.db` of a data directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from master.store.base import ReadTx, WriteTx
from master.store.file import Shape, SqliteFile
from master.store.migrate import REVISIONS
from master.store.writes import Counters, Mark, SqliteReadTx

T = TypeVar("T")

_SHAPE: Final = Shape(name="store", branch="versions", revision=REVISIONS["versions"], cache_kib=16 * 1024)


class SqliteStore:
    """A `base.Store` in the file `path`.

    `mark` reads the engine clock for each commit; without it marks are set by hand. `busy_s`: seconds to wait for a
    lock that another program has on the file. `readers`: reader threads.
    """

    def __init__(self, path: Path, *, mark: Mark | None = None, busy_s: float = 10.0, readers: int = 2) -> None:
        self._file = SqliteFile(
            path, _SHAPE, ledger=Counters(mark), open_read=SqliteReadTx, busy_s=busy_s, readers=readers
        )

    def open(self) -> None:
        """See `Store.open`."""
        self._file.open()

    def close(self) -> None:
        """See `Store.close`."""
        self._file.close()

    def write(self, fn: Callable[[WriteTx], T]) -> T:
        """See `Store.write`."""
        return self._file.write(fn)

    def read(self, fn: Callable[[ReadTx], T]) -> T:
        """See `Store.read`."""
        return self._file.read(fn)

    def problem(self) -> str | None:
        """See `Store.problem`."""
        return self._file.problem()

    def stats(self) -> dict[str, Any]:
        """See `Store.stats`."""
        return self._file.stats()
