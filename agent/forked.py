"""One attempt inside the shepherd: from the fork to the exit record.

It ends when its main process has ended and the pipes are empty: at once if nobody holds them and nobody is left over,
else after a short drain, whoever still holds them. While it is being killed it ends when no process of it is left.
Standard library only, and small: the shepherd imports it.
"""

from __future__ import annotations

import json
import os
import time

from agent.collector import Collector
from agent.event_loop import NEVER
from agent.ladder import KillLadder, split_status
from agent.processes import command_of, family
from agent.spawn import SpawnError, environment, spawn
from agent.spool import SpoolWriter, survey
from common.descriptors import limited

TYPE_CHECKING = False  # the module typing is left out of the shepherd
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from agent.attempt_files import AttemptFiles
    from agent.collector import Watcher
    from agent.processes import Process, ProcessTable

    class Yard(Watcher, Protocol):
        """What an attempt needs of the shepherd around it."""

        boot_id: str
        base_environment: dict[str, str]
        null_fd: int
        home_fd: int
        open_files: int  # the soft limit of open files that scripts get
        fault: Callable[[str], None]  # passes a named fault point (common/faults.py); costs a call

        def look(self, *, fresh: bool = False) -> ProcessTable:
            """The process table of this round of the loop, or of this moment."""

        def strays(self, attempt: ForkedAttempt) -> list[Process]:
            """Living processes whose parents have gone and that belong to the attempt, without its main process."""

        def progressed(self, attempt: ForkedAttempt) -> None:
            """More output can be read."""

        def ended(self, attempt: ForkedAttempt, held_pipes: list[int]) -> None:
            """The attempt is over, its record complete."""


# Killed for these reasons an attempt counts as interrupted; the script itself did not fail.
_INTERRUPTING = {
    "stop": "The agent was stopped while the script ran.",
    "drain": "The agent was stopped and the script did not end in time.",
}
_NAMED_MOST = 100  # leftovers in a record
INTERRUPTED = "The shepherd that ran this script was ended from outside, so its result is not known."
REBOOTED = "The host was restarted while the script ran, so its result is not known."


def wall_ms() -> int:
    """Milliseconds since 1970, for people."""
    return time.time_ns() // 1_000_000


