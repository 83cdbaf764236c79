"""What the agent asks the shepherd to run, and how it ended: two frozen records and their form on the wire.

Standard library only. The shepherd itself never imports this module (it would double its size): it reads and writes
the plain maps of `spec_message` and `ExitRecord.to_wire`, whose keys are the field names below.
Times: `*_at_ms` are wall milliseconds for people, `*_s` seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

# Why an attempt ended; the words of `common.model.Outcome` that an agent may use.
OUTCOMES: Final = frozenset(
    {"exit", "signal", "timeout", "spawn_error", "interrupted", "rebooted", "output_limit", "refused"}
)
# Why the agent may have an attempt ended. `stop`: the agent itself is being stopped, the outcome is `interrupted`;
# `timeout` is the shepherd's own and gives the outcome of that name; the others leave exit or signal as it was.
KILL_REASONS: Final = frozenset({"cancel", "stop_rule", "lost", "stale", "drain", "stop", "timeout"})

AttemptKey = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpec:
    """One attempt of a run as its claim describes it. `repr` hides the script and the environment."""

    run_id: str  # a UUID; part of a path, so it is checked wherever it arrives
    attempt: int  # 1, 2, …
    lease: str  # the token under which the result is delivered; opaque here
    task_id: str | None
    script: bytes = field(repr=False)
    interpreter: tuple[str, ...] | None = None  # None: from the shebang, else /bin/sh
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None  # None: the home directory of the agent's user
    timeout_s: float = 3600.0  # 0: none
    output_limit: int = 16 * 1024 * 1024  # bytes kept in the spool, head and tail half each
    leftovers: str = "report"  # or "kill": processes still there when the main process has ended
    fence: int = 0  # the commit sequence of its begin, known only after the barrier

    @property
    def key(self) -> AttemptKey:
        """What names this attempt everywhere: (run id, number)."""
        return (self.run_id, self.attempt)


def spec_message(spec: AttemptSpec, *, interpreter: tuple[str, ...], limits: Mapping[str, float]) -> dict[str, Any]:
    """The spec as the shepherd's `start` takes it: without the script's bytes, with the interpreter decided.

    `limits` are the agent's own settings: `kill_grace_s`, `drain_quiet_s`, `drain_most_s`.
    """
    return {
        "run_id": spec.run_id,
        "attempt": spec.attempt,
        "lease": spec.lease,
        "task_id": spec.task_id,
        "fence": spec.fence,
        "interpreter": interpreter,
        "args": spec.args,
        "env": spec.env,
        "cwd": spec.cwd,
        "timeout_s": spec.timeout_s,
        "output_limit": spec.output_limit,
        "leftovers": spec.leftovers,
        **limits,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A process that was still there when its attempt had ended."""

    pid: int
    command: str  # its command line, at most 200 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class KillStep:
    """One step of the kill ladder: when, which signal, how many processes got it."""

    at_ms: int
    signal: str  # "SIGTERM", "SIGKILL"
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How an attempt ended. Written by the shepherd, or by the executor for one that never reached the shepherd."""

    run_id: str
    attempt: int
    lease: str
    outcome: str  # one of OUTCOMES
    exit_code: int | None = None  # of the main process, if it exited; kept also when we killed it
    signal: str | None = None  # "SIGKILL", if the main process died by one
    killed_by_us: str | None = None  # one of KILL_REASONS if a signal of ours was sent before the end
    pid: int | None = None  # of the main process; None: nothing was started
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    duration_s: float | None = None  # None if unknown: the shepherd that started it is gone
    output_bytes: int = 0  # bytes written by the script = the final offset
    gaps: tuple[tuple[int, int], ...] = ()  # (offset, length) no longer in the spool and never acknowledged
    leftovers: tuple[Leftover, ...] = ()
    detail: str | None = None  # a sentence for a person, where the outcome alone does not tell
    steps: tuple[KillStep, ...] = ()

    @property
    def key(self) -> AttemptKey:
        """What names this attempt everywhere: (run id, number)."""
        return (self.run_id, self.attempt)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> ExitRecord:
        """The record of a plain map. Unknown keys are left out, so that a newer shepherd can be read.

        Raises ValueError for a map that is no exit record.
        """
        known = {name: wire[name] for name in _RECORD_FIELDS if name in wire}
        try:
            known["gaps"] = tuple((int(offset), int(length)) for offset, length in wire.get("gaps") or ())
            known["leftovers"] = tuple(
                Leftover(pid=int(left["pid"]), command=str(left["command"])) for left in wire.get("leftovers") or ()
            )
            known["steps"] = tuple(
                KillStep(at_ms=int(step["at_ms"]), signal=str(step["signal"]), processes=int(step["processes"]))
                for step in wire.get("steps") or ()
            )
            record = cls(**known)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"not an exit record: {error}") from error
        if record.outcome not in OUTCOMES:
            raise ValueError(f"not an exit record: unknown outcome {record.outcome!r}")
        return record

    def to_wire(self) -> dict[str, Any]:
        """The record as a plain map, ready for JSON."""
        wire: dict[str, Any] = {name: getattr(self, name) for name in _RECORD_FIELDS}
        wire["leftovers"] = [{"pid": left.pid, "command": left.command} for left in self.leftovers]
        wire["steps"] = [
            {"at_ms": step.at_ms, "signal": step.signal, "processes": step.processes} for step in self.steps
        ]
        return wire


_RECORD_FIELDS: Final = tuple(one.name for one in fields(ExitRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """An attempt the shepherd has under way, as its `list` tells it."""

    run_id: str
    attempt: int
    lease: str
    pid: int | None
    started_at_ms: int | None
    output_limit: int
    output_end: int  # bytes of output so far

    @property
    def key(self) -> AttemptKey:
        """What names this attempt everywhere: (run id, number)."""
        return (self.run_id, self.attempt)
