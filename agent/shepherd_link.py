"""The agent's end of the shepherd's socket: has attempts run, and tells how they end.

All methods may be called from any thread, gevent's hub included, and none needs gevent; none but `connect` and `close`
waits. When the shepherd goes away a new one is started and asked what there is: each pending future then gets its
record (`interrupted`), or goes on, or its start is sent again if it never happened. docs/host.md has the protocol.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from agent.attempt import AttemptKey, ExitRecord, RunningAttempt
from agent.shepherd_launch import COMMAND, Connection, Reached, ShepherdUnavailable, reach
from common import log
from common.backoff import Backoff
from common.version import VERSION

__all__ = ["LinkClosed", "Listing", "ShepherdLink", "ShepherdUnavailable", "StartRefused", "unknown_end"]

logger = logging.getLogger(__name__)

_RUNNING_FIELDS: Final = tuple(one.name for one in fields(RunningAttempt))
_CLOSE_TIMEOUT_S: Final = 5.0
_NO_WAIT: Final = socket.MSG_DONTWAIT
_TRIES: Final = 5
_REAP_S: Final = 1.0
_GONE: Final = "The shepherd knows nothing of this attempt any more, so its result is not known."


class StartRefused(Exception):
    """The shepherd did not start the attempt, because of the state it is in; nothing new ran. The text says why."""


class LinkClosed(Exception):
    """The link was closed before the attempt ended; the attempt goes on."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a shepherd had when it was connected to."""

    running: tuple[RunningAttempt, ...]
    ended: tuple[ExitRecord, ...]


@dataclass(slots=True)
class _Pending:
    """An attempt whose end is waited for."""

    future: Future[ExitRecord]
    lease: str
    start: bytes | None  # the message, to be sent again if it never arrived; None: the attempt was adopted
    kill: bytes | None = None  # likewise


