"""What the REST API answers, field by field: the source of the OpenAPI document and of `webserver.wording`.

These records are never filled: answers are plain maps built in the order of these fields. A test holds real answers
against them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from common.model import AgentState, Outcome, Role, RunState, TaskState, TokenKind


def _text(pattern: str, **more: Any) -> msgspec.Meta:
    return msgspec.Meta(extra_json_schema={"pattern": pattern, **more})


Moment = Annotated[
    str, msgspec.Meta(extra_json_schema={"format": "date-time"}, description="RFC 3339, UTC, with milliseconds")
]
Uuid = Annotated[str, msgspec.Meta(extra_json_schema={"format": "uuid"})]
Sha256 = Annotated[str, _text("^[0-9a-f]{64}$")]
Seconds = Annotated[float, msgspec.Meta(description="seconds")]
Gap = Annotated[list[int], msgspec.Meta(min_length=2, max_length=2, description="[offset, length]")]


_LEFT_OUT = msgspec.Meta(
    description="null in a list of tasks where interpreter, args and env are large; the task itself has all three"
)


_WAITING = msgspec.Meta(description="the same as codes, the most telling first")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all answers."""


Args = Annotated[
    dict[str, str | int | float],
    msgspec.Meta(description="what the code is about, by name; the English text beside it says the same in words"),
]


class Reason(Shape, frozen=True, kw_only=True):
    """Why a task stopped or was cancelled: `code` is `fail_count`, `fail_rate` or `cancelled`. `args`: `failed`,
    `total`, `limit` and `agent` (that of the run `run_id`, at which the rule fired); `by`, who cancelled."""

    code: str
    detail: str
    run_id: str | None = None
    args: Args = {}


class TaskWaiting(Shape, frozen=True, kw_only=True):
    """Something that runs of a task wait for. The code `more` counts further reasons that are not told."""

    code: str
    args: Args = {}
    count: Annotated[int, msgspec.Meta(description="how many runs, of the first few that have not begun")]


class RunWaiting(Shape, frozen=True, kw_only=True):
    """Something that a run waits for."""

    code: str
    args: Args = {}


class Task(Shape, frozen=True, kw_only=True):
    """A submitted task: what its runs add up to, and the request without the script's bytes."""

    id: Uuid
    name: str
    state: TaskState
    paused: bool
    counts: Annotated[dict[str, int], msgspec.Meta(description="runs by state; states without runs are left out")]
    total: Annotated[int, msgspec.Meta(description="number of runs")]
    reason: Reason | None
    waiting_because: str | None
    waiting: Annotated[list[TaskWaiting], _WAITING] = []
    created_at: Moment
    started_at: Moment | None
    ended_at: Moment | None
    submitted_by: str
    script_sha256: Sha256
    script_size: Annotated[int, msgspec.Meta(description="bytes")]
    interpreter: list[str] | None
    args: Annotated[list[str] | None, _LEFT_OUT] = None
    env: Annotated[dict[str, str] | None, _LEFT_OUT] = None
    cwd: str | None
    timeout: Seconds
    parallel: int
    fail_count: int
    fail_rate: float | None
    on_stop: str
    targets: list[str] | None
    count: int | None
    queue: str
    priority: int
    expires: Seconds
    lost_after: Seconds
    output_limit: int | None


class RunAgent(Shape, frozen=True, kw_only=True):
    """The agent that a run is addressed to, or whose it is or was."""

    id: Uuid
    name: str
    hostname: str


class Leftover(Shape, frozen=True, kw_only=True):
    """A process that outlived its script."""

    pid: int
    command: str


class Run(Shape, frozen=True, kw_only=True):
    """One task on one agent: where it is (`state`), and once an attempt ended, why it ended (`outcome`)."""

    id: Uuid
    task_id: Uuid | None
    agent: RunAgent | None
    state: RunState
    outcome: Outcome | None
    exit_code: int | None
    signal: Annotated[str, msgspec.Meta(examples=["SIGKILL"])] | None
    killed_by_us: bool = False
    attempt: int
    silent_since: Moment | None
    claimed_at: Moment | None
    started_at: Moment | None
    ended_at: Moment | None
    duration: Seconds | None
    output_bytes: Annotated[int, msgspec.Meta(description="bytes written by the script, gaps included")] = 0
    output_gaps: list[Gap] = []
    leftovers: list[Leftover] = []
    output_sha256: Annotated[Sha256 | None, msgspec.Meta(description="of what is kept; null before the end")] = None
    detail: str | None
    waiting_because: str | None
    waiting: Annotated[list[RunWaiting], _WAITING] = []
    late: Annotated[bool, msgspec.Meta(description="an outcome came after the run had gone on without it")] = False


