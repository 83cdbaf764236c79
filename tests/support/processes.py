"""Real processes in tests: started with their output at hand, waited for by events, and all gone afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

# What a daemon of a test has in its environment, so that nothing of it can be overlooked at the end.
MARK = "MUSTER_TEST_MARK"


class Spawned:
    """A process whose lines (stdout and stderr together) can be waited for. Its environment carries `mark`.

    `notified` tells when it has said that it is ready, as daemons do (`common.notify`).
    """

    def __init__(
        self, argv: Sequence[str], *, environ: Mapping[str, str] | None = None, mark: str, cwd: Path | None = None
    ) -> None:
        self.argv = tuple(argv)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._closed = False
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"muster-test-{secrets.token_hex(8)}"
        self._notify.bind("\0" + name)
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NOTIFY_SOCKET": "@" + name, **(environ or {}), MARK: mark},
            cwd=cwd,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"lines of {self.process.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def send(self, number: int = signal.SIGTERM) -> None:
        """Send a signal; nothing happens when the process has ended."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """The exit code (negative: the signal). Raises `AssertionError` with the last lines when it goes on."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} goes on after {timeout_s:g} s\n{self.tail()}") from None
        self._reader.join(1.0)  # a child of its may hold the pipe
        return code

    def notified(self, timeout_s: float = 30.0) -> None:
        """Wait until it says that it is ready. Raises `AssertionError` when it does not, or has ended."""
        deadline = time.monotonic() + timeout_s
        fd = os.pidfd_open(self.pid)
        try:
            while True:
                left_s = max(0.0, deadline - time.monotonic())
                there = select.select([self._notify, fd], [], [], left_s)[0]
                if self._notify not in there:
                    raise AssertionError(f"process {self.pid} is not ready after {timeout_s:g} s\n{self.tail()}")
                if b"READY=1" in self._notify.recv(4096).split(b"\n"):
                    return
        finally:
            os.close(fd)

    def mark(self) -> int:
        """A point in the output for `expect(after=…)`."""
        with self._news:
            return len(self.lines)

    def expect(self, pattern: str, *, after: int = 0, timeout_s: float = 30.0) -> re.Match[str]:
        """The first line from `after` on that `pattern` is found in. Raises `AssertionError` if none comes."""
        wanted = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                for line in self.lines[after:]:
                    found = wanted.search(line)
                    if found:
                        return found
                after = len(self.lines)
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._closed:
                    why = "its output ended" if self._closed else f"not within {timeout_s:g} s"
                    raise AssertionError(f"no line with {pattern!r}: {why}\n{self.tail()}")
                self._news.wait(left_s)

    def tail(self, count: int = 60) -> str:
        """The last lines, for a person."""
        return "\n".join(self.lines[-count:])

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for raw in lines:
                with self._news:
                    self.lines.append(raw.decode("utf-8", "replace").rstrip("\n"))
                    self._news.notify_all()
        self._notify.close()
        with self._news:
            self._closed = True
            self._news.notify_all()


def until(true: Callable[[], object], what: str, *, timeout_s: float = 20.0) -> None:
    """Look every 20 ms until `true()` is; for what gives no event. Raises `AssertionError` saying `what` is missing."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() >= deadline:
            raise AssertionError(f"within {timeout_s:g} s not reached: {what}")
        time.sleep(0.02)


def wait_gone(pid: int, timeout_s: float = 20.0) -> None:
    """Wait until a process, of whatever parent, has ended (a zombie has). Raises `AssertionError`."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([fd], [], [], timeout_s)[0]:
            raise AssertionError(f"process {pid} ({command_of(pid)}) goes on after {timeout_s:g} s")
    finally:
        os.close(fd)


def alive(pid: int) -> bool:
    """Whether there is such a process and it is no zombie."""
    state = _stat(pid)
    return state is not None and state[0] != "Z"


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until it has taken effect: a signal sent meanwhile could be faster."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: (_stat(pid) or ("", 0))[0] == "T", f"process {pid} stands still")


def command_of(pid: int) -> str:
    """A process's command line, words divided by spaces; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with; empty when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(part.split("=", 1) for part in raw.split("\0") if "=" in part)


def all_pids() -> Iterator[int]:
    """Every process there is."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            yield int(name)


def related(mark: str, *paths: Path) -> set[int]:
    """Processes that carry `mark` or work below one of `paths`, and their descendants; never this one."""
    words = [str(path) for path in paths]
    found = {
        pid
        for pid in all_pids()
        if environment_of(pid).get(MARK) == mark or any(word in command_of(pid) for word in words)
    }
    found.discard(os.getpid())
    parents = {pid: state[1] for pid in all_pids() if (state := _stat(pid)) is not None}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        if not more:
            return found
        found |= more


def end_all(mark: str, *paths: Path) -> None:
    """Kill whatever is `related`, frozen or not, and wait for its end."""
    for _ in range(3):  # a process may have been forked while we looked
        pids = {pid for pid in related(mark, *paths) if alive(pid)}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            wait_gone(pid)
        if not pids:
            return


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process."""
    try:
        rest = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return rest[0], int(rest[1])
