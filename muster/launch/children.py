"""One daemon as a child process: started without our descriptors, in a session of its own, never outliving us.

Standard library only. A `Child` is what the supervisor knows of a daemon over all its restarts; it waits for nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from common.backoff import Backoff
from muster.words import Phrase

_PR_SET_PDEATHSIG: Final = 1
_PR_GET_CHILD_SUBREAPER: Final = 37
# Loaded here: nothing may be imported or allocated at ease between fork and exec.
_libc: Final = ctypes.CDLL(None, use_errno=True)
_PIPE_BYTES: Final = 512 * 1024
BAD_CONFIGURATION: Final = 2


class Phase(StrEnum):
    """Where a child is."""

    WAITING = "waiting"  # its turn has not come
    STARTING = "starting"
    READY = "ready"
    PAUSING = "pausing"  # died; will be started again at `due_at`
    STOPPING = "stopping"
    STOPPED = "stopped"
    REFUSED = "refused"  # exit 2: starting it again would change nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A daemon to run. Those of a lower `stage` are ready before the next stage starts, and stop after it.

    `probe_url`: counts as ready only when this answers 200 as well. `stop_s`: how long after TERM it may take to end;
    `hurry_s` the same after a second TERM. `needed`: the others are of no use without it.
    """

    role: str
    argv: tuple[str, ...]
    stage: int
    environ: Mapping[str, str]
    stop_s: float
    hurry_s: float
    needed: bool = True
    probe_url: str | None = None


class Child:
    """A program and its present process. Times are monotonic seconds."""

    def __init__(self, program: Program, *, backoff: Backoff) -> None:
        self.program = program
        self.backoff = backoff
        self.phase = Phase.WAITING
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.due_at = 0.0  # of the next start while pausing; of the KILL while stopping
        self.again_at = float("inf")  # of a second TERM while stopping
        self.was_ready = False  # some process of this child has been ready
        self.last_line = ""

    @property
    def role(self) -> str:
        """What its lines are marked with."""
        return self.program.role

    @property
    def pid(self) -> int | None:
        """The process id while there is a process."""
        return self.process.pid if self.process is not None else None

    @property
    def alive(self) -> bool:
        """Whether there is a process that has not been seen to end."""
        return self.process is not None

    def start(self, now: float, more_environ: Mapping[str, str]) -> int:
        """Start the process; answers the descriptor its output is read from. Raises `OSError`.

        Must be called in the main thread: the death signal follows the thread that forked.
        """
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            self.process = subprocess.Popen(
                self.program.argv,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env={**self.program.environ, **more_environ},
                start_new_session=True,  # Ctrl-C is for us alone; we stop the children in order
                preexec_fn=_die_with(os.getpid()),
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        with contextlib.suppress(OSError):  # a bound of the system's for this user; the usual size works too
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.phase = Phase.STARTING
        self.started_at = now
        return reading

    def poll(self) -> int | None:
        """The exit code if the process has ended since the last call (negative: the signal), else None."""
        if self.process is None:
            return None
        code = self.process.poll()
        if code is not None:
            self.process = None
        return code

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal; nothing happens when it has ended."""
        if self.process is not None:
            self.process.send_signal(number)


def _die_with(parent: int) -> Callable[[], None]:
    """For the child, between fork and exec: be killed when the parent dies, also if it has died already."""

    def ask() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def adopts_orphans() -> bool:
    """Whether processes that lose their parent become children of this one: process 1, or a child subreaper."""
    flag = ctypes.c_int(0)
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return os.getpid() == 1 or bool(flag.value)


def bury_orphans(own: Collection[int]) -> None:
    """Take leave of all adopted processes that have ended; the exit codes of `own` stay for their owner.

    Stops at one of `own` that has just ended: its SIGCHLD leads here again once its owner has polled it.
    """
    with contextlib.suppress(ChildProcessError):  # no child at all
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)


def death(code: int) -> Phrase | str:
    """An exit code of `Popen` in words: `exit code 3`, `SIGKILL`."""
    if code >= 0:
        return Phrase("exit code %(code)s", code=code)
    try:
        return signal.Signals(-code).name
    except ValueError:
        return Phrase("signal %(number)s", number=-code)


def own_command() -> tuple[str, ...]:
    """The words that start this very program again, whatever the working directory.

    Interpreter and launcher by their full paths; `-P` keeps the launcher's own folder off the module path.
    """
    import muster

    launcher = Path(muster.__file__).with_name("__main__.py").absolute()
    return (sys.executable, "-P", str(launcher))
