"""All attempts of one shepherd: those that run, the records of those that ended, and the processes they left.

It reaps every process that ends below the shepherd and knows whose it was. What ended stays until it is forgotten.
Standard library only, and small: the shepherd imports it.
"""

from __future__ import annotations

import json
import os
import time

from agent.attempt_files import AttemptFiles, find_attempts
from agent.collector import READ_SIZE
from agent.event_loop import NEVER, EventLoop
from agent.forked import ForkedAttempt
from agent.processes import Process, ProcessTable, mark_of, own_children, process
from agent.spawn import base_environment

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agent.attempt import AttemptKey
    from agent.shepherd_door import Door

_DRAINS_AT_ONCE = 16
_HELD_MOST = 2_000  # pipes of ended attempts that are read to nowhere
_RECORD_RETRY_S = 1.0
_LOOKS_MOST = 20  # at the children, while some of them end


class Refused(Exception):
    """An attempt was not started because of the state it is in: `state` is a word, `detail` a sentence."""

    def __init__(self, state: str, detail: str) -> None:
        super().__init__(detail)
        self.state = state
        self.detail = detail


class Flock:
    """The attempts below `attempts_path`. It is the `forked.Yard` of each of them."""

    def __init__(
        self,
        attempts_path: str,
        *,
        loop: EventLoop,
        door: Door,
        home_fd: int,
        null_fd: int,
        open_files: int,
        boot_id: str,
        note: Callable[..., None],
        fault: Callable[[str], None],
    ) -> None:
        """`note` writes a line of log, `fault` passes a fault point. `null_fd` is the scripts' stdin, `home_fd` the
        directory in which the shepherd stands, `open_files` the soft limit of open files that scripts get.
        """
        self.boot_id = boot_id
        self.base_environment = base_environment()
        self.null_fd = null_fd
        self.home_fd = home_fd
        self.open_files = open_files
        self.fault = fault
        self.watch = loop.watch
        self.watch_writing = loop.watch_writing
        self.unwatch = loop.unwatch
        self.running: dict[AttemptKey, ForkedAttempt] = {}
        self.records: dict[AttemptKey, bytes] = {}  # of attempts that ended, as JSON
        self._attempts_path = attempts_path
        self._door = door
        self._note = note
        self._by_pid: dict[int, ForkedAttempt] = {}
        self._unwritten: dict[AttemptKey, AttemptFiles] = {}  # ended, but the disk did not take the record
        self._retry_at = NEVER
        self._owners: dict[int, AttemptKey | None] = {}  # stray processes -> attempt
        self._held_pipes: dict[int, None] = {}  # oldest first; of ended attempts; somebody still writes to them
        self._table = ProcessTable()
        self._looked = False  # in this turn of the loop

    @property
    def held_pipes(self) -> int:
        """How many pipes of ended attempts are still written to."""
        return len(self._held_pipes)

    @property
    def busy(self) -> bool:
        """Whether there is anything that would be lost with this process."""
        return bool(self.running or self._held_pipes or self._unwritten)

    @property
    def wake_at(self) -> float:
        """When `wake` wants to be called."""
        at = self._retry_at
        for attempt in self.running.values():
            at = min(at, attempt.wake_at)
        return at

    def wake(self, now: float) -> None:
        """Do what is due; once in each turn of the loop."""
        for attempt in [attempt for attempt in self.running.values() if attempt.wake_at <= now]:
            attempt.wake(now)
        if self._retry_at <= now:
            self._write_records(now)
        self._looked = False

    # --- what is asked of it ---

    def files(self, run_id: str, attempt: int) -> AttemptFiles:
        """The directory of an attempt. Raises ValueError for what cannot be one's name."""
        return AttemptFiles(self._attempts_path, run_id, attempt)

    def recover(self) -> None:
        """Take over what a former shepherd left: its exit records, and the remains of what it ran."""
        now = time.monotonic()
        for files in find_attempts(self._attempts_path):
            record = files.exit()
            if record is not None:
                self.records[files.key] = json.dumps(record).encode()
                continue
            started = files.started()
            if started is None:
                continue  # only prepared: its agent knows whether it is still wanted
            attempt = ForkedAttempt.of_remains(started, files, self, now)
            if attempt.record is None:
                self.running[files.key] = attempt
            self._note("attempt found without its end", run_id=files.run_id, attempt=files.attempt, pid=attempt.pid)
        for attempt in list(self.running.values()):
            attempt.wake(now)

    def start(self, spec: dict[str, Any], now: float) -> ForkedAttempt:
        """Start an attempt. It may have ended on return, if it could not be forked. Raises Refused, ValueError."""
        files = self.files(spec["run_id"], spec["attempt"])
        if files.key in self.running or files.key in self.records:
            state = "running" if files.key in self.running else "ended"
            raise Refused(state, f"The attempt is {state}.")
        attempt = ForkedAttempt(spec, files, self)
        try:
            attempt.start(now)
        except FileExistsError:
            raise Refused("started", "The attempt was started before.") from None
        except OSError as error:
            raise Refused("not_started", f"The start could not be noted on disk: {error.strerror}.") from error
        if attempt.record is None:
            assert attempt.pid is not None
            self.running[files.key] = attempt
            self._by_pid[attempt.pid] = attempt
        return attempt

    def forget(self, run_id: str, number: int) -> None:
        """Remove all that is left of an attempt that has ended. Raises ValueError."""
        files = self.files(run_id, number)
        if files.key not in self.running:
            self.records.pop(files.key, None)
            self._unwritten.pop(files.key, None)
            files.remove()

    def end_all(self, why: str, grace_s: float | None, now: float) -> None:
        """Kill every attempt that runs."""
        for attempt in list(self.running.values()):
            attempt.kill(why, grace_s, now)

    # --- what attempts need of it ---

    def look(self, *, fresh: bool = False) -> ProcessTable:
        """The process table of this turn of the loop, or of this moment.

        One look serves all attempts of a turn: hundreds may be cancelled together.
        """
        if fresh or not self._looked:
            self._table.refresh()
            self._looked = True
        return self._table

    def strays(self, attempt: ForkedAttempt) -> list[Process]:
        """Living processes whose parents have gone and that belong to the attempt, its main process not among them."""
        found: dict[int, Process] = {}
        seen: set[int] = set()
        for _ in range(_LOOKS_MOST):
            somebody_ended = False
            for pid in own_children():
                if pid in seen or pid in self._by_pid or self._owners.get(pid, attempt.key) != attempt.key:
                    continue
                seen.add(pid)
                one = process(pid)
                if one is None or not one.alive:
                    somebody_ended = True
                elif self._owner(one) == attempt.key:
                    found[pid] = one
            # Whoever ended while we looked may have left children, and they are ours since then.
            if not somebody_ended:
                break
        return list(found.values())

    def _owner(self, one: Process) -> AttemptKey | None:
        if one.pid not in self._owners:
            self._owners[one.pid] = self._find_owner(one.pid, one.session, one.started_s)
        return self._owners[one.pid]

    def _find_owner(self, pid: int, session: int, started_s: float) -> AttemptKey | None:
        mark = mark_of(pid)
        if mark is not None:
            return mark
        for attempt in self.running.values():
            if attempt.pid == session:
                return attempt.key
        # It cleared its environment and left its session. With only one attempt about, it can be no other's.
        if len(self.running) == 1:
            (attempt,) = self.running.values()
            if attempt.began_boottime_s <= started_s + 0.02:
                return attempt.key
        return None

    def progressed(self, attempt: ForkedAttempt) -> None:
        """Tell the agent that more output can be read."""
        if not self._door.backed_up:
            run_id, number = attempt.key
            event = b'{"event":"output","run_id":"%s","attempt":%d,"end":%d}'
            self._door.send(event % (run_id.encode(), number, attempt.output_end))

    def ended(self, attempt: ForkedAttempt, held_pipes: list[int]) -> None:
        """An attempt is over: write its record, tell the agent, go on draining what others still write to."""
        self.fault("shepherd-before-exit-record")
        record = json.dumps(attempt.record).encode()
        self.running.pop(attempt.key, None)
        self.records[attempt.key] = record
        for fd in held_pipes:
            self._hold(fd)
        try:
            attempt.files.write_exit(record)
        except OSError as error:
            self._note("exit record not written", run_id=attempt.key[0], error=error.strerror)
            self._unwritten[attempt.key] = attempt.files
            self._retry_at = time.monotonic() + _RECORD_RETRY_S
        self.fault("shepherd-after-exit-record")
        self._door.send(b'{"event":"ended","record":%s}' % record)

    def _write_records(self, now: float) -> None:
        for key, files in list(self._unwritten.items()):
            try:
                files.write_exit(self.records[key])
            except FileNotFoundError:
                pass  # somebody took the whole directory away
            except OSError:
                self._retry_at = now + _RECORD_RETRY_S
                return
            del self._unwritten[key]
        self._retry_at = NEVER

    def _hold(self, fd: int) -> None:
        if len(self._held_pipes) >= _HELD_MOST:
            oldest = next(iter(self._held_pipes))
            self._note("too many leftovers write to the pipes of ended scripts: the oldest pipe is closed")
            self._let_go(oldest)
        self._held_pipes[fd] = None
        self.watch(fd, lambda now: self._drain(fd))

    def _drain(self, fd: int) -> None:
        """Read to nowhere, so that whoever writes there neither waits nor breaks."""
        for _ in range(_DRAINS_AT_ONCE):
            try:
                if os.read(fd, READ_SIZE):
                    continue
            except BlockingIOError:
                return
            self._let_go(fd)
            return

    def _let_go(self, fd: int) -> None:
        self.unwatch(fd)
        os.close(fd)
        del self._held_pipes[fd]

    # --- processes that end ---

    def reap(self, now: float) -> None:
        """Wait for every process that has ended."""
        strays_ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            attempt = self._by_pid.pop(pid, None)
            if attempt is not None:
                attempt.main_ended(status, now)
            else:
                self._owners.pop(pid, None)
                strays_ended = True
        if strays_ended:
            for attempt in list(self.running.values()):
                attempt.stray_ended(now)
