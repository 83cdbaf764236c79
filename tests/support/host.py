"""One host in a test: a state directory, a shepherd and an executor over it, all real; waits are for events.

    def test_something(host):
        record = host.run(b"echo hello")
        assert host.output(record) == b"hello\n"

`Host.leave` and `Host.come` let the agent's side go away and come back, `Host.end` removes whatever is left.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.attempt import AttemptKey, AttemptSpec, ExitRecord
from agent.executor import AdoptedAttempt, Executor, ExecutorSettings
from agent.journal import Journal
from agent.shepherd_link import ShepherdLink
from agent.spool_reader import Chunk, Gap
from common.ids import uuid7
from tests.support.processes import all_pids, command_of, environment_of, wait_gone

COMMAND = (sys.executable, "-P", "-s", "-m", "muster", "shepherd")
PATIENCE_S = 30.0
_EVERYTHING = 1 << 62


def spec_of(script: bytes, **changes: Any) -> AttemptSpec:
    """A first attempt of a run of its own."""
    fixed = {"run_id": uuid7(), "attempt": 1, "lease": "lease", "task_id": uuid7(), "script": script}
    return AttemptSpec(**{**fixed, **changes})


class Host:
    """A state directory with an executor over it."""

    def __init__(self, path: Path, *, idle_exit_s: float = 1.0, shepherd_options: Sequence[str] = ()) -> None:
        self.path = path
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.settings = ExecutorSettings(kill_grace_s=1.0)
        self.executor: Executor
        self.link: ShepherdLink
        self.journal: Journal
        self.shepherd_options = tuple(shepherd_options)
        self._idle_exit_s = idle_exit_s
        self._news = threading.Condition()
        self._ends: dict[AttemptKey, int] = {}
        self._limits: dict[AttemptKey, int] = {}
        self._shepherds: set[int] = set()
        self._here = False

    def come(self) -> list[AdoptedAttempt]:
        """The agent's side begins; what it adopted."""
        self.link = ShepherdLink(self.path, idle_exit_s=self._idle_exit_s, command=(*COMMAND, *self.shepherd_options))
        self.journal = Journal(self.path / "journal.log")
        self.executor = Executor(
            self.path,
            slots=8,
            link=self.link,
            journal=self.journal,
            settings=self.settings,
            on_output=self._grown,
        )
        self._here = True
        adopted = self.executor.adopt()
        self._shepherds.add(self.shepherd)
        return adopted

    def leave(self) -> None:
        """The agent's side ends as if it were stopped, what runs goes on."""
        self._here = False
        self.executor.close()
        self.journal.close()

    def end(self) -> None:
        """Everything ends, and nothing of it is left."""
        if self._here:
            for run_id, _ in self.executor.running():
                self.executor.kill(run_id, why="stop", grace_s=0.0)
            self.leave()
        for pid in list(all_pids()):
            if str(self.path) in command_of(pid) or self._marked(pid):
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
                wait_gone(pid)

    def _marked(self, pid: int) -> bool:
        environ = environment_of(pid)
        return any(environ.get("MUSTER_RUN_ID") == run_id for run_id, _ in self._limits)

    @property
    def shepherd(self) -> int:
        """The shepherd's process id."""
        pid = self.link.pid
        assert pid is not None, self.link.status
        return pid

    def submit(self, script: bytes, **changes: Any) -> Running:
        """Start an attempt."""
        spec = spec_of(script, **changes)
        self._limits[spec.key] = spec.output_limit
        running = Running(self, spec, self.executor.submit(spec))
        running.future.add_done_callback(lambda _: self._grown(*spec.key, _EVERYTHING))  # the end says the rest
        return running

    def run(self, script: bytes, **changes: Any) -> ExitRecord:
        """Run an attempt to its end."""
        return self.submit(script, **changes).record()

    def pieces(self, record: ExitRecord) -> list[Chunk | Gap]:
        """All there is of an ended attempt's output."""
        reader = self.executor.output(record.run_id, record.attempt)
        reader.ended(record.output_bytes)
        pieces: list[Chunk | Gap] = []
        end = 0
        while (piece := reader.read_from(end, 65536)) is not None:
            assert piece.offset == end
            pieces.append(piece)
            end = piece.end
        reader.close()
        assert end == record.output_bytes
        return pieces

    def output(self, record: ExitRecord, *, stream: int | None = None) -> bytes:
        """The kept output of an ended attempt, of both streams or of one."""
        found: list[bytes] = []
        for piece in self.pieces(record):
            if isinstance(piece, Chunk):
                at = 0
                for one, length in piece.segments:
                    if stream in (None, one):
                        found.append(piece.data[at : at + length])
                    at += length
        return b"".join(found)

    def wait_output(self, key: AttemptKey, end: int) -> None:
        """Wait until the attempt has written that much and it can be read, or has ended."""
        deadline = time.monotonic() + PATIENCE_S
        with self._news:
            while self._ends.get(key, 0) < end:
                assert self._news.wait(deadline - time.monotonic()), f"no output up to {end} within {PATIENCE_S} s"

    def _grown(self, run_id: str, attempt: int, end: int) -> None:
        with self._news:
            self._ends[run_id, attempt] = max(end, self._ends.get((run_id, attempt), 0))
            self._news.notify_all()


class Running:
    """An attempt under way."""

    def __init__(self, host: Host, spec: AttemptSpec, future: Any) -> None:
        self.host = host
        self.spec = spec
        self.key = spec.key
        self.future = future

    def record(self) -> ExitRecord:
        """Its end."""
        record: ExitRecord = self.future.result(PATIENCE_S)
        return record

    def lines(self, count: int) -> list[str]:
        """Its first `count` lines, waited for."""
        reader = self.host.executor.output(*self.key)
        text = b""
        try:
            while text.count(b"\n") < count:
                piece = reader.read_from(len(text), 65536)
                if isinstance(piece, Chunk):
                    text += piece.data
                else:
                    assert not self.future.done(), f"it ended with {text!r}"
                    self.host.wait_output(self.key, len(text) + 1)
        finally:
            reader.close()
        return text.decode().splitlines()[:count]

    def kill(self, why: str = "cancel", grace_s: float | None = None) -> None:
        """Have it ended."""
        assert self.host.executor.kill(self.spec.run_id, why=why, grace_s=grace_s)


@contextmanager
def host_at(path: Path, **options: Any) -> Iterator[Host]:
    """A host whose agent side is there; nothing of it is left behind."""
    host = Host(path, **options)
    try:
        host.come()
        yield host
    finally:
        host.end()
