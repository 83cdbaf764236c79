"""Runs attempts: a worker thread and a future for each, over the shepherd that does the forking.

Promises: an attempt is begun at most once, whatever crashes; its exit record is in the journal before its future is
done; after a restart `adopt` tells of every attempt that was begun and not yet delivered. All methods may be called
from any thread, gevent's hub included, and none blocks for longer than a lock, except `adopt` and `close`.
Futures are `concurrent.futures` ones: their callbacks run in native threads, so bridge them to the hub by an `async_`
watcher.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from agent.attempt import KILL_REASONS, AttemptKey, AttemptSpec, ExitRecord, spec_message
from agent.attempt_files import AttemptFiles, boot_id, find_attempts
from agent.journal import Begin, Journal, OpenEntry
from agent.shepherd_link import LinkClosed, ShepherdLink, StartRefused, unknown_end
from agent.spool_reader import SpoolReader
from agent.workfile import BadShebang, interpreter_of
from common import log

logger = logging.getLogger(__name__)

T = TypeVar("T")

_THREADS_MOST: Final = 1024
_DEFAULT_OUTPUT_LIMIT: Final = 16 * 1024 * 1024
_NEVER_STARTED: Final = "The agent was ended after the master allowed the start and before the script ran: nothing ran."
_KILLED_BEFORE: Final = "The run was to end before its script was started: nothing ran."
_REBOOTED: Final = "The host was restarted before the result was noted on disk, so it is not known."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """The agent's own limits for every attempt."""

    kill_grace_s: float = 10.0  # between TERM and KILL
    drain_quiet_s: float = 0.2  # without output after the main process ended: the attempt is over
    drain_most_s: float = 1.0  # the longest wait for that


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedAttempt:
    """An attempt of a former agent process that was begun and not delivered."""

    run_id: str
    attempt: int
    lease: str
    future: Future[ExitRecord]  # done at once if the attempt had ended (or was interrupted, or the host rebooted)


class ExecutorClosed(Exception):
    """The executor was closed while the attempt ran; it goes on, and a later agent adopts it."""


@dataclass(slots=True)
class _Active:
    """An attempt whose future is not done."""

    started: bool = False  # the shepherd has been asked (or had it already)
    kill: tuple[str, float | None] | None = None  # wanted before that: (why, grace_s)


