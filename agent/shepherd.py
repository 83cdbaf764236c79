"""The shepherd: one small process beside each agent that forks the scripts, and outlives the agent.

It owns pipes, spools, timeouts, the kill ladder and exit records; it reaps every process that loses its parent below
it. One thread, one loop, standard library only, started as `muster shepherd --state DIR`. At most one per directory.
It ends by itself when nothing is left to do and no agent comes; TERM makes it end what runs, as `interrupted`.
docs/host.md describes the protocol.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time

from agent.attempt_files import AttemptFiles, boot_id, find_attempts
from agent.collector import NEVER, READ_SIZE
from agent.forked import ForkedAttempt
from agent.processes import ProcessTable, mark_of, own_children, process
from agent.shepherd_door import Door
from agent.spawn import base_environment
from common.version import VERSION

TYPE_CHECKING = False  # the module typing is left out of this process
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agent.attempt import AttemptKey

PROTOCOL = 1
LOCK = "shepherd.lock"
READY = b"ready\n"
_PR_SET_CHILD_SUBREAPER = 36
_DRAINS_AT_ONCE = 16
_RECORD_RETRY_S = 1.0
_SPEC_KINDS: dict[str, Any] = {
    "run_id": str,
    "attempt": int,
    "lease": str,
    "task_id": (str, type(None)),
    "fence": int,
    "interpreter": list,
    "args": list,
    "env": dict,
    "cwd": (str, type(None)),
    "timeout_s": (int, float),
    "output_limit": int,
    "leftovers": str,
    "kill_grace_s": (int, float),
    "drain_quiet_s": (int, float),
    "drain_most_s": (int, float),
}


def note(what: str, **values: object) -> None:
    """One line for the log, key=value as in the other daemons. Never raises."""
    at = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
    words = [f"at={stamp}", "level=info", "role=shepherd", f"msg={json.dumps(what)}"]
    words += [f"{key}={json.dumps(str(value))}" for key, value in values.items() if value is not None]
    try:
        os.write(2, " ".join(words).encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass


class AlreadyRunning(Exception):
    """Another shepherd has this state directory; the text is its pid."""


class Shepherd:
    """The loop and everything it watches."""

    def __init__(self, state_dir: str, *, idle_exit_s: float, boot_id_path: str | None = None) -> None:
        """Takes the directory's lock and opens its socket. Raises AlreadyRunning, OSError."""
        self.home_fd = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fchdir(self.home_fd)
        self._lock_fd = self._lock()
        self.boot_id = boot_id(boot_id_path) if boot_id_path else boot_id()
        self.base_environment = base_environment()
        self.null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._attempts_path = os.path.join(os.path.abspath(state_dir), "attempts")
        os.makedirs(self._attempts_path, 0o700, exist_ok=True)
        self._poller = select.epoll()
        self._callbacks: dict[int, Callable[[float], None]] = {}
        self._running: dict[AttemptKey, ForkedAttempt] = {}
        self._by_pid: dict[int, ForkedAttempt] = {}
        self._ended: dict[AttemptKey, bytes] = {}  # exit records as JSON, until they are forgotten
        self._unwritten: dict[AttemptKey, AttemptFiles] = {}  # ended, but the disk did not take the record
        self._owners: dict[int, AttemptKey | None] = {}  # stray processes -> attempt
        self._drains: set[int] = set()  # pipes of ended attempts that somebody still writes to
        self._table = ProcessTable()
        self._looked = False  # at the table, in this round
        self._idle_exit_s = idle_exit_s
        self._idle_since = time.monotonic()
        self._retry_at = NEVER
        self._stopping = False
        self._finished = False
        self._wake_fd = self._catch_signals()
        self._door = Door(self.home_fd, self, on_message=self._message, on_gone=self._agent_gone, complain=note)

    # --- beginning and loop ---

    def _lock(self) -> int:
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self.home_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise AlreadyRunning(other) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        return fd

    def _catch_signals(self) -> int:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.watch(reader, self._signalled)
        return reader

    def recover(self) -> None:
        """Take over what a former shepherd left: its exit records, and the remains of what it ran."""
        now = time.monotonic()
        for files in find_attempts(self._attempts_path):
            record = files.exit()
            if record is not None:
                self._ended[files.key] = json.dumps(record).encode()
                continue
            started = files.started()
            if started is None:
                continue  # only prepared: its agent knows whether it is still wanted
            attempt = ForkedAttempt.of_remains(started, files, self, now)
            if attempt.record is None:
                self._running[files.key] = attempt
            note("attempt found without its end", run_id=files.run_id, attempt=files.attempt, pid=attempt.pid)
        for attempt in list(self._running.values()):
            attempt.wake(now)

    def run(self) -> None:
        """Loop until there is nothing more to do."""
        while not self._finished:
            now = time.monotonic()
            timeout = min(self._wake_at(now) - now, 3600.0)
            events = self._poller.poll(max(timeout, 0.0), 256)
            now = time.monotonic()
            self._looked = False
            for fd, _ in events:
                callback = self._callbacks.get(fd)
                if callback is not None:
                    callback(now)
            self._do_what_is_due(now)
            self._door.flush(now)
        self._door.close()

    def _wake_at(self, now: float) -> float:
        at = self._retry_at
        for attempt in self._running.values():
            at = min(at, attempt.wake_at)
        if self._idle:
            at = min(at, self._idle_since + self._idle_exit_s)
        return at

    def _do_what_is_due(self, now: float) -> None:
        due = [attempt for attempt in self._running.values() if attempt.wake_at <= now]
        for attempt in due:
            attempt.wake(now)
        if self._retry_at <= now:
            self._write_records(now)
        if not self._running and self._stopping:
            self._finished = True
        elif self._idle:
            self._finished = now - self._idle_since >= self._idle_exit_s
        else:
            self._idle_since = now

    @property
    def _idle(self) -> bool:
        return not (self._running or self._drains or self._unwritten or self._door.connected)

    # --- what attempts need of it (forked.Yard) ---

    def watch(self, fd: int, callback: Callable[[float], None]) -> None:
        """Call `callback(now)` whenever `fd` can be read or is at its end."""
        self._register(fd, select.EPOLLIN, callback)

    def watch_writing(self, fd: int, callback: Callable[[float], None]) -> None:
        """Call `callback(now)` once `fd` can be written again, instead of when it can be read."""
        self._register(fd, select.EPOLLOUT, callback)

    def _register(self, fd: int, mask: int, callback: Callable[[float], None]) -> None:
        if fd in self._callbacks:
            self._poller.modify(fd, mask)
        else:
            self._poller.register(fd, mask)
        self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Stop calling back for `fd`."""
        del self._callbacks[fd]
        self._poller.unregister(fd)

    def look(self, *, fresh: bool = False) -> ProcessTable:
        """The process table of this round of the loop, or of this moment.

        One look serves all attempts of a round: hundreds may be cancelled together.
        """
        if fresh or not self._looked:
            self._table.refresh()
            self._looked = True
        return self._table

    def strays(self, attempt: ForkedAttempt) -> list[int]:
        """Processes whose parents have gone and that belong to the attempt, its main process not among them."""
        return [pid for pid in own_children() if pid not in self._by_pid and self._owner(pid) == attempt.key]

    def _owner(self, pid: int) -> AttemptKey | None:
        if pid not in self._owners:
            found = process(pid)
            if found is None or not found.alive:
                return None
            self._owners[pid] = self._find_owner(pid, found.session, found.started_s)
        return self._owners[pid]

    def _find_owner(self, pid: int, session: int, started_s: float) -> AttemptKey | None:
        mark = mark_of(pid)
        if mark is not None:
            return mark
        for attempt in self._running.values():
            if attempt.pid == session:
                return attempt.key
        # It cleared its environment and left its session. With only one attempt about, it can be no other's.
        if len(self._running) == 1:
            (attempt,) = self._running.values()
            if attempt.began_boottime_s <= started_s + 0.02:
                return attempt.key
        return None

    def progressed(self, attempt: ForkedAttempt) -> None:
        """Tell the agent that more output can be read."""
        if not self._door.backed_up:
            run_id, number = attempt.key
            self._door.send(
                b'{"event":"output","run_id":"%s","attempt":%d,"end":%d}'
                % (run_id.encode(), number, attempt.output_end)
            )

    def ended(self, attempt: ForkedAttempt, held_pipes: list[int]) -> None:
        """An attempt is over: write its record, tell the agent, go on draining what others still write to."""
        record = json.dumps(attempt.record).encode()
        self._running.pop(attempt.key, None)
        self._ended[attempt.key] = record
        for fd in held_pipes:
            self._drains.add(fd)
            self.watch(fd, lambda now, fd=fd: self._drain(fd))  # type: ignore[misc]
        try:
            attempt.files.write_exit(record)
        except OSError as error:
            note("exit record not written", run_id=attempt.key[0], error=error.strerror)
            self._unwritten[attempt.key] = attempt.files
            self._retry_at = time.monotonic() + _RECORD_RETRY_S
        self._door.send(b'{"event":"ended","record":%s}' % record)

    def _write_records(self, now: float) -> None:
        for key, files in list(self._unwritten.items()):
            try:
                files.write_exit(self._ended[key])
            except FileNotFoundError:
                pass  # somebody took the whole directory away
            except OSError:
                self._retry_at = now + _RECORD_RETRY_S
                return
            del self._unwritten[key]
        self._retry_at = NEVER

    def _drain(self, fd: int) -> None:
        for _ in range(_DRAINS_AT_ONCE):
            try:
                if os.read(fd, READ_SIZE):
                    continue
            except BlockingIOError:
                return
            self.unwatch(fd)
            os.close(fd)
            self._drains.discard(fd)
            return

    # --- processes that end ---

    def _signalled(self, now: float) -> None:
        numbers = os.read(self._wake_fd, 4096)
        if signal.SIGTERM in numbers:
            self._stop_everything(now)
        self._reap(now)

    def _reap(self, now: float) -> None:
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
            for attempt in list(self._running.values()):
                attempt.stray_ended(now)

    def _stop_everything(self, now: float) -> None:
        hurry = self._stopping
        self._stopping = True
        note("asked to stop", running=len(self._running))
        for attempt in list(self._running.values()):
            attempt.kill("stop", 0.0 if hurry else None, now)

    # --- what the agent asks ---

    def _message(self, message: dict[str, Any], now: float) -> None:
        op = str(message.get("op"))
        action = self._ACTIONS.get(op)
        if action is None:
            self._send(event="error", detail=f"unknown op {op!r}")
            return
        try:
            action(self, message, now)
        except (ValueError, KeyError, TypeError) as error:
            note("request not understood", op=op, error=error)
            self._send(event="error", detail=f"{op}: {error!r}")

    def _send(self, **event: object) -> None:
        self._door.send(json.dumps(event).encode())

    def _agent_gone(self, now: float) -> None:
        note("agent gone", running=len(self._running))
        self._idle_since = now

    def _hello(self, message: dict[str, Any], now: float) -> None:
        note("agent connected", agent_pid=message.get("pid"), version=message.get("version"))
        self._send(event="hello", protocol=PROTOCOL, version=VERSION, pid=os.getpid(), running=len(self._running))

    def _start(self, message: dict[str, Any], now: float) -> None:
        spec = message["spec"]
        files = AttemptFiles(self._attempts_path, spec["run_id"], spec["attempt"])
        key = files.key
        state = "running" if key in self._running else "ended" if key in self._ended else None
        if state is None and self._stopping:
            state = "stopping"
        if state is not None:
            self._refuse(key, state, f"The attempt is {state}.")
            return
        attempt = None
        try:
            _check_spec(spec)
            attempt = ForkedAttempt(spec, files, self)
            attempt.start(now)
        except FileExistsError:
            self._refuse(key, "started", "The attempt was started before.")
            return
        except OSError as error:
            self._refuse(key, "not_started", f"The start could not be noted on disk: {error.strerror}.")
            return
        except ValueError as error:
            self._refuse(key, "not_started", f"The request to start is not valid: {error}.")
            return
        if attempt.record is None:
            assert attempt.pid is not None
            self._running[key] = attempt
            self._by_pid[attempt.pid] = attempt
            self._send(event="started", run_id=key[0], attempt=key[1], pid=attempt.pid, at_ms=attempt.started_at_ms)

    def _refuse(self, key: AttemptKey, state: str, detail: str) -> None:
        note("start refused", run_id=key[0], attempt=key[1], state=state)
        self._send(event="refused", run_id=key[0], attempt=key[1], state=state, detail=detail)

    def _kill(self, message: dict[str, Any], now: float) -> None:
        attempt = self._running.get((message["run_id"], message["attempt"]))
        if attempt is not None:
            grace_s = message.get("grace_s")
            attempt.kill(str(message["why"]), None if grace_s is None else float(grace_s), now)

    def _ack(self, message: dict[str, Any], now: float) -> None:
        attempt = self._running.get((message["run_id"], message["attempt"]))
        if attempt is not None:
            attempt.acknowledge(int(message["offset"]))

    def _forget(self, message: dict[str, Any], now: float) -> None:
        for run_id, number in message["attempts"]:
            files = AttemptFiles(self._attempts_path, run_id, number)
            if files.key in self._running:
                continue
            self._ended.pop(files.key, None)
            self._unwritten.pop(files.key, None)
            files.remove()

    def _list(self, message: dict[str, Any], now: float) -> None:
        running = [
            {
                "run_id": run_id,
                "attempt": number,
                "lease": attempt.spec["lease"],
                "pid": attempt.pid,
                "started_at_ms": attempt.started_at_ms,
                "output_limit": attempt.spec["output_limit"],
                "output_end": attempt.output_end,
            }
            for (run_id, number), attempt in self._running.items()
        ]
        ended = b",".join(self._ended.values())
        self._door.send(b'{"event":"listed","running":%s,"ended":[%s]}' % (json.dumps(running).encode(), ended))

    def _stop(self, message: dict[str, Any], now: float) -> None:
        if message.get("when") == "now":
            self._stop_everything(now)
        elif self._running or self._drains or self._unwritten:
            self._send(event="busy", running=len(self._running), held_pipes=len(self._drains))
            return
        self._stopping = True
        self._send(event="stopping")

    _ACTIONS = {  # noqa: RUF012
        "hello": _hello,
        "start": _start,
        "kill": _kill,
        "ack": _ack,
        "forget": _forget,
        "list": _list,
        "stop": _stop,
    }


def _check_spec(spec: dict[str, Any]) -> None:
    for name, kind in _SPEC_KINDS.items():
        if name not in spec or not isinstance(spec[name], kind):
            raise ValueError(f"{name} is missing or of another type")
    words = [*spec["interpreter"], *spec["args"], *spec["env"].keys(), *spec["env"].values()]
    if not spec["interpreter"] or not all(isinstance(word, str) for word in words):
        raise ValueError("interpreter, args and env hold texts, and interpreter at least one")


def become_subreaper() -> None:
    """Processes below this one that lose their parent become its children, whatever session they are in."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _arguments(argv: Sequence[str]) -> dict[str, str]:
    words = list(argv)
    found = {}
    while words:
        name = words.pop(0)
        if name not in ("--state", "--idle-exit", "--boot-id") or not words:
            raise SystemExit("usage: muster shepherd --state DIR [--idle-exit SECONDS]")
        found[name] = words.pop(0)
    if "--state" not in found:
        raise SystemExit("usage: muster shepherd --state DIR [--idle-exit SECONDS]")
    return found


def main(argv: Sequence[str]) -> int:
    """Run a shepherd: `--state DIR [--idle-exit SECONDS]`. Writes `ready` to stdout once it can be talked to.

    Exit code 3: another one has this directory.
    """
    arguments = _arguments(argv)
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # whoever started us left a standard descriptor closed; no other file may get its number
    os.close(fd)
    os.umask(0o022)
    try:
        shepherd = Shepherd(
            arguments["--state"],
            idle_exit_s=float(arguments.get("--idle-exit", "60")),
            boot_id_path=arguments.get("--boot-id"),
        )
    except AlreadyRunning as other:
        note("another shepherd has this state directory", pid=other)
        return 3
    become_subreaper()
    note("started", pid=os.getpid(), version=VERSION)
    shepherd.recover()
    try:
        os.write(1, READY)
    except OSError:
        pass  # nobody waits for it
    os.dup2(shepherd.null_fd, 1)
    shepherd.run()
    note("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
