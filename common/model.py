"""The records and enumerations that every part agrees on. Frozen: a change is a new record (`evolve`).

Times: `*_at_ms` are wall milliseconds since 1970 UTC, for people only. `*_s` without `at` is a duration in seconds.
`*_engine_s` is a deadline in engine seconds (see `master.clock`); only the master compares those.
Field sentences say who sets the field and what it means to whom.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

import msgspec


class RunKind(StrEnum):
    """What a run carries: a script of a task, or a queue item's body."""

    SCRIPT = "script"
    ITEM = "item"


class RunState(StrEnum):
    """Where a run is. The transitions are in `master.lifecycle` and nowhere else."""

    DELAYED = "delayed"
    READY = "ready"
    LEASED = "leased"
    RUNNING = "running"
    BURIED = "buried"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    EXPIRED = "expired"


FINAL_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED, RunState.EXPIRED})
HELD_STATES = frozenset({RunState.LEASED, RunState.RUNNING})


class Outcome(StrEnum):
    """Why an attempt ended; `None` before the end."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    SPAWN_ERROR = "spawn_error"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    REBOOTED = "rebooted"
    OUTPUT_LIMIT = "output_limit"
    REFUSED = "refused"


class TaskState(StrEnum):
    """What the runs of a task add up to (`master.lifecycle.task_state`)."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TASK_FINAL_STATES = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED})


class AgentState(StrEnum):
    """How the master sees an agent. `conflict`: two daemons use one identity."""

    ONLINE = "online"
    OFFLINE = "offline"
    DRAINING = "draining"
    CONFLICT = "conflict"


class OnStop(StrEnum):
    """What happens to runs under way when the stop rule fires."""

    FINISH = "finish"
    KILL = "kill"


class Role(StrEnum):
    """What a CURVE key or an API token may do."""

    AGENT = "agent"
    WEB = "web"
    ADMIN = "admin"


class TokenKind(StrEnum):
    """What an API token's secret is: a program's, until it is revoked, or a browser's session."""

    API = "api"
    SESSION = "session"


class Stream(StrEnum):
    """Which pipe of a script output came from."""

    STDOUT = "stdout"
    STDERR = "stderr"
    ALL = "all"


STREAM_NUMBERS = {Stream.STDOUT: 1, Stream.STDERR: 2}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records."""


R = TypeVar("R", bound=Record)


def evolve(record: R, **changes: Any) -> R:
    """The same record with `changes`; names that are no fields raise `TypeError`."""
    return msgspec.structs.replace(record, **changes)


class TaskSpec(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent needs to run a task's script, apart from the script's bytes. Stored once, sent as it is."""

    script_sha256: str
    script_size: int
    interpreter: list[str] | None = None  # None: from the shebang, else /bin/sh; decided on the agent
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    timeout_s: float = 3600.0  # 0: none
    output_limit: int = 16 * 1024 * 1024
    lost_after_s: float = 120.0  # 0: wait for the host
    expires_s: float = 86400.0  # 0: never; for people, the deadline itself is in each run
    targets_sha256: str | None = None  # blob: the targets as submitted (msgpack list); for people


Arg = str | int | float
"""A parameter of something told as a code."""


class Reason(Record, frozen=True, kw_only=True):
    """Why a task stopped or was cancelled: `code` is `fail_count`, `fail_rate` or `cancelled`."""

    code: str
    detail: str
    run_id: str | None = None
    args: dict[str, Arg] = {}  # what the sentence in `detail` is about: failed, total, limit, agent, by


class Task(Record, frozen=True, kw_only=True):
    """A submitted task without its spec. Dispatch reads it at every transition of its runs, so it stays small."""

    id: str
    name: str
    seq: int  # order of submission, over all tasks: FIFO within one priority
    state: TaskState
    counts: dict[str, int]  # runs per RunState, zero counts left out; kept in the runs' transactions
    total: int
    priority: int
    parallel: int  # 0: no bound
    fail_count: int  # -1: no bound
    fail_rate: float | None
    on_stop: OnStop
    queue: str
    count: int | None  # None: one run for each target
    lost_after_s: float
    paused: bool = False
    stopped: bool = False  # the stop rule has fired (once)
    cancel_requested: bool = False
    reason: Reason | None = None
    offered: bool = True  # its ready runs are in the offers index (rows removed lazily when not)
    created_at_ms: int = 0
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    submitted_by: str = ""
    version: int = 1


class Leftover(Record, frozen=True, kw_only=True):
    """A process that outlived its script."""

    pid: int
    command: str


