"""What the REST API answers, as frozen records for Python programs. Standard library only.

Times are aware `datetime`s in UTC, durations seconds. Every record keeps the answer it was read from in `raw`, so a
field of a newer server is never out of reach; fields that this version does not know are otherwise left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, TypeVar

from muster.words import _

TASK_FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled"})
RUN_FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled", "skipped", "expired"})


class BadAnswer(ValueError):
    """The server's answer is not what such an answer must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of all answers; `raw` is the JSON object as it came."""

    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason(Record):
    """Why a task stopped or was cancelled: `code` is `fail_count`, `fail_rate` or `cancelled`."""

    code: str
    detail: str = ""
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Record):
    """A submitted task: its state, what its runs add up to, and the request without script and secrets."""

    id: str
    name: str
    state: str
    paused: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    reason: Reason | None = None
    waiting_because: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    submitted_by: str | None = None
    script_sha256: str | None = None
    interpreter: list[str] | None = None
    args: list[str] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    timeout: float | None = None
    parallel: int = 0
    fail_count: int = -1
    fail_rate: float | None = None
    on_stop: str = "finish"
    targets: list[str] | None = None
    count: int | None = None
    queue: str = "default"
    priority: int = 1024
    expires: float | None = None
    lost_after: float | None = None
    output_limit: int | None = None

    @property
    def final(self) -> bool:
        """Whether nothing of this task will run any more (unless a person retries it)."""
        return self.state in TASK_FINAL_STATES

    @property
    def ended(self) -> int:
        """How many of its runs are final."""
        return sum(number for state, number in self.counts.items() if state in RUN_FINAL_STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentName(Record):
    """Which agent a run is on."""

    id: str
    name: str
    hostname: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Record):
    """A task on one agent: where it is (`state`) and, once an attempt has ended, why it ended (`outcome`)."""

    id: str
    task_id: str | None
    state: str
    agent: AgentName | None = None
    outcome: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    killed_by_us: bool = False
    attempt: int = 1
    silent_since: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration: float | None = None
    output_bytes: int = 0
    output_gaps: list[list[int]] = field(default_factory=list)
    leftovers: list[Mapping[str, Any]] = field(default_factory=list)
    detail: str | None = None
    waiting_because: str | None = None

    @property
    def final(self) -> bool:
        """Whether this run has ended for good."""
        return self.state in RUN_FINAL_STATES

    @property
    def where(self) -> str:
        """The agent's name, or `?` while nobody has the run."""
        return self.agent.name if self.agent else "?"

    @property
    def ending(self) -> str:
        """The end in a few words, such as `exit 3`, `signal SIGKILL` or `timeout`; the state before the end."""
        if self.outcome == "exit" and self.exit_code is not None:
            return f"exit {self.exit_code}"
        if self.outcome == "signal" and self.signal:
            return f"signal {self.signal}"
        return self.outcome or self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Record):
    """One try of a run. `late`: told after the run had gone on without it, so it changed nothing."""

    attempt: int
    state: str | None = None
    late: bool = False
    agent: AgentName | None = None
    outcome: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration: float | None = None
    output_bytes: int = 0
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Record):
    """Runs of a task that ended in the same way with the same output; `names` holds at most 100 of their agents."""

    state: str
    count: int
    outcome: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    output_sha256: str | None = None
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent(Record):
    """A host's agent as the master knows it."""

    id: str
    name: str
    hostname: str = ""
    state: str = "offline"
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 1
    held: int = 0
    last_seen_at: datetime | None = None
    enrolled_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Record):
    """An agent a task would run on, and whether it may start there now (`verdict`)."""

    agent: str | None = None
    name: str | None = None
    state: str | None = None
    verdict: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Record):
    """What submitting a request would do: nothing was stored."""

    targets: list[Target]
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentToken(Record):
    """A permission for one new host to enrol; `line` is what to paste there."""

    token: str
    line: str = ""
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginLink(Record):
    """An address at which a browser can log in, once."""

    url: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Record):
    """An API token, or the session of a browser (`kind` is `api` or `session`). `token`: the secret, of a new one."""

    id: str
    name: str
    kind: str = "api"
    role: str = "admin"
    created_at: datetime | None = None
    last_used_at: datetime | None = None
    expires_at: datetime | None = None
    about: str = ""
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Record):
    """Why a run is where it is: the sentences of the code that dispatches."""

    run: Run
    verdicts: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(Record):
    """What a check of the store's invariants found: nothing in `findings` means all hold."""

    findings: list[str] = field(default_factory=list)
    checked: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Record):
    """A stretch of a run's output. `offset` is where it was asked for, `next_offset` where to go on.

    `size` is what is known of the whole attempt so far, `gaps` the stretches that were not kept, as (offset, length).
    """

    data: bytes
    offset: int
    next_offset: int
    size: int
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Record):
    """A server-sent event: `kind` is `task`, `run`, `output` or `reset` (what came before may have been missed).

    `raw` holds the object; `data` the bytes of an output event, which begin at `offset` of the attempt.
    """

    kind: str
    id: str | None = None
    task: Task | None = None
    run: Run | None = None
    run_id: str | None = None
    attempt: int = 1
    stream: str = "stdout"
    offset: int = 0
    data: bytes = b""


R = TypeVar("R", bound=Record)

_NESTED: Final[Mapping[str, type[Record]]] = {"reason": Reason, "agent": AgentName, "run": Run}


def read(kind: type[R], raw: Mapping[str, Any]) -> R:
    """A record of `kind` from an answer; raises `BadAnswer` when it lacks what such a record must have."""
    values: dict[str, Any] = {}
    for known in fields(kind):
        if known.name in raw and known.name != "raw":
            values[known.name] = _value(known.name, raw[known.name])
    try:
        return kind(raw=raw, **values)
    except TypeError as error:
        said = _("the server's answer is no %(kind)s: %(why)s", kind=kind.__name__, why=error)
        raise BadAnswer(said) from error


def _value(name: str, value: Any) -> Any:
    if isinstance(value, Mapping) and name in _NESTED:
        return read(_NESTED[name], value)
    if isinstance(value, str) and (name.endswith("_at") or name == "silent_since"):
        return moment(value)
    return value


def moment(text: str) -> datetime:
    """A point in time from RFC 3339 text. Raises `BadAnswer`."""
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise BadAnswer(_("the server's answer holds no time: %(text)r", text=text[:60])) from error