class AgentRun(Run, frozen=True, kw_only=True):
    """A run of an agent, with the name of its task."""

    task_name: Annotated[str, msgspec.Meta(description="name of the task it belongs to")]


class Step(Shape, frozen=True, kw_only=True):
    """Something the agent did to end an attempt: a signal it sent, what it waited for."""

    at: Moment
    text: str


class Silence(Shape, frozen=True, kw_only=True):
    """A time in which the agent did not answer. `until`: null while it lasts."""

    since: Moment
    until: Moment | None


class Attempt(Shape, frozen=True, kw_only=True):
    """One try of a run. `late`: told after the run had gone on, so it changed nothing."""

    run_id: Uuid
    attempt: int
    agent: RunAgent | None
    state: RunState
    late: bool = False
    outcome: Outcome | None
    exit_code: int | None
    signal: str | None
    killed_by_us: bool = False
    claimed_at: Moment | None
    started_at: Moment | None
    ended_at: Moment | None
    duration: Seconds | None
    output_bytes: int = 0
    output_gaps: list[Gap] = []
    leftovers: list[Leftover] = []
    detail: str | None
    steps: list[Step] = []
    silences: Annotated[list[Silence], msgspec.Meta(description="the newest 20")] = []
    cancel_requested_at: Moment | None = None
    cancel_reason: Annotated[
        str | None, msgspec.Meta(description="why it was asked to end: `request` or `stop_rule`")
    ] = None


class Group(Shape, frozen=True, kw_only=True):
    """Runs of a task that are alike: state, outcome and output. `names` holds at most 100 of their agents."""

    state: RunState
    outcome: Outcome | None
    exit_code: int | None
    signal: str | None
    output_sha256: Sha256 | None
    count: int
    names: list[str]


class Target(Shape, frozen=True, kw_only=True):
    """An agent the task would go to, and whether it could begin there now."""

    agent: Uuid
    name: str
    state: AgentState
    verdict: str
    code: Annotated[str, msgspec.Meta(description="of the verdict")]
    args: Args = {}


class PreviewSummary(Shape, frozen=True, kw_only=True):
    """A preview in numbers. `candidates`: agents that the task could go to; the others count some of these."""

    total: Annotated[int, msgspec.Meta(description="number of runs")]
    addressed: Annotated[bool, msgspec.Meta(description="one run for each target")]
    candidates: int
    able: Annotated[int, msgspec.Meta(description="could begin now")]
    offline: int
    draining: int
    conflict: int
    busy: int
    parallel: int
    fail_count: int
    fail_rate: float | None
    on_stop: str
    expires: Seconds
    lost_after: Seconds


class Preview(Shape, frozen=True, kw_only=True):
    """What submitting would do; nothing was stored. `plan`: the summary in words."""

    targets: list[Target]
    plan: str
    summary: PreviewSummary


class Verdict(Shape, frozen=True, kw_only=True):
    """One reason why a run is where it is."""

    code: str
    args: Args = {}
    text: str
    since: Moment | None = None


class Explanation(Shape, frozen=True, kw_only=True):
    """Why a run is where it is, from the code that hands out work."""

    run: Run
    verdicts: list[Verdict]


class Agent(Shape, frozen=True, kw_only=True):
    """An agent and the host it runs on; `facts` are its own account of the host."""

    id: Uuid
    name: str
    hostname: str
    state: AgentState
    labels: dict[str, str] = {}
    facts: dict[str, Any] = {}
    slots: int
    held: int = 0
    queues: Annotated[list[str], msgspec.Meta(description="null: all")] | None = None
    last_seen_at: Moment | None
    enrolled_at: Moment


class AgentSamples(Shape, frozen=True, kw_only=True):
    """The last hour of an agent's load: at most one point in `interval_s`, the oldest first.

    It begins anew with the master, and lacks the time in which the agent was not heard.
    """

    interval_s: Annotated[int, msgspec.Meta(description="seconds")]
    points: Annotated[
        list[Annotated[list[float | None], msgspec.Meta(min_length=4, max_length=4)]],
        msgspec.Meta(
            description="[milliseconds since 1970, CPU in percent (mean), bytes of memory used, load of one minute]; "
            "null: the agent did not say"
        ),
    ]


class AgentToken(Shape, frozen=True, kw_only=True):
    """A permission to enrol one host, good once; `line` is what to paste there."""

    token: str
    line: str
    expires_at: Moment


