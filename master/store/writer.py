"""One native thread that writes a database in groups: closures queue up, one commit answers all that came meanwhile.

Each closure runs in a savepoint of its own; its exception undoes it alone. Callers are answered after the commit, and
woken in the loop by one posted call per batch. A commit that fails stores nothing of the batch, every caller of it gets
the error, and the thread goes on. `Readers` answers from snapshots on a few threads of their own.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from gevent.hub import Waiter, get_hub

from common import faults
from common.errors import Conflict, MusterError, StoreFull, StoreUnavailable
from common.log import fields
from common.loop import ThreadBridge

logger = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_MOST: Final = 500
"""Closures in one commit at most: what a person waits for is bounded."""
_RECENT: Final = 512
_STOP: Final = object()


class Ledger(Protocol):
    """What a store keeps in memory beside its database, told what became of each closure and each batch."""

    def load(self, db: sqlite3.Connection) -> None:
        """Take over what is stored; called with each connection that is opened."""

    def open_tx(self, db: sqlite3.Connection) -> Any:
        """The object a closure is given."""

    def keep(self, tx: Any) -> None:
        """The closure of `tx` went well; it counts if the batch does."""

    def seal(self, db: sqlite3.Connection) -> None:
        """Write what every commit carries."""

    def committed(self) -> None:
        """The batch is stored."""

    def undone(self) -> None:
        """Nothing of the batch is stored."""


class _Call:
    __slots__ = ("error", "fn", "result", "waiter")

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn
        self.waiter: Waiter[None] = Waiter()
        self.result: Any = None
        self.error: BaseException | None = None


def as_store_error(error: Exception) -> MusterError:
    """What went wrong below, as what the person must know."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StoreFull()
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict(f"the store refuses this: {error}")
    return StoreUnavailable(f"the store cannot write now ({error}); nothing was stored")


def _deliver(calls: list[_Call]) -> None:
    # Through the loop's own queue of callbacks: it lets timers and sockets in between when many are woken.
    run_callback = get_hub().loop.run_callback
    for call in calls:
        run_callback(call.waiter.switch, None)


def _wait(call: _Call) -> Any:
    # A caller that is killed here just leaves: its waiter then keeps the answer, and nobody fetches it.
    call.waiter.get()
    if call.error is not None:
        raise call.error
    return call.result


