"""The shepherd: one small process beside each agent that forks the scripts, and outlives the agent.

It owns pipes, spools, timeouts, the kill ladder and exit records, and reaps every process that loses its parent below
it. One thread, one loop, standard library only, started as `muster shepherd --state DIR`. At most one per directory.
It ends by itself when nothing is left to do and no agent comes; TERM makes it end what runs, as `interrupted`.
docs/host.md describes the protocol.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

from agent.attempt_files import boot_id
from agent.event_loop import EventLoop
from agent.flock import Flock, Refused
from agent.shepherd_door import Door
from common import pidlock
from common.descriptors import raise_limit
from common.version import VERSION

TYPE_CHECKING = False  # the module typing is left out of this process
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

PROTOCOL = 1
LOCK = "shepherd.lock"
READY = b"ready\n"
ALREADY_RUNNING = 3  # exit code
_PR_SET_CHILD_SUBREAPER = 36
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
    """The process around the flock: its directory and lock, its signals, its door, and when it ends."""

    def __init__(self, state_dir: str, *, idle_exit_s: float, boot_id_path: str | None = None) -> None:
        """Takes the directory's lock and opens its socket. Raises AlreadyRunning, OSError."""
        home_fd = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        attempts = os.path.join(os.path.abspath(state_dir), "attempts")
        os.fchdir(home_fd)
        self._lock_fd = _lock(home_fd)
        # Each attempt takes three descriptors and each leftover two; scripts get the limit that was before.
        open_files = raise_limit()
        os.makedirs(attempts, 0o700, exist_ok=True)
        self._idle_exit_s = idle_exit_s
        self._idle_since = time.monotonic()
        self._stopping = False
        self._finished = False
        self._loop = EventLoop()
        self._wake_fd = _catch_signals()
        self._loop.watch(self._wake_fd, self._signalled)
        self._door = Door(home_fd, self._loop, on_message=self._message, on_gone=self._agent_gone, complain=note)
        self._flock = Flock(
            attempts,
            loop=self._loop,
            door=self._door,
            home_fd=home_fd,
            open_files=open_files,
            null_fd=os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC),
            boot_id=boot_id(boot_id_path) if boot_id_path else boot_id(),
            note=note,
            fault=_fault_points(),
        )

    def recover(self) -> None:
        """Take over what a former shepherd left."""
        self._flock.recover()

    def run(self) -> None:
        """Loop until there is nothing more to do."""
        while not self._finished:
            wake_at = self._flock.wake_at
            if self._idle:
                wake_at = min(wake_at, self._idle_since + self._idle_exit_s)
            now = self._loop.turn(wake_at)
            self._flock.wake(now)
            self._consider_ending(now)
            self._door.flush(now)
        self._door.close()

    @property
    def _idle(self) -> bool:
        return not (self._flock.busy or self._door.connected)

    def _consider_ending(self, now: float) -> None:
        if self._stopping and not self._flock.running:
            self._finished = True
        elif self._idle:
            self._finished = now - self._idle_since >= self._idle_exit_s
        else:
            self._idle_since = now

    def _signalled(self, now: float) -> None:
        if signal.SIGTERM in os.read(self._wake_fd, 4096):
            self._stop_now(now)
        self._flock.reap(now)

    def _stop_now(self, now: float) -> None:
        note("asked to stop", running=len(self._flock.running))
        # Asked a second time, it does not wait for the scripts' own endings.
        self._flock.end_all("stop", 0.0 if self._stopping else None, now)
        self._stopping = True

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
        note("agent gone", running=len(self._flock.running))
        self._idle_since = now

    def _hello(self, message: dict[str, Any], now: float) -> None:
        note("agent connected", agent_pid=message.get("pid"), version=message.get("version"))
        running = len(self._flock.running)
        self._send(event="hello", protocol=PROTOCOL, version=VERSION, pid=os.getpid(), running=running)

    def _start(self, message: dict[str, Any], now: float) -> None:
        spec = message["spec"]
        run_id, number = spec["run_id"], spec["attempt"]
        try:
            if self._stopping:
                raise Refused("stopping", "The shepherd is about to end.")
            check_spec(spec)
            attempt = self._flock.start(spec, now)
        except (Refused, ValueError) as error:
            state = error.state if isinstance(error, Refused) else "not_started"
            note("start refused", run_id=run_id, attempt=number, state=state, reason=error)
            self._send(event="refused", run_id=run_id, attempt=number, state=state, detail=str(error))
            return
        if attempt.record is None:
            at_ms = attempt.started_at_ms
            self._send(event="started", run_id=run_id, attempt=number, pid=attempt.pid, at_ms=at_ms)

    def _kill(self, message: dict[str, Any], now: float) -> None:
        attempt = self._flock.running.get((message["run_id"], message["attempt"]))
        if attempt is not None:
            grace_s = message.get("grace_s")
            attempt.kill(str(message["why"]), None if grace_s is None else float(grace_s), now)

    def _ack(self, message: dict[str, Any], now: float) -> None:
        attempt = self._flock.running.get((message["run_id"], message["attempt"]))
        if attempt is not None:
            attempt.acknowledge(int(message["offset"]))

    def _forget(self, message: dict[str, Any], now: float) -> None:
        for run_id, number in message["attempts"]:
            self._flock.forget(run_id, number)

    def _list(self, message: dict[str, Any], now: float) -> None:
        running = [attempt.describe() for attempt in self._flock.running.values()]
        ended = b",".join(self._flock.records.values())
        self._door.send(b'{"event":"listed","running":%s,"ended":[%s]}' % (json.dumps(running).encode(), ended))

    def _stop(self, message: dict[str, Any], now: float) -> None:
        if message.get("when") == "now":
            self._stop_now(now)
        elif self._flock.busy:
            running, held_pipes = len(self._flock.running), self._flock.held_pipes
            self._send(event="busy", running=running, held_pipes=held_pipes)
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