class LoginLink(Shape, frozen=True, kw_only=True):
    """An address at which a browser can log in, once."""

    url: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uri"})]
    expires_at: Moment


class Token(Shape, frozen=True, kw_only=True):
    """An API token, or the session of a browser (`kind`). `about`: of a session, where it was made."""

    id: Uuid
    name: str
    kind: TokenKind
    role: Role
    created_at: Moment
    last_used_at: Annotated[Moment | None, msgspec.Meta(description="null: never")] = None
    expires_at: Annotated[Moment | None, msgspec.Meta(description="every use puts it off; null: never")] = None
    about: str = ""


class NewToken(Shape, frozen=True, kw_only=True):
    """An API token with its secret, `token`."""

    id: Uuid
    name: str
    kind: TokenKind
    role: Role
    created_at: Moment
    last_used_at: Moment | None = None
    expires_at: Moment | None = None
    about: str = ""
    token: str


class Verification(Shape, frozen=True, kw_only=True):
    """The store's broken invariants (none: all hold) and what was looked at."""

    findings: list[str]
    checked: dict[str, Any]


class Health(Shape, frozen=True, kw_only=True):
    """The webserver answers."""

    status: str
    version: str


class Readiness(Shape, frozen=True, kw_only=True):
    """Whether work can be accepted now, and what is in the way."""

    ready: bool
    problems: list[str]
    version: str


class FieldFault(Shape, frozen=True, kw_only=True):
    """A fault of one field, parameter or header of the request."""

    field: str
    message: str


class Problem(Shape, frozen=True, kw_only=True):
    """An error (RFC 9457). `code` is stable; `detail` is for people."""

    type: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uri"})]
    title: str
    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    detail: str
    code: Annotated[str, _text("^[a-z_]+$")]
    errors: list[FieldFault] = []


class Event(Shape, frozen=True, kw_only=True):
    """One event of a stream of server-sent events. `data` is JSON, in one line."""

    event: Annotated[str, _text("^[a-z]+$")]
    data: str
    id: Annotated[str, _text("^[0-9]+$")]


class TokenPage(Shape, frozen=True, kw_only=True):
    """All tokens and sessions, the newest first."""

    items: list[Token]
    next: str | None


class FleetCounts(Shape, frozen=True, kw_only=True):
    """The fleet in numbers: agents by state, the slots of those online, and how many of these are held."""

    total: int
    online: int
    offline: int
    draining: int
    conflict: int
    slots: int
    held: int


class Attention(Shape, frozen=True, kw_only=True):
    """Something that needs a person. `code` is `disk`, `agent_conflict`, `task_stopped`, `run_silent`, `task_failed`,
    `agent_offline` or `task_paused`; `args` is what a sentence about it needs."""

    code: Annotated[str, _text("^[a-z_]+$")]
    task_id: Uuid | None
    agent_id: Uuid | None
    name: Annotated[str, msgspec.Meta(description="of the task or the agent")] | None
    at: Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"}, description="since when")] | None
    args: dict[str, Any]


class Overview(Shape, frozen=True, kw_only=True):
    """What goes on, at a glance, from one moment. At most 20 tasks of each kind, as in a list of tasks."""

    counts: Annotated[dict[str, int], msgspec.Meta(description="tasks by state, all states")]
    running: Annotated[list[Task], msgspec.Meta(description="the latest begun first")]
    waiting: Annotated[list[Task], msgspec.Meta(description="also running ones with ready runs; the newest first")]
    ended: Annotated[list[Task], msgspec.Meta(description="the latest end first")]
    fleet: FleetCounts
    attention: Annotated[list[Attention], msgspec.Meta(description="the most urgent first, at most 50")]
    attention_more: Annotated[bool, msgspec.Meta(description="there is more that needs a person")]


class TaskPage(Shape, frozen=True, kw_only=True):
    """A page of tasks, the newest first."""

    items: list[Task]
    next: str | None


class RunPage(Shape, frozen=True, kw_only=True):
    """A page of runs."""

    items: list[Run]
    next: str | None


class AgentRunPage(Shape, frozen=True, kw_only=True):
    """A page of an agent's runs, those of the newest task first."""

    items: list[AgentRun]
    next: str | None


class AttemptPage(Shape, frozen=True, kw_only=True):
    """All attempts of a run, the first first."""

    items: list[Attempt]
    next: str | None


class GroupPage(Shape, frozen=True, kw_only=True):
    """All groups of a task."""

    items: list[Group]
    next: str | None


class AgentPage(Shape, frozen=True, kw_only=True):
    """A page of agents, by name."""

    items: list[Agent]
    next: str | None
