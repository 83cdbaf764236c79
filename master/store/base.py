"""The store's interface: verbs of the domain, the same for every database. The behaviour suite is `tests/store/`.

`write(fn)` runs `fn(tx)` on the one writer thread inside a savepoint and returns after the commit; `read(fn)` runs on a
reader thread from a snapshot. `fn` does no I/O, touches no gevent, and may be run again: it must depend on `tx` only.
An exception of `fn` undoes its savepoint alone and reaches its caller. All ids are texts; `now` never comes from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from common.model import (
    Agent,
    ApiToken,
    Attempt,
    FeedEvent,
    JoinToken,
    LoginLink,
    Offer,
    Run,
    RunState,
    Task,
    TaskSpec,
    TaskState,
    TrustedKey,
)

T = TypeVar("T")

AGENT_PREFIX_LEAST = 4
"""Characters of an agent's id that may stand for it, where no other agent's begins so."""


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks a list shows; None means any. `name` is a case-insensitive part of the name; `agent_id` has a run;
    created at `since_ms` or later, and before `until_ms`."""

    states: frozenset[TaskState] | None = None
    agent_id: str | None = None
    name: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    id_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list and the cursor of the next one (None: this was the last), and of the one before, where the list
    can go back (None: it cannot, or this is the first)."""

    items: list[T]
    next_cursor: str | None
    previous_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class RunNotice:
    """A run that changed in a committed transaction, before and after; what waits on it is woken from this."""

    before: Run | None
    after: Run


class ReadTx(Protocol):
    """What a snapshot answers. A method that finds nothing answers None or an empty list and never raises for it."""

    def get_task(self, task_id: str) -> Task | None:
        """The task, or None."""

    def find_task_ids(self, prefix: str, *, limit: int = 2) -> list[str]:
        """Ids of tasks that begin with `prefix`, in order."""

    def find_run_ids(self, prefix: str, *, limit: int = 2) -> list[str]:
        """Ids of runs that begin with `prefix`, in order."""

    def list_tasks(self, where: TaskFilter, *, limit: int, cursor: str | None) -> Page[Task]:
        """Tasks that fit, newest first. A cursor that is none raises `InvalidRequest`. A page before another that would
        reach beyond the newest task is the first page, and whole."""

    def count_tasks(self) -> dict[TaskState, int]:
        """How many tasks there are in each state; states without any are left out. Costs the same however many."""

    def running_tasks(self, *, limit: int) -> list[Task]:
        """Running tasks, the latest begun first; among very many, of the newest only."""

    def waiting_tasks(self, *, limit: int) -> list[Task]:
        """Tasks that wait, and running ones with ready runs that their own window does not hold back, the newest first.
        Among very many running ones, of the newest only."""

    def ended_tasks(self, *, limit: int) -> list[Task]:
        """Tasks that have ended, the latest end first."""

    def failed_tasks(self, *, since_ms: int, limit: int) -> list[Task]:
        """Failed tasks that ended at `since_ms` (wall time) or later, the latest end first."""

    def halted_tasks(self, *, limit: int) -> list[Task]:
        """Tasks that have not ended and wait for a person, the newest first: stopped by their rule, or paused while
        they have ready runs."""

    def count_offered(self, agent_id: str, *, most: int) -> int:
        """How many tasks offer a run to this agent alone, counted up to `most`."""

    def get_spec(self, task_id: str) -> TaskSpec | None:
        """The spec of a task, or None."""

    def get_spec_raw(self, task_id: str) -> bytes | None:
        """The spec as `wire.pack` made it, not decoded: a claim passes it on as it is."""

    def task_by_idempotency_key(self, key: str) -> tuple[str, str] | None:
        """(task id, SHA-256 of the body it was stored with)."""

    def task_candidates(self, task_id: str) -> list[str] | None:
        """Agent ids a `count` task was fixed to at submit; None when any agent serving its queue may take it."""

    def get_run(self, run_id: str) -> Run | None:
        """The run, or None."""

    def list_runs(
        self,
        task_id: str,
        *,
        states: Collection[RunState] | None,
        limit: int,
        cursor: str | None,
        agents: Collection[str] | None = None,
    ) -> Page[Run]:
        """Runs of a task in the order they were added; `states` None: any; `agents`: of one of these (None: of any)."""

    def runs_in(self, task_id: str, states: Collection[RunState]) -> list[Run]:
        """All runs of a task in these states, by id."""

    def runs_held(self, agent_id: str | None = None) -> list[Run]:
        """Leased and running runs of one agent, or of all."""

    def runs_of_agent(
        self, agent_id: str, *, states: Collection[RunState] | None = None, limit: int, cursor: str | None = None
    ) -> Page[Run]:
        """Runs addressed to or last held by the agent, those of the newest task first; `states` None: any."""

    def open_runs_of_agent(self, agent_id: str, *, limit: int) -> list[Run]:
        """Runs addressed to or held by the agent that have not ended, up to `limit` in the order they were added; costs
        nothing for those that have."""

    def list_attempts(self, run_id: str) -> list[Attempt]:
        """Former and late attempts, oldest first; the current attempt is in the run."""

    def heads(self, agent_id: str, queues: Collection[str] | None, *, limit: int) -> list[Offer]:
        """The first offers of all scopes of this agent, merged by (priority, seq): its own, the sets it is in, its
        queues (None: all queues). Costs the same whatever stands in other scopes. Sets count only where the agent
        serves the queue of their task (the queue is part of the set's hash). An offer of a task that the agent has a
        run of already, and could not take another of, is left out."""

    def claimable(self, task_id: str, agent_id: str) -> Run | None:
        """The ready run of this task that the agent may take: the one addressed to it, or an unaddressed one when the
        agent has no other run of the task (never two on one agent)."""

    def due(self, engine_s: float, *, limit: int) -> list[Run]:
        """Delayed runs whose time has come."""

    def expired(self, engine_s: float, *, limit: int) -> list[Run]:
        """Ready runs that waited too long."""

    def next_deadline(self) -> float | None:
        """The earliest engine second at which `due` or `expired` will have something."""

    def oldest_ready_ms(self) -> dict[str, int]:
        """Queue → wall ms at which its oldest ready run was created (for the queue age metric)."""

    def count_runs(self) -> dict[RunState, int]:
        """How many runs there are in each state, over all tasks; states without any are left out."""

    def get_agent(self, agent_id: str) -> Agent | None:
        """The agent, or None."""

    def find_agents(self, text: str) -> list[Agent]:
        """The agent with this id or exact name; else those whose id begins with `text`
        (`AGENT_PREFIX_LEAST` characters or more)."""

    def agents_by_former_name(self, name: str) -> list[Agent]:
        """Agents that once had this name."""

    def list_agents(self) -> list[Agent]:
        """All agents, by name."""

    def events_after(self, seq: int, *, limit: int) -> list[FeedEvent]:
        """Rows of the change feed behind `seq`, in order."""

    def event_bounds(self) -> tuple[int, int]:
        """(oldest kept seq, newest seq); (0, 0) when there is none."""

    def blob_size(self, sha256: str) -> int | None:
        """Bytes of a stored blob, or None."""

    def blob_piece(self, sha256: str, *, offset: int, length: int) -> bytes:
        """Bytes of a blob; empty behind its end or when there is none."""

    def list_keys(self) -> list[TrustedKey]:
        """All keys, revoked ones too."""

    def list_tokens(self) -> list[ApiToken]:
        """All API tokens and sessions, revoked ones too."""

    def get_login_link(self, sha256: str) -> LoginLink | None:
        """The login link with this hash, or None."""

    def login_links_before(self, before_engine_s: float) -> bool:
        """Whether there are login links that expired before then."""

    def get_join_token(self, sha256: str) -> JoinToken | None:
        """The join token with this hash, or None."""

    def join_tokens_before(self, before_engine_s: float) -> bool:
        """Whether there are join tokens that expired before then and were never used."""

    def engine_mark(self) -> tuple[float, int]:
        """(engine seconds, wall ms) as of the last commit; (0.0, 0) in a fresh store."""

    def findings(self) -> list[str]:
        """Broken invariants, a sentence each: counts against runs, offers against ready runs and windows, leases
        unique, final runs without lease. Reads everything; for `muster verify`."""


class WriteTx(ReadTx, Protocol):
    """What a transaction may change. `expect` is the version read before; if another one is stored by then, or none,
    `VersionConflict` is raised."""

    @property
    def commit_seq(self) -> int:
        """A number that grows with every transaction, over restarts too; the fence of a begin."""

    def next_seq(self) -> int:
        """The next submission number."""

    def put_blob(self, sha256: str, content: bytes) -> None:
        """Store content once under its hash; a repeat does nothing."""

    def add_task(
        self,
        task: Task,
        spec: TaskSpec,
        runs: Iterable[Run],
        *,
        candidates: list[str] | None = None,
        idempotency_key: str | None = None,
        body_sha256: str = "",
    ) -> None:
        """Store a task with its runs and its offers (offers only when `task.offered`).
        Offers: one per target's scope `a:ID` for addressed runs; one in `q:QUEUE` for a count task without candidates;
        one in `s:HASH(queue, candidates)` for a count task with candidates."""

    def save_task(self, task: Task, *, expect: int) -> None:
        """Store a changed task. What is fixed at submit (name, priority, limits, total) is not written again."""

    def save_run(self, run: Run, *, expect: int) -> None:
        """Store a moved run and keep the offers in step: a run that became ready is offered when its task is `offered`;
        a run that left ready takes its offer along (a scope's offer goes when no ready run is left behind it).
        Save the task first when both change."""

    def withdraw(self, offer: Offer) -> None:
        """Take one offer of a closed task out of the index, to be put back by `reoffer`."""

    def reoffer(self, task_id: str) -> list[str]:
        """Offer again every ready run of the task whose offer was withdrawn or never made; answers the scopes touched.
        Due whenever `offered` goes from False to True; save the task first."""

    def add_attempt(self, attempt: Attempt) -> None:
        """Keep a former or late attempt; a second one with the same run, number and lateness changes nothing."""

    def save_agent(self, agent: Agent, *, expect: int | None) -> None:
        """Store an agent; `expect` None adds it. A name in use raises `Conflict`."""

    def forget_agent(self, agent_id: str) -> None:
        """Remove the agent's record, keys and offers; its runs must be final or unassigned (they keep the id)."""

    def append_event(self, kind: str, *, task_id: str | None, run_id: str | None, end_offset: int | None = None) -> int:
        """Append to the change feed; answers its seq."""

    def trim_events(self, *, keep: int, limit: int, before_ms: int | None = None) -> int:
        """Delete the oldest rows of the feed beyond `keep`, and those stored before `before_ms` (wall time), at most
        `limit` of them; answers how many went. The newest row always stays."""

    def save_key(self, key: TrustedKey) -> None:
        """Add a key, or replace what it may do."""

    def save_token(self, token: ApiToken) -> None:
        """Add an API token or a session, or replace it."""

    def note_use(self, token_id: str, *, at_ms: int, expires_engine_s: float | None) -> bool:
        """Store the last use of a token, and until when it is good; whether there is such a token that is good."""

    def delete_token(self, token_id: str) -> bool:
        """Remove an API token or a session; whether there was one."""

    def save_login_link(self, link: LoginLink) -> None:
        """Add a login link, or replace it."""

    def trim_login_links(self, before_engine_s: float, *, limit: int) -> int:
        """Delete login links that expired before then, at most `limit`; answers how many went."""

    def save_join_token(self, token: JoinToken) -> None:
        """Add a join token, or replace it."""

    def trim_join_tokens(self, before_engine_s: float, *, limit: int) -> int:
        """Delete join tokens that expired before then and were never used, at most `limit`; answers how many went."""

    def set_engine_mark(self, engine_s: float, wall_ms: int) -> None:
        """Store a mark of the engine clock by hand; a store that was given a clock writes one with every commit."""


class Store(Protocol):
    """A store: opened once, closed once; calls come from greenlets of the hub that opened it."""

    def open(self) -> None:
        """Migrate if needed and start the threads. Raises `StoreUnavailable` with what to do."""

    def close(self) -> None:
        """Finish what is queued, commit, stop the threads. May be called twice."""

    def write(self, fn: Callable[[WriteTx], T]) -> T:
        """Run `fn` in a transaction; returns after the commit. Raises `StoreFull`, `StoreUnavailable` when the commit
        failed (nothing of it is stored), or what `fn` raised."""

    def read(self, fn: Callable[[ReadTx], T]) -> T:
        """What `fn` answers from a snapshot. Raises what `fn` raised, or `StoreUnavailable`."""

    def stats(self) -> dict[str, Any]:
        """Numbers for metrics: `commits` and `closures` since the start, `batch_sizes` and `commit_s` (seconds from
        begin to commit) of the last few hundred commits, `queue`: closures that wait."""

    def problem(self) -> str | None:
        """Why the last write failed, a sentence for /readyz; None once a write that changed something succeeded."""