def check_spec(spec: dict[str, Any]) -> None:
    """Raises ValueError for a spec that lacks a field or has one of another kind than `spec_message` gives."""
    for name, kind in _SPEC_KINDS.items():
        if name not in spec or not isinstance(spec[name], kind):
            raise ValueError(f"The request to start is not valid: {name} is missing or of another kind.")
    words = [*spec["interpreter"], *spec["args"], *spec["env"].keys(), *spec["env"].values()]
    if not spec["interpreter"] or not all(isinstance(word, str) for word in words):
        raise ValueError("The request to start is not valid: interpreter, args and env hold texts.")


def _fault_points() -> Callable[[str], None]:
    """What passes a named fault point. Loaded only where a test arms them: it would add a third to the process."""
    if not os.environ.get("MUSTER_FAULTS"):
        return lambda name: None
    from common import faults

    return faults.at


def _lock(home_fd: int) -> int:
    try:
        return pidlock.take(LOCK, dir_fd=home_fd)
    except pidlock.Held as held:
        raise AlreadyRunning(str(held.pid or "")) from None


def _catch_signals() -> int:
    """Signals become bytes in a pipe, whose reading end is returned. Ctrl-C and a closed terminal are ignored."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reader


def _become_subreaper() -> None:
    """Processes below this one that lose their parent become its children, whatever session they are in."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _take_standard_descriptors() -> None:
    """No file of ours may get the number 0, 1 or 2, and none that our starter left open may stay open."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.closerange(3, max(fd + 1, os.sysconf("SC_OPEN_MAX")))


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

    `--boot-id FILE` reads the host's boot id from elsewhere, for tests. Exit code 3: another one has this directory.
    """
    arguments = _arguments(argv)
    _take_standard_descriptors()
    os.umask(0o022)
    try:
        shepherd = Shepherd(
            arguments["--state"],
            idle_exit_s=float(arguments.get("--idle-exit", "60")),
            boot_id_path=arguments.get("--boot-id"),
        )
    except AlreadyRunning as other:
        note("another shepherd has this state directory", pid=other)
        return ALREADY_RUNNING
    _become_subreaper()
    note("started", pid=os.getpid(), version=VERSION)
    shepherd.recover()
    try:
        os.write(1, READY)
    except OSError:
        pass  # nobody waits for it
    os.dup2(0, 1)
    shepherd.run()
    note("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