class ShepherdLink:
    """One agent's connection to its shepherd."""

    def __init__(
        self,
        state_dir: Path,
        *,
        idle_exit_s: float = 60.0,
        on_output: Callable[[str, int, int], None] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """`on_output(run_id, attempt, end_offset)` is called in the link's thread; `command` starts a shepherd."""
        self.on_output = on_output
        self._state_dir = state_dir.absolute()
        self._idle_exit_s = idle_exit_s
        self._command = tuple(command)
        self._lock = threading.Lock()  # guards all below
        self._pending: dict[AttemptKey, _Pending] = {}
        self._adoptable: dict[AttemptKey, Future[ExitRecord]] = {}
        self._forgets: list[AttemptKey] = []  # to be told once there is a shepherd again
        self._connection: Connection | None = None
        self._outbox = bytearray()  # what the socket did not take at once
        self._pid: int | None = None
        self._outdated = False  # the shepherd is of another version, and is replaced when nothing runs
        self._children: set[int] = set()  # shepherds that this process started and that may have to be waited for
        self._status = "not connected"
        self._closing = False
        self._thread: threading.Thread | None = None
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def status(self) -> str:
        """What this link is doing, in one sentence for the operator."""
        return self._status

    @property
    def pid(self) -> int | None:
        """The shepherd's process id; None while there is none."""
        return self._pid

    def connect(self) -> Listing:
        """Connect, starting a shepherd if there is none, and tell what it has. Call it once.

        An idle shepherd of another version is replaced by one of ours. Raises ShepherdUnavailable.
        """
        reached, listing = self._reach()
        with self._lock:
            self._take(reached)
            for one in listing.running:  # now, for it may end before anybody adopts it
                pending = self._pending[one.key] = _Pending(Future(), one.lease, None)
                self._adoptable[one.key] = pending.future
        self._thread = threading.Thread(target=self._serve, args=(reached.connection,), name="shepherd-link")
        self._thread.daemon = True
        self._thread.start()
        return listing

    def start(self, spec: Mapping[str, Any]) -> Future[ExitRecord]:
        """Have an attempt started (`agent.attempt.spec_message`); its directory must be there. The future tells how
        it ended, or StartRefused.
        """
        key = (spec["run_id"], spec["attempt"])
        line = json.dumps({"op": "start", "spec": spec}).encode() + b"\n"
        future: Future[ExitRecord] = Future()
        with self._lock:
            if self._closing:
                future.set_exception(LinkClosed())
                return future
            self._pending[key] = _Pending(future, spec["lease"], line)
            self._send(line)
        return future

    def adopt(self, running: RunningAttempt) -> Future[ExitRecord]:
        """The end of an attempt that `connect` listed as running; once for each."""
        with self._lock:
            return self._adoptable.pop(running.key)

    def kill(self, key: AttemptKey, *, why: str, grace_s: float | None = None) -> None:
        """Have an attempt ended. Nothing happens if it has ended already."""
        message = {"op": "kill", "run_id": key[0], "attempt": key[1], "why": why, "grace_s": grace_s}
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            pending = self._pending.get(key)
            if pending is not None:
                pending.kill = line
                self._send(line)

    def acknowledge(self, key: AttemptKey, offset: int) -> None:
        """Output below `offset` is safe elsewhere."""
        with self._lock:
            if key in self._pending:
                self._send(b'{"op":"ack","run_id":"%s","attempt":%d,"offset":%d}\n' % (key[0].encode(), key[1], offset))

    def forget(self, keys: Iterable[AttemptKey]) -> None:
        """Have the files of ended attempts removed."""
        with self._lock:
            self._forgets += keys
            self._send_forgets()

    def close(self, *, stop_idle: bool) -> None:
        """Let go of the shepherd; what runs goes on. `stop_idle`: one with nothing left to do ends at once."""
        with self._lock:
            self._closing = True
            if stop_idle:
                self._send(b'{"op":"stop","when":"idle"}\n')
            self._wake()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_CLOSE_TIMEOUT_S)
        with self._lock:
            pending, self._pending = list(self._pending.values()), {}
            # A thread that is still reaching for a shepherd ends by itself; it needs its descriptors until then.
            if self._wake_writer >= 0 and (thread is None or not thread.is_alive()):
                os.close(self._wake_reader)
                os.close(self._wake_writer)
                self._wake_reader = self._wake_writer = -1
        for one in pending:
            one.future.set_exception(LinkClosed())
        self._reap()

    # --- reaching a shepherd ---

    def _reach(self) -> tuple[Reached, Listing]:
        failure = ShepherdUnavailable("The shepherd cannot be replaced.")
        for _ in range(_TRIES):
            reached = self._reach_one()
            try:
                if not self._is_outdated(reached) or not self._send_away(reached):
                    return reached, _listing(reached.connection.ask("list", "listed"))
            except ShepherdUnavailable as error:
                # It was just ending, most likely, and its successor answers.
                logger.info("shepherd did not answer", extra=log.fields(pid=reached.pid, reason=str(error)))
                failure = error
            reached.connection.close()
        raise failure

    def _is_outdated(self, reached: Reached) -> bool:
        # One that we started is the newest there is: if its version is not ours, it is our own that is old.
        return reached.version != VERSION and reached.pid not in self._children

    def _send_away(self, reached: Reached) -> bool:
        """Ask a shepherd of another version to end; False: it has something to do."""
        if reached.connection.ask("stop", "stopping", when="idle")["event"] != "stopping":
            return False
        logger.info("shepherd replaced", extra=log.fields(pid=reached.pid, version=reached.version))
        return True

    def _reach_one(self) -> Reached:
        reached = reach(self._state_dir, idle_exit_s=self._idle_exit_s, command=self._command)
        if reached.started_pid is not None:
            self._children.add(reached.started_pid)
        return reached

    def _take(self, reached: Reached) -> None:
        self._connection = reached.connection
        self._outbox.clear()
        self._pid = reached.pid
        self._outdated = self._is_outdated(reached)
        self._status = f"connected to shepherd {reached.pid}"
        log.change(
            logger, "shepherd", from_="away", to="connected", pid=reached.pid, version=reached.version,
        )  # fmt: skip

    # --- sending, under the lock ---

    def _send(self, line: bytes) -> None:
        """Send at once what the socket takes without waiting; the link's thread sends the rest."""
        if self._connection is None:
            return
        if not self._outbox:
            try:
                sent = self._connection.socket.send(line, _NO_WAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # it has gone: the link's thread sees that, too, and settles what was meant to be sent
            line = line[sent:]
        if line:
            self._outbox += line
            self._wake()

    def _send_forgets(self) -> None:
        if self._connection is not None and self._forgets:
            self._send(json.dumps({"op": "forget", "attempts": self._forgets}).encode() + b"\n")
            self._forgets = []

    def _wake(self) -> None:
        if self._wake_writer >= 0:
            try:
                os.write(self._wake_writer, b"w")
            except BlockingIOError:
                pass  # it is awake already

    # --- the link's thread ---

    def _serve(self, connection: Connection) -> None:
        while True:
            self._converse(connection)
            with self._lock:
                self._connection = None
                self._pid = None
                connection.close()
                if self._closing:
                    self._status = "closed"
                    return
                self._status = "the shepherd has gone, reaching another one"
            log.change(logger, "shepherd", level=logging.WARNING, from_="connected", to="gone")
            again = self._reconnect()
            if again is None:
                return
            connection = again

    def _converse(self, connection: Connection) -> None:
        """Take what the shepherd sends, send what had to wait, until it goes or we are closing."""
        poller = select.poll()
        poller.register(connection.socket, select.POLLIN)
        poller.register(self._wake_reader, select.POLLIN)
        number = connection.socket.fileno()
        self._dispatch_all(connection.unread())
        while True:
            to_reap = os.getpid() == 1 or not self._children <= {self._pid}
            ready = dict(poller.poll(_REAP_S * 1000 if to_reap else None))
            if to_reap:
                self._reap()
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            if number in ready and ready[number] & (select.POLLIN | select.POLLHUP | select.POLLERR):
                events = connection.receive()
                if events is None:
                    return
                self._dispatch_all(events)
            with self._lock:
                self._flush(connection)
                poller.modify(connection.socket, select.POLLIN | (select.POLLOUT if self._outbox else 0))
                if self._closing and not self._outbox:
                    return

    def _flush(self, connection: Connection) -> None:
        if self._outbox:
            try:
                del self._outbox[: connection.socket.send(self._outbox, _NO_WAIT)]
            except BlockingIOError:
                pass
            except OSError:
                self._outbox.clear()

    def _reconnect(self) -> Connection | None:
        """Reach a shepherd and settle with it what is pending; None when closing."""
        backoff = Backoff(base_s=0.1, cap_s=5.0)
        while True:
            self._reap()
            try:
                reached, listing = self._reach()
                break
            except ShepherdUnavailable as error:
                delay_s = backoff.next_s()
                self._status = f"{error} Next try in {delay_s:.1f} s."
                logger.error("shepherd not reached", extra=log.fields(reason=str(error), next_try_s=round(delay_s, 2)))
            if self._nap(delay_s):
                self._status = "closed"
                return None
        self._settle(reached, listing)
        return reached.connection

    def _nap(self, seconds: float) -> bool:
        """Wait, unless we are closing; then True at once."""
        until = time.monotonic() + seconds
        while not self._closing and (left_s := until - time.monotonic()) > 0:
            if select.select([self._wake_reader], [], [], left_s)[0]:
                os.read(self._wake_reader, 4096)
        return self._closing

    def _settle(self, reached: Reached, listing: Listing) -> None:
        """After a break: what has ended meanwhile is told, what was never started is started."""
        running = {one.key for one in listing.running}
        ended = {record.key: record for record in listing.ended}
        finished: list[ExitRecord] = []
        with self._lock:
            self._take(reached)
            for key, pending in list(self._pending.items()):
                if key in ended:
                    finished.append(ended[key])
                elif key in running or pending.start is not None:
                    if key not in running:
                        self._send(pending.start or b"")
                    if pending.kill is not None:
                        self._send(pending.kill)
                else:
                    finished.append(unknown_end(key, pending.lease, _GONE))
            self._send_forgets()
        for record in finished:
            self._finish(record.key, record)

    def _dispatch_all(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            try:
                self._dispatch(event)
            except Exception:  # the edge of the loop: one bad message must not end all that follow
                logger.exception("message of the shepherd not understood")

    def _dispatch(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "output":
            if self.on_output is not None:
                self.on_output(event["run_id"], event["attempt"], event["end"])
        elif kind == "ended":
            record = ExitRecord.from_wire(event["record"])
            self._finish(record.key, record)
        elif kind == "refused":
            # One that is stopping goes away in a moment; its successor is asked again.
            if event["state"] != "stopping":
                self._finish((event["run_id"], event["attempt"]), StartRefused(event["detail"]))
        elif kind == "error":
            logger.error("shepherd complains", extra=log.fields(reason=event.get("detail")))

    def _finish(self, key: AttemptKey, result: ExitRecord | StartRefused) -> None:
        with self._lock:
            pending = self._pending.pop(key, None)
            if self._outdated and not self._pending:
                self._send(b'{"op":"stop","when":"idle"}\n')
        if pending is None:
            return
        if isinstance(result, ExitRecord):
            pending.future.set_result(result)
        else:
            pending.future.set_exception(result)

    def _reap(self) -> None:
        """Wait for shepherds of ours that have ended; as first process of a container, for whoever lost its parent."""
        for pid in list(self._children):
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    self._children.discard(pid)
            except ChildProcessError:
                self._children.discard(pid)
        try:
            while os.getpid() == 1 and os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass


def unknown_end(key: AttemptKey, lease: str, detail: str, *, outcome: str = "interrupted") -> ExitRecord:
    """The record of an attempt of which nobody knows how it ended."""
    ended_at_ms = time.time_ns() // 1_000_000
    run_id, attempt = key
    return ExitRecord(
        run_id=run_id, attempt=attempt, lease=lease, outcome=outcome, ended_at_ms=ended_at_ms, detail=detail
    )


def _listing(event: Mapping[str, Any]) -> Listing:
    try:
        running = tuple(
            RunningAttempt(**{name: one[name] for name in _RUNNING_FIELDS if name in one}) for one in event["running"]
        )
        return Listing(running, tuple(ExitRecord.from_wire(record) for record in event["ended"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ShepherdUnavailable(f"The shepherd's list cannot be read: {error}") from error