class ForkedAttempt:
    """An attempt that was started, or found as the remains of a former shepherd's."""

    def __init__(self, spec: Mapping[str, Any], files: AttemptFiles, yard: Yard) -> None:
        self.spec = spec
        self.files = files
        self.key = files.key
        self.pid: int | None = None
        self.started_at_ms: int | None = None
        self.began_boottime_s = 0.0
        self.record: dict[str, Any] | None = None  # once it has ended
        self._yard = yard
        self._collector: Collector | None = None
        self._ladder: KillLadder | None = None
        self._ladder_done = False
        self._killed_by: str | None = None
        self._main_runs = False
        self._status: int | None = None
        self._began_at = 0.0
        self._main_ended_at = 0.0
        self._main_ended_at_ms = 0
        self._timeout_at = NEVER
        self._drain_at = NEVER
        self._remains = False  # of a former shepherd's
        self._leftovers: list[dict[str, Any]] | None = None  # those that were there before we ended them

    # --- beginning ---

    def start(self, now: float) -> None:
        """Note the start on disk, then fork. Whatever goes wrong with the fork is the attempt's end (`spawn_error`).

        Raises FileExistsError if it was started before, OSError if that cannot be noted; then nothing ran.
        """
        self._began_at = now
        self.started_at_ms = wall_ms()
        self.began_boottime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        note = self.files.claim(json.dumps(self._identity()).encode() + b"\n")
        try:
            self._yard.fault("shepherd-before-fork")
            self._fork(now)
            self._yard.fault("shepherd-after-fork")
            os.write(note, json.dumps({"pid": self.pid, "began_boottime_s": self.began_boottime_s}).encode() + b"\n")
        except SpawnError as error:
            self._end(now, outcome="spawn_error", detail=str(error))
        except OSError:
            pass  # the second line is for the search for remains only, and the mark finds them without it
        finally:
            os.close(note)

    def _identity(self) -> dict[str, Any]:
        names = ("run_id", "attempt", "lease", "task_id", "fence", "output_limit", "kill_grace_s")
        identity = {name: self.spec[name] for name in names}
        return {**identity, "boot_id": self._yard.boot_id, "started_at_ms": self.started_at_ms}

    def _fork(self, now: float) -> None:
        spool = SpoolWriter(self.files.path, self.spec["output_limit"])
        collector = Collector(spool, self._yard, on_progress=lambda: self._yard.progressed(self))
        try:
            out, err = collector.open(self._advance)
        except OSError as error:
            raise SpawnError(f"No pipes could be made for the script's output: {error.strerror}.") from error
        self._collector = collector
        try:
            with limited(self._yard.open_files):
                self.pid = spawn(
                    [*self.spec["interpreter"], self.files.script, *self.spec["args"]],
                    env=environment(self._yard.base_environment, self.spec),
                    cwd=self.spec["cwd"],
                    stdio=(self._yard.null_fd, out, err),
                    home_fd=self._yard.home_fd,
                )
        finally:
            os.close(out)
            os.close(err)
        self._main_runs = True
        if self.spec["timeout_s"] > 0:
            self._timeout_at = now + self.spec["timeout_s"]

    @classmethod
    def of_remains(
        cls, started: tuple[Mapping[str, Any], Mapping[str, Any]], files: AttemptFiles, yard: Yard, now: float
    ) -> ForkedAttempt:
        """An attempt without an exit record that no shepherd runs: what is left of it is ended, then it is over."""
        identity, main = started
        spec = {"lease": "", "kill_grace_s": 10.0, "output_limit": 0, **identity}
        attempt = cls(spec, files, yard)
        attempt._remains = True
        attempt._began_at = attempt._main_ended_at = now
        attempt.started_at_ms = identity.get("started_at_ms")
        if identity.get("boot_id", yard.boot_id) != yard.boot_id:
            attempt._end(now, outcome="rebooted", detail=REBOOTED)
            return attempt
        attempt.pid = main.get("pid")
        attempt.began_boottime_s = main.get("began_boottime_s", 0.0)
        attempt._raise_ladder(now, spec["kill_grace_s"])
        return attempt

    # --- what happens to it ---

    @property
    def main_runs(self) -> bool:
        """Whether its main process is there and has not been waited for."""
        return self._main_runs

    @property
    def output_end(self) -> int:
        """Bytes of output in the spool so far, gaps included."""
        return self._collector.spool.offset if self._collector is not None else 0

    def describe(self) -> dict[str, Any]:
        """What the agent is told of an attempt that runs (`agent.attempt.RunningAttempt`)."""
        return {
            "run_id": self.key[0],
            "attempt": self.key[1],
            "lease": self.spec["lease"],
            "pid": self.pid,
            "started_at_ms": self.started_at_ms,
            "output_limit": self.spec["output_limit"],
            "output_end": self.output_end,
        }

    def acknowledge(self, offset: int) -> None:
        """The reader needs no output below `offset` any more."""
        if self._collector is not None:
            self._collector.spool.acknowledge(offset)

    def main_ended(self, status: int, now: float) -> None:
        """Its main process was waited for, with this status."""
        self._main_runs = False
        self._status = status
        self._main_ended_at = now
        self._main_ended_at_ms = wall_ms()
        self._timeout_at = NEVER
        if self._collector is not None:
            self._collector.drain(now)
        self._advance(now)

    def stray_ended(self, now: float) -> None:
        """A process that may have been one of its own has ended."""
        if not self._main_runs:
            self._advance(now)

    def kill(self, why: str, grace_s: float | None, now: float) -> None:
        """End it: TERM, grace, KILL. The first reason stays; a second call can only shorten the grace."""
        grace_s = self.spec["kill_grace_s"] if grace_s is None else grace_s
        if self._main_runs and self._killed_by is None:
            self._killed_by = why
        if self._ladder is None:
            self._raise_ladder(now, grace_s)
        else:
            self._ladder.hasten(now, grace_s)
        self._advance(now)

    @property
    def wake_at(self) -> float:
        """When `wake` wants to be called."""
        at = min(self._timeout_at, self._drain_at)
        if self._collector is not None:
            at = min(at, self._collector.wake_at)
        if self._ladder is not None and not self._ladder_done:
            at = min(at, self._ladder.wake_at)
        return at

    def wake(self, now: float) -> None:
        """Do what is due at `now`."""
        if self._collector is not None:
            self._collector.wake(now)
        if self._timeout_at <= now:
            self._timeout_at = NEVER
            self.kill("timeout", None, now)
        else:
            self._advance(now)

    # --- ending ---

    def _raise_ladder(self, now: float, grace_s: float) -> None:
        self._ladder = KillLadder(self._members, grace_s=grace_s, now=now)
        self._ladder_done = False
        self._timeout_at = NEVER

    def _advance(self, now: float) -> None:
        """Something has happened or is due: go as far towards the end as possible."""
        if self.record is not None:
            return
        if self._ladder is not None and not self._ladder_done:
            if self._main_runs and now < self._ladder.wake_at:
                return
            if not self._ladder.step(now, wall_ms()):
                return
            self._ladder_done = True
        if self._main_runs:
            return
        if self._remains:
            self._end(now, outcome="interrupted", detail=INTERRUPTED)
        else:
            self._drain(now)

    def _drain(self, now: float) -> None:
        collector = self._collector
        assert collector is not None
        strays = self._yard.strays(self)
        if collector.open_pipes or strays:
            quiet_from = max(collector.last_output_at, self._main_ended_at)
            self._drain_at = min(
                quiet_from + self.spec["drain_quiet_s"], self._main_ended_at + self.spec["drain_most_s"]
            )
            if now < self._drain_at:
                return
        if strays and self.spec["leftovers"] == "kill" and self._ladder is None:
            self._drain_at = NEVER
            self._raise_ladder(now, self.spec["kill_grace_s"])
            self._leftovers = describe(family(strays))
            self._advance(now)
            return
        self._finish(now, strays)

    def _finish(self, now: float, strays: list[Process]) -> None:
        assert self._status is not None
        if self._ladder is None or self.pid not in self._ladder.reached:
            self._killed_by = None  # it ended by itself before any signal came to it
        code, name = split_status(self._status)
        outcome = "signal" if name else "exit"
        detail = None
        if self._killed_by == "timeout":
            outcome = "timeout"
            detail = f"The script ran longer than its timeout of {self.spec['timeout_s']:g} s."
        elif self._killed_by in _INTERRUPTING:
            outcome = "interrupted"
            detail = _INTERRUPTING[self._killed_by]
        self._end(now, outcome=outcome, exit_code=code, signal=name, detail=detail, strays=strays)

    def _members(self, fresh: bool) -> list[Process]:
        """The attempt's living processes, parents first."""
        if self._main_runs or self._remains:
            found = self._members_in(self._yard.look(fresh=fresh or self._remains))
            if found:
                return found
        # Without its main process all of them descend from strays, and those are quickly found. Also when it is a
        # zombie that will be waited for in a moment.
        return family(self._yard.strays(self))

    def _members_in(self, table: ProcessTable) -> list[Process]:
        session = self.pid
        if session is not None and not self._main_runs:
            leader = table.get(session)
            # The number of a process that was waited for may be another's by now, but not while its session lives.
            if leader is not None and abs(leader.started_s - self.began_boottime_s) > 1.0:
                session = None
        roots = [one.pid for one in self._yard.strays(self)]
        if self._main_runs and self.pid is not None:
            roots.insert(0, self.pid)
        return table.members(self.key, roots=roots, session=session)

    def _end(
        self,
        now: float,
        *,
        outcome: str,
        exit_code: int | None = None,
        signal: str | None = None,
        detail: str | None = None,
        strays: list[Process] | None = None,
    ) -> None:
        leftovers = describe(family(strays or [])) if self._leftovers is None else self._leftovers
        held: list[int] = []
        output_bytes, gaps = 0, []
        if self._collector is not None:
            held = self._collector.close()
            spool = self._collector.spool
            output_bytes, gaps = spool.offset, spool.gaps
            detail = _joined(detail, _spool_trouble(spool))
        elif self._remains:
            output_bytes, gaps = survey(self.files.path)
        steps = self._ladder.steps if self._ladder is not None else []
        if self._ladder is not None and self._ladder.survivors:
            detail = _joined(detail, "Some of its processes could not be ended.")
            leftovers = describe(self._ladder.survivors)
        self._timeout_at = self._drain_at = NEVER
        self.record = {
            "run_id": self.key[0],
            "attempt": self.key[1],
            "lease": self.spec["lease"],
            "outcome": outcome,
            "exit_code": exit_code,
            "signal": signal,
            "killed_by_us": self._killed_by,
            "pid": self.pid,
            "started_at_ms": self.started_at_ms,
            "ended_at_ms": self._main_ended_at_ms or wall_ms(),
            "duration_s": None if self._remains else round(self._ended_at(now) - self._began_at, 6),
            "output_bytes": output_bytes,
            "gaps": gaps,
            "leftovers": leftovers,
            "detail": detail,
            "steps": steps,
        }
        self._yard.ended(self, held)

    def _ended_at(self, now: float) -> float:
        # The drain is ours, not the script's: its duration ends with its main process.
        return self._main_ended_at if self._status is not None else now


def describe(processes: list[Process]) -> list[dict[str, Any]]:
    """Processes as an exit record names them; of very many the first."""
    return [{"pid": one.pid, "command": command_of(one.pid)} for one in processes[:_NAMED_MOST]]


def _spool_trouble(spool: SpoolWriter) -> str | None:
    if spool.failure is None:
        return None
    return f"{spool.unwritten} bytes of output could not be kept on the agent's disk: {spool.failure}."


def _joined(*sentences: str | None) -> str | None:
    return " ".join(one for one in sentences if one) or None
