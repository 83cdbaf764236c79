"""Reaching the shepherd of a state directory: connect to the one that runs, else start one and connect to it.

Blocking, for native threads. The shepherd is started in a session of its own with a small environment and no open
descriptors, so that neither a Ctrl-C nor the end of the agent touches it.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.shepherd_door import address
from common import log
from common.version import VERSION

logger = logging.getLogger(__name__)

# -P: nothing is ever loaded from the directory that the agent happens to be in.
COMMAND: Final = (sys.executable, "-P", "-s", "-m", "muster", "shepherd")
LOG_FILE: Final = "shepherd.log"
_LOG_MOST: Final = 1024 * 1024
_REACH_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 0.05
_RETRY_MOST_S: Final = 2.0  # each look at a shepherd that cannot be reached starts a process
_ALREADY_RUNNING: Final = 3
_HANDED_ON: Final = ("PATH", "MUSTER_FAULTS", "MUSTER_FAULTS_ONCE")


class ShepherdUnavailable(Exception):
    """The shepherd could not be reached or started; the text says why."""


class Connection:
    """A connected socket that carries one JSON object a line."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._received = b""
        self._unread: list[dict[str, Any]] = []

    def unread(self) -> list[dict[str, Any]]:
        """The messages that came along behind the last answer; `receive` does not give them again."""
        unread, self._unread = self._unread, []
        return unread

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that arrive next, waiting for them; None: the shepherd has gone."""
        try:
            raw = self.socket.recv(262144)
        except OSError:
            return None
        if not raw:
            return None
        *lines, self._received = (self._received + raw).split(b"\n")
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return None  # not our protocol: as good as gone

    def ask(self, op: str, answer: str, **more: object) -> dict[str, Any]:
        """Send a request and wait for the event `answer`; others before it are passed over, as a list covers them.

        Only for a connection nobody else reads. Raises ShepherdUnavailable.
        """
        self.socket.settimeout(_ANSWER_TIMEOUT_S)
        try:
            self.socket.sendall(json.dumps({"op": op, **more}).encode() + b"\n")
            while (events := self.receive()) is not None:
                for number, event in enumerate(events):
                    if event.get("event") in (answer, "busy", "error"):
                        self._unread = events[number + 1 :]
                        return event
        except (OSError, ValueError) as error:
            raise ShepherdUnavailable(f"The shepherd did not answer to {op}: {error}.") from error
        finally:
            self.socket.settimeout(None)
        raise ShepherdUnavailable(f"The shepherd went away, or was silent, when asked to {op}.")

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Reached:
    """A shepherd that has said hello; `started_pid` if it is a child of this process."""

    connection: Connection
    pid: int
    version: str
    started_pid: int | None


def reach(state_dir: Path, *, idle_exit_s: float, command: Sequence[str] = COMMAND) -> Reached:
    """Connect to the directory's shepherd, starting it if there is none. Raises ShepherdUnavailable."""
    deadline = time.monotonic() + _REACH_TIMEOUT_S
    started_pid: int | None = None
    delay_s = _RETRY_S
    while True:
        try:
            return _greet(connect(state_dir), started_pid)
        except (OSError, ShepherdUnavailable) as error:
            # It may be just starting, or just ending: then the lock tells, and its successor is ours to start.
            if time.monotonic() > deadline:
                raise ShepherdUnavailable(f"The shepherd cannot be reached: {error}") from error
        started_pid = launch(state_dir, idle_exit_s=idle_exit_s, command=command)
        if started_pid is None:
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MOST_S)


def _greet(connection: Connection, started_pid: int | None) -> Reached:
    try:
        hello = connection.ask("hello", "hello", protocol=1, version=VERSION, pid=os.getpid())
        return Reached(connection, int(hello["pid"]), str(hello["version"]), started_pid)
    except KeyError as error:
        connection.close()
        raise ShepherdUnavailable(f"The shepherd's hello lacks {error}.") from error
    except ShepherdUnavailable:
        connection.close()
        raise


def connect(state_dir: Path) -> Connection:
    """Connect to a shepherd that listens. Raises OSError."""
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(_ANSWER_TIMEOUT_S)
        connected.connect(address(directory))
        connected.settimeout(None)
        return Connection(connected)
    except OSError:
        connected.close()
        raise
    finally:
        os.close(directory)


def launch(state_dir: Path, *, idle_exit_s: float, command: Sequence[str] = COMMAND) -> int | None:
    """Start a shepherd and wait until it listens; its pid, or None if another one has the directory.

    Raises ShepherdUnavailable.
    """
    log_path = state_dir / LOG_FILE
    reader, writer = os.pipe()
    try:
        too_long = log_path.exists() and log_path.stat().st_size > _LOG_MOST
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if too_long else 0)
        pid = os.posix_spawn(
            command[0],
            [*command, "--state", str(state_dir), "--idle-exit", f"{idle_exit_s:g}"],
            _environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_OPEN, 2, str(log_path), flags, 0o600),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=tuple(signal.valid_signals()),
        )
    except OSError as error:
        os.close(reader)
        raise ShepherdUnavailable(f"The shepherd could not be started: {error}.") from error
    finally:
        os.close(writer)
    logger.info("shepherd started", extra=log.fields(pid=pid))
    try:
        return _until_ready(pid, reader, log_path)
    finally:
        os.close(reader)


def _until_ready(pid: int, reader: int, log_path: Path) -> int | None:
    readable, _, _ = select.select([reader], [], [], _REACH_TIMEOUT_S)
    if readable and os.read(reader, 64):
        return pid
    if not readable:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == _ALREADY_RUNNING:
        return None
    raise ShepherdUnavailable(f"The shepherd ended while it started; {log_path} says why.")


def _environment() -> dict[str, str]:
    """What the shepherd gets of ours: scripts get nothing of it, and no secret of the agent goes along."""
    root = Path(__file__).resolve().parent.parent
    if root.name == "_app":
        root = root.parent.parent  # installed: the folder with the package `muster` in it
    kept = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "PYTHONPATH": str(root)}