class Executor:
    """The attempts of one agent. Begins with `adopt`; end it with `close`."""

    def __init__(
        self,
        state_dir: Path,
        *,
        slots: int,
        link: ShepherdLink,
        journal: Journal,
        settings: ExecutorSettings | None = None,
        on_output: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """`on_output(run_id, attempt, end_offset)` is called in a native thread when more output is in the spool."""
        self.slots = slots  # how many attempts may be under way at once; may be set, also below what runs now
        self._attempts = os.path.join(os.path.abspath(state_dir), "attempts")
        self._link = link
        self._journal = journal
        self._limits = asdict(settings or ExecutorSettings())
        self._boot_id = boot_id()
        self._lock = threading.Lock()  # guards the three below
        self._active: dict[AttemptKey, _Active] = {}
        self._prepared: set[AttemptKey] = set()
        self._output_limits: dict[AttemptKey, int] = {}
        # Threads are made as they are needed, so this bounds nothing: the slots do.
        self._pool = ThreadPoolExecutor(_THREADS_MOST, thread_name_prefix="attempt")
        if on_output is not None:
            link.on_output = on_output

    def free_slots(self) -> int:
        """Slots without an attempt, submitted or adopted; never negative."""
        with self._lock:
            return max(0, self.slots - len(self._active))

    def running(self) -> list[AttemptKey]:
        """Every attempt submitted or adopted whose future is not done."""
        with self._lock:
            return list(self._active)

    # --- what former agents left ---

    def adopt(self) -> list[AdoptedAttempt]:
        """Connect to the shepherd (start one if there is none) and take over what former agents left.

        Call it once, before the first `submit`. Blocks for the shepherd's start. Raises ShepherdUnavailable.
        """
        os.makedirs(self._attempts, 0o700, exist_ok=True)
        listing = self._link.connect()
        ended = {record.key: record for record in listing.ended}
        entries = {entry.begin.key: entry for entry in self._journal.open_entries()}
        adopted = []
        for running in listing.running:
            with self._lock:
                self._active[running.key] = _Active(started=True)
                self._output_limits[running.key] = running.output_limit
            future = self._hand_over(self._until_ended, running.key, running.lease, self._link.adopt(running))
            future.add_done_callback(lambda _, key=running.key: self._drop(key))  # type: ignore[misc]
            adopted.append(_adopted(running.key, running.lease, future))
        going_on = {running.key for running in listing.running}
        for key in [*entries, *(key for key in ended if key not in entries)]:
            if key in going_on:
                continue
            entry = entries.get(key)
            # What the journal says of an end was said before: a record that was cut short on disk does not change it.
            record = entry.record if entry is not None else None
            if record is None:
                record = self._noted(self._end_of(entry, ended.get(key)))
            adopted.append(_adopted(key, record.lease, _done(record)))
        self._remove_unknown({one.key for one in listing.running} | ended.keys() | entries.keys())
        for one in adopted:
            logger.info(
                "attempt adopted",
                extra=log.fields(run_id=one.run_id, attempt=one.attempt, ended=one.future.done()),
            )
        return adopted

    def _end_of(self, entry: OpenEntry | None, record: ExitRecord | None) -> ExitRecord:
        """How an attempt ended by what the journal and the shepherd know of it; one of them does."""
        if entry is None:
            assert record is not None
            return record
        begin = entry.begin
        if record is not None and record.outcome != "interrupted":
            return record
        # Interrupted, or never with the shepherd: the agent went down between the journal and the fork, or the host.
        if begin.boot_id not in ("", self._boot_id):
            return replace(
                record or unknown_end(begin.key, begin.lease, ""),
                lease=begin.lease,
                outcome="rebooted",
                detail=_REBOOTED,
            )
        return replace(record, lease=begin.lease) if record else unknown_end(begin.key, begin.lease, _NEVER_STARTED)

    def _remove_unknown(self, known: set[AttemptKey]) -> None:
        for files in find_attempts(self._attempts):
            if files.key not in known:
                files.remove()  # delivered, and the agent went down before it was told to remove it

    # --- a new attempt ---

    def prepare(self, specs: Sequence[AttemptSpec]) -> Future[None]:
        """Before `begin` is called at the master: journal "about to begin" and write the script files, in one go.

        Done when it is on disk. An error (a full disk) is in the future; then release the runs.
        """
        return self._hand_over(self._prepare, specs)

    def _prepare(self, specs: Sequence[AttemptSpec]) -> None:
        done: list[AttemptFiles] = []
        try:
            for spec in specs:
                files = self._files(spec.key)
                files.create(spec.script)
                done.append(files)
            now_ms = time.time_ns() // 1_000_000
            self._journal.begin(
                Begin(run_id=spec.run_id, attempt=spec.attempt, lease=spec.lease, boot_id=self._boot_id, at_ms=now_ms)
                for spec in specs
            )
        except OSError:
            for files in done:
                files.remove()
            raise
        with self._lock:
            self._prepared.update(spec.key for spec in specs)

    def submit(self, spec: AttemptSpec) -> Future[ExitRecord]:
        """Run the attempt; only after the master allowed its begin. `spec.fence` is the begin's.

        The future never raises for what the script or the host does: that is an outcome of the record. It raises
        ExecutorClosed when the executor is closed before the end. Raises ValueError if the attempt is under way, or
        its run id is none.
        """
        self._files(spec.key)
        with self._lock:
            if spec.key in self._active:
                raise ValueError(f"attempt {spec.attempt} of run {spec.run_id} is under way already")
            self._active[spec.key] = _Active()
            self._output_limits[spec.key] = spec.output_limit
            prepared = spec.key in self._prepared
            self._prepared.discard(spec.key)
        if prepared:
            # The script is on disk: it need not stay in memory for as long as it runs.
            work = partial(self._run, spec.key, spec.lease, self._message(spec))
        else:
            work = partial(self._prepare_and_run, spec)
        try:
            future = self._hand_over(work)
        except BaseException:
            self._drop(spec.key)
            raise
        # If an error was its end, its slot is free all the same.
        future.add_done_callback(lambda _: self._drop(spec.key))
        return future

    def _hand_over(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have a worker thread do `work`. Raises OSError when there is none to be had; then it is never done.

        A pool that cannot start a thread keeps what it was given in its queue, and does it when another comes free:
        a run that was told as refused would run after all. So each piece can be called off.
        """
        future: Future[T] = Future()

        def do() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*arguments))
                except BaseException as error:  # whatever it is belongs to who waits for the future
                    future.set_exception(error)

        try:
            self._pool.submit(do)
        except RuntimeError as error:
            if future.cancel():
                raise OSError(errno.EAGAIN, f"this host starts no more threads ({error})") from error
        return future

    def _drop(self, key: AttemptKey) -> None:
        with self._lock:
            self._active.pop(key, None)

    def _message(self, spec: AttemptSpec) -> dict[str, Any] | str:
        """What the shepherd is sent; or the sentence why the script cannot be started at all."""
        try:
            interpreter = spec.interpreter or interpreter_of(spec.script)
        except BadShebang as error:
            return str(error)
        return spec_message(spec, interpreter=interpreter, limits=self._limits)

    def abandon(self, keys: Iterable[AttemptKey]) -> Future[None]:
        """Prepared, but not allowed to begin: nothing ran and nothing is to be told.

        Done when the files are gone: not before that may the same attempt be prepared again.
        """
        keys = list(keys)
        with self._lock:
            self._prepared.difference_update(keys)
        self._journal.delivered(keys)
        try:
            return self._hand_over(self._remove, keys)
        except OSError:
            self._remove(keys)  # a few small files, and no thread to do it
            return _done(None)

    def _remove(self, keys: list[AttemptKey]) -> None:
        for key in keys:
            self._files(key).remove()

    # --- in a worker thread ---

    def _prepare_and_run(self, spec: AttemptSpec) -> ExitRecord:
        try:
            self._prepare([spec])
        except OSError as error:
            return self._end(self._not_started(spec.key, spec.lease, _unwritable(error)))
        with self._lock:
            self._prepared.discard(spec.key)
        return self._run(spec.key, spec.lease, self._message(spec))

    def _run(self, key: AttemptKey, lease: str, message: dict[str, Any] | str) -> ExitRecord:
        if isinstance(message, str):
            return self._end(self._not_started(key, lease, message))
        with self._lock:
            active = self._active[key]
            if active.kill is None:
                # Under the lock, so that a kill comes either before the start or after it.
                future = self._link.start(message)
                active.started = True
        if active.kill is not None:
            why = active.kill[0]
            return self._end(replace(unknown_end(key, lease, _KILLED_BEFORE), killed_by_us=why))
        del message
        return self._until_ended(key, lease, future)

    def _until_ended(self, key: AttemptKey, lease: str, future: Future[ExitRecord]) -> ExitRecord:
        try:
            record = future.result()
        except StartRefused as error:
            record = self._not_started(key, lease, str(error))
        except LinkClosed:
            raise ExecutorClosed(f"attempt {key[1]} of run {key[0]} goes on without this agent") from None
        return self._end(record)

    def _not_started(self, key: AttemptKey, lease: str, detail: str) -> ExitRecord:
        return unknown_end(key, lease, detail, outcome="spawn_error")

    def _end(self, record: ExitRecord) -> ExitRecord:
        self._noted(record)
        self._drop(record.key)
        return record

    def _noted(self, record: ExitRecord) -> ExitRecord:
        try:
            self._journal.ended(record)
        except OSError as error:
            # The shepherd has written it, too; only a second fault now could lose it.
            logger.error(
                "end not journalled",
                extra=log.fields(run_id=record.run_id, attempt=record.attempt, error=error.strerror),
            )
        return record

    # --- while it runs, and after ---

    def kill(self, run_id: str, *, why: str, grace_s: float | None = None) -> bool:
        """End the run's attempt: TERM to its whole tree, grace, KILL. `why` is one of KILL_REASONS.

        False: no such attempt is under way. Its future tells the end.
        """
        if why not in KILL_REASONS:
            raise ValueError(f"{why!r} is no reason to end an attempt: use one of {', '.join(sorted(KILL_REASONS))}")
        found = False
        with self._lock:
            for key, active in self._active.items():
                if key[0] != run_id:
                    continue
                found = True
                if active.started:
                    self._link.kill(key, why=why, grace_s=grace_s)
                elif active.kill is None:
                    active.kill = (why, grace_s)
        return found

    def acknowledge(self, run_id: str, attempt: int, offset: int) -> None:
        """The master has all output below `offset` (or was told it is a gap): dropping that is no loss any more."""
        self._link.acknowledge((run_id, attempt), offset)

    def output(self, run_id: str, attempt: int) -> SpoolReader:
        """A reader over the attempt's output, while it runs and until it is forgotten. Close it."""
        files = self._files((run_id, attempt))
        with self._lock:
            limit = self._output_limits.get(files.key)
        if limit is None:
            started = files.started()
            limit = int(started[0].get("output_limit", _DEFAULT_OUTPUT_LIMIT)) if started else _DEFAULT_OUTPUT_LIMIT
        return SpoolReader(files.path, limit)

    def forget(self, keys: Iterable[AttemptKey]) -> None:
        """The master has the results: note it in the journal and remove files and spool."""
        keys = list(keys)
        self._journal.delivered(keys)
        with self._lock:
            for key in keys:
                self._output_limits.pop(key, None)
        self._link.forget(keys)

    def close(self) -> None:
        """Let go of the shepherd without ending what runs: a later agent adopts it. An idle shepherd is stopped.

        Futures that are not done raise ExecutorClosed.
        """
        self._link.close(stop_idle=True)
        self._pool.shutdown(wait=True)
        try:
            self._journal.close()
        except OSError as error:  # what it had still to note is told again by the next start, and known there
            logger.warning("journal not closed", extra=log.fields(error=error.strerror))

    def _files(self, key: AttemptKey) -> AttemptFiles:
        return AttemptFiles(self._attempts, *key)


def _adopted(key: AttemptKey, lease: str, future: Future[ExitRecord]) -> AdoptedAttempt:
    return AdoptedAttempt(run_id=key[0], attempt=key[1], lease=lease, future=future)


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _unwritable(error: OSError) -> str:
    return f"The script could not be written to the agent's disk: {error.strerror}."