class Ending(Record, frozen=True, kw_only=True):
    """How an attempt ended, as its agent tells it (or the master, for `lost`)."""

    outcome: Outcome
    exit_code: int | None = None
    signal: str | None = None  # "SIGKILL"
    killed_by_us: bool = False  # a signal of ours (timeout, cancel, stop rule) was sent before the end
    started_at_ms: int | None = None  # the agent's wall clock
    ended_at_ms: int | None = None
    duration_s: float | None = None  # the agent's monotonic clock
    output_bytes: int = 0  # bytes written by the script = final offset
    output_gaps: list[tuple[int, int]] = []  # (offset, length), in order
    output_sha256: str | None = None  # of the kept bytes in order, for grouping
    leftovers: list[Leftover] = []
    detail: str | None = None  # a sentence for a person, where the outcome alone does not tell
    steps: list[tuple[int, str]] = []  # (wall ms, what was done): the kill ladder


class Course(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What befell an attempt while it ran, for people: when its agent was silent, and who wanted it to end."""

    silences: list[tuple[int, int | None]] = []  # (from, to) wall ms, the newest; stored when over, else no `to`
    cancel_at_ms: int | None = None
    cancel_reason: str | None = None  # that of the run at that time


class Run(Record, frozen=True, kw_only=True):
    """One task on one agent, or one queue item. Moves only through `master.lifecycle.step`."""

    id: str
    task_id: str | None
    kind: RunKind
    state: RunState
    seq: int  # the task's seq: FIFO within one priority
    priority: int
    agent_id: str | None  # the target, or whoever holds or held it; None: whoever pulls
    addressed: bool  # True: only `agent_id` may take it; False: any candidate of the task
    attempt: int = 1  # number of the current or last attempt
    lease: str | None = None  # token; while leased or running
    fence: int | None = None  # commit sequence of the current attempt's begin
    cancel_reason: str | None = None  # `request` or `stop_rule`: asked to end while running
    due_engine_s: float | None = None  # while delayed
    expires_engine_s: float | None = None  # fixed when first ready; None: never
    created_at_ms: int = 0
    claimed_at_ms: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    silent_since_ms: int | None = None
    ending: Ending | None = None
    version: int = 1
    course: Course | None = None  # of the current attempt; None: nothing befell it


class Attempt(Record, frozen=True, kw_only=True):
    """A former attempt, kept for the history; the current one is in its run. `late`: told after the run had gone on."""

    run_id: str
    attempt: int
    agent_id: str | None
    state: RunState
    late: bool
    claimed_at_ms: int | None
    started_at_ms: int | None
    ended_at_ms: int | None
    ending: Ending | None
    course: Course | None = None


class Offer(Record, frozen=True, kw_only=True):
    """An entry of the ready index: this task has something for agents of this scope."""

    scope: str  # `a:AGENT_ID`, `q:QUEUE` or `s:HASH`
    priority: int
    seq: int
    task_id: str


class Agent(Record, frozen=True, kw_only=True):
    """An agent as stored. Liveness, facts of the last minute and held runs are the master's memory."""

    id: str
    name: str
    hostname: str
    enrolled_at_ms: int
    labels: dict[str, str] = {}
    labels_set: dict[str, str] | None = None  # by a person; wins over what the agent announces
    facts: dict[str, Any] = {}
    slots: int = 1
    slots_set: int | None = None  # by a person; wins over what the agent announces
    queues: list[str] | None = None  # None: all
    draining: bool = False
    last_seen_at_ms: int | None = None
    boot_id: str | None = None
    machine_id: str | None = None
    former_names: list[str] = []
    version: int = 1


class FeedEvent(Record, frozen=True, kw_only=True):
    """A row of the change feed; carries no bytes, readers fetch what they need."""

    seq: int
    kind: str  # `task`, `run`, `output`, `agent`
    task_id: str | None
    run_id: str | None
    end_offset: int | None = None  # of an output event: bytes known so far


class TrustedKey(Record, frozen=True, kw_only=True):
    """A CURVE public key (z85) and what it may do."""

    public_key: str
    role: Role
    agent_id: str | None = None
    name: str = ""
    revoked: bool = False


class ApiToken(Record, frozen=True, kw_only=True):
    """An API token or a session as stored: only the SHA-256 of the secret."""

    id: str
    name: str
    role: Role
    sha256: str
    created_at_ms: int
    revoked: bool = False
    kind: TokenKind = TokenKind.API
    last_used_at_ms: int | None = None  # at most a minute behind
    expires_engine_s: float | None = None  # of a session: moved on by every use; None: never
    about: str = ""  # of a session: the browser and address it was made from


class LoginLink(Record, frozen=True, kw_only=True):
    """A one-time permission to make a session called `name`: only the SHA-256 of the secret."""

    sha256: str
    name: str
    created_at_ms: int
    expires_engine_s: float
    used: bool = False


class JoinToken(Record, frozen=True, kw_only=True):
    """A one-time permission to enrol: only the SHA-256 of the secret. `used_by`: the public key that used it."""

    sha256: str
    created_at_ms: int
    expires_engine_s: float
    used_by: str | None = None
    agent_id: str | None = None