class GroupWriter:
    """The writer thread. `connect` opens its connection, in the thread; calls come from greenlets of one hub."""

    def __init__(
        self, name: str, bridge: ThreadBridge, *, connect: Callable[[], sqlite3.Connection], ledger: Ledger
    ) -> None:
        self._name = name
        self._bridge = bridge
        self._connect = connect
        self._ledger = ledger
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped: Waiter[None] = Waiter()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._before_commit = f"{name}-before-commit"
        self._after_commit = f"{name}-after-commit"
        self.problem: str | None = None
        self.commits = 0
        self.closures = 0
        self.batch_sizes: deque[int] = deque(maxlen=_RECENT)
        self.commit_s: deque[float] = deque(maxlen=_RECENT)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def run(self, fn: Callable[[Any], T]) -> T:
        """Run `fn` in a transaction; returns after the commit.

        Raises what `fn` raised, or `StoreFull`, `StoreUnavailable`.
        """
        if self._closing:
            raise StoreUnavailable("the store is closed")
        call = _Call(fn)
        self._queue.put(call)
        result: T = _wait(call)
        return result

    def stats(self) -> dict[str, Any]:
        """See `Store.stats`."""
        return {
            "commits": self.commits,
            "closures": self.closures,
            "batch_sizes": list(self.batch_sizes),
            "commit_s": list(self.commit_s),
            "queue": self._queue.qsize(),
        }

    def stop(self) -> None:
        """Finish what is queued, then end the thread. May be called twice."""
        if not self._closing:
            self._closing = True
            self._queue.put(_STOP)
            self._stopped.get()
        self._thread.join()

    def _work(self) -> None:
        db: sqlite3.Connection | None = None
        going = True
        while going:
            calls, going = self._take()
            if calls:
                db = self._batch(db, calls)
        if db is not None:
            db.close()
        self._bridge.post(self._stopped.switch, None)

    def _take(self) -> tuple[list[_Call], bool]:
        calls: list[_Call] = []
        item = self._queue.get()
        try:
            while item is not _STOP:
                calls.append(item)
                if len(calls) >= BATCH_MOST:
                    return calls, True
                item = self._queue.get_nowait()
        except queue.Empty:
            return calls, True
        return calls, False

    def _batch(self, db: sqlite3.Connection | None, calls: list[_Call]) -> sqlite3.Connection | None:
        began_s = time.monotonic()
        try:
            if db is None:
                db = self._connect()
            written = self._run_all(db, calls)
        except Exception as error:  # edge of the thread's loop: the batch fails as a whole, the thread goes on
            db = self._undo(db, calls, error)
        else:
            if written:
                self._succeeded(len(calls), time.monotonic() - began_s)
        self._bridge.post(_deliver, calls)
        return db

    def _run_all(self, db: sqlite3.Connection, calls: list[_Call]) -> bool:
        db.execute("BEGIN IMMEDIATE")
        changes = db.total_changes
        alone = len(calls) == 1
        for call in calls:
            if not alone:
                db.execute("SAVEPOINT closure")
            tx = self._ledger.open_tx(db)
            try:
                call.result = call.fn(tx)
            except Exception as error:  # the closure's own fault, or the database's: its caller is told
                self._failed(db, call, error)
                db.execute("ROLLBACK" if alone else "ROLLBACK TO closure")
                if alone:
                    return False
            else:
                self._ledger.keep(tx)
            if not alone:
                db.execute("RELEASE closure")
        written = db.total_changes != changes
        if written:
            faults.at(self._before_commit)
            self._ledger.seal(db)
        # A batch that changed nothing has nothing to make durable: its commit costs no write.
        db.execute("COMMIT")
        self._ledger.committed()
        faults.at(self._after_commit)
        return written

    def _failed(self, db: sqlite3.Connection, call: _Call, error: Exception) -> None:
        if isinstance(error, sqlite3.Error):
            if not db.in_transaction:
                raise error  # the database has undone the whole batch by itself
            if not isinstance(error, sqlite3.IntegrityError):
                self._complain(error)
            call.error = as_store_error(error)
        else:
            call.error = error

    def _undo(self, db: sqlite3.Connection | None, calls: list[_Call], error: Exception) -> sqlite3.Connection | None:
        self._ledger.undone()
        self._complain(error)
        for call in calls:
            call.result, call.error = None, as_store_error(error)
        try:
            if db is not None and db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            # A connection that cannot even roll back is of no use: the next batch opens a fresh one.
            if db is not None:
                db.close()
            return None
        return db

    def _complain(self, error: Exception) -> None:
        if self.problem is None:
            logger.error("store cannot write", extra=fields(store=self._name, why=str(error)))
        self.problem = as_store_error(error).message

    def _succeeded(self, closures: int, commit_s: float) -> None:
        if self.problem is not None:
            logger.info("store writes again", extra=fields(store=self._name))
            self.problem = None
        self.commits += 1
        self.closures += closures
        self.batch_sizes.append(closures)
        self.commit_s.append(commit_s)


class Readers:
    """Threads that answer from snapshots, each with a connection of its own."""

    def __init__(
        self,
        name: str,
        bridge: ThreadBridge,
        *,
        threads: int,
        connect: Callable[[], sqlite3.Connection],
        open_tx: Callable[[sqlite3.Connection], Any],
    ) -> None:
        self._bridge = bridge
        self._connect = connect
        self._open_tx = open_tx
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closing = False
        self._left = threads
        self._stopped: Waiter[None] = Waiter()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def run(self, fn: Callable[[Any], T]) -> T:
        """What `fn` answers from a snapshot. Raises what `fn` raised, or `StoreUnavailable`."""
        if self._closing:
            raise StoreUnavailable("the store is closed")
        call = _Call(fn)
        self._queue.put(call)
        result: T = _wait(call)
        return result

    def stop(self) -> None:
        """Finish what is queued, then end the threads. May be called twice."""
        if not self._closing:
            self._closing = True
            for _ in self._threads:
                self._queue.put(_STOP)
            if self._threads:
                self._stopped.get()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        db: sqlite3.Connection | None = None
        while True:
            call = self._queue.get()
            if call is _STOP:
                break
            try:
                if db is None:
                    db = self._connect()
                call.result = self._answer(db, call.fn)
            except sqlite3.Error as error:
                call.error = StoreUnavailable(f"the store cannot be read now ({error})")
                if db is not None:
                    db.close()
                db = None
            except Exception as error:  # edge of the thread's loop: whatever went wrong belongs to the caller
                call.error = error
            self._bridge.post(_deliver, [call])
        if db is not None:
            db.close()
        self._bridge.post(self._one_stopped)

    def _answer(self, db: sqlite3.Connection, fn: Callable[[Any], Any]) -> Any:
        db.execute("BEGIN")
        try:
            return fn(self._open_tx(db))
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _one_stopped(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._stopped.switch(None)
