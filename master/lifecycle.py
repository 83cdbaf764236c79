"""The state machine of a run, pure: everything that can change a state lives in `TABLE`.

`step` looks up (state, event) and gives the new run, or raises and leaves all as it was. Nothing here reads a clock,
a store or a socket. The task's state, its window and its stop rule are sums over its runs and are computed here too.
The diagram in the docs is drawn from `TABLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import NotAllowed, StaleLease
from common.model import (
    FINAL_STATES,
    TASK_FINAL_STATES,
    Course,
    Ending,
    Outcome,
    Reason,
    Run,
    RunKind,
    RunState,
    Task,
    TaskState,
    evolve,
)
from master.sentences import reason


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant, read once per transaction: engine seconds for deadlines, wall milliseconds for people."""

    engine_s: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Due:
    """The delay is over."""


@dataclass(frozen=True, slots=True)
class Kick:
    """A person sends a delayed or buried run on."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An agent takes a ready run under a fresh lease."""

    agent_id: str
    lease: str


@dataclass(frozen=True, slots=True)
class Begin:
    """The barrier before the fork; `fence` is the commit sequence of this begin."""

    lease: str
    fence: int


@dataclass(frozen=True, slots=True)
class Release:
    """The holder gives a run back that it has not begun."""

    lease: str


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """The lease ran out (or the agent no longer knows the run)."""


@dataclass(frozen=True, slots=True)
class Silent:
    """The agent of a running run went silent at `since_ms`."""

    since_ms: int


@dataclass(frozen=True, slots=True)
class Heard:
    """The agent of a silent run is back."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The holder tells how the attempt ended. `retry_engine_s`: when policy wants another attempt."""

    lease: str
    ending: Ending
    retry_engine_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """A person (`request`) or the stop rule (`stop_rule`) wants the run to end."""

    reason: str = "request"


@dataclass(frozen=True, slots=True)
class Skip:
    """The stop rule fired before the run began."""


@dataclass(frozen=True, slots=True)
class Expire:
    """The run waited longer than its task allows."""


@dataclass(frozen=True, slots=True)
class Bury:
    """The holder sets an item aside for a person."""

    lease: str


@dataclass(frozen=True, slots=True)
class Reopen:
    """A person retries a final run: a new attempt, same id. `expires_engine_s` stays away: retries don't expire."""


Event = (
    Due | Kick | Claim | Begin | Release | LeaseEnd | Silent | Heard | Finish | Cancel | Skip | Expire | Bury | Reopen
)
Move = Callable[[Run, Any, Moment], Run]

SILENCES_MOST = 20
"""Silences of one attempt that are remembered, the newest."""


def _check_lease(run: Run, lease: str) -> None:
    if run.lease != lease:
        raise StaleLease(f"run {run.id}: this lease is no longer held (state {run.state.value})")


def _ready(run: Run, event: Any, now: Moment) -> Run:
    holder = run.agent_id if run.addressed else None
    return evolve(run, state=RunState.READY, lease=None, due_engine_s=None, agent_id=holder, claimed_at_ms=None)


def _claim(run: Run, event: Claim, now: Moment) -> Run:
    if run.addressed and run.agent_id != event.agent_id:
        raise NotAllowed(f"run {run.id} is addressed to another agent")
    return evolve(
        run, state=RunState.LEASED, lease=event.lease, agent_id=event.agent_id, claimed_at_ms=now.wall_ms, ending=None
    )


def _begin(run: Run, event: Begin, now: Moment) -> Run:
    _check_lease(run, event.lease)
    return evolve(
        run, state=RunState.RUNNING, fence=event.fence, started_at_ms=now.wall_ms, silent_since_ms=None, ending=None,
        course=None,
    )  # fmt: skip


def _begin_again(run: Run, event: Begin, now: Moment) -> Run:
    """The answer to a begin got lost and it is asked again: same lease, same fence, nothing changes."""
    _check_lease(run, event.lease)
    if run.cancel_reason is not None:
        raise NotAllowed(f"run {run.id} is being cancelled")
    return run


def _release(run: Run, event: Release, now: Moment) -> Run:
    _check_lease(run, event.lease)
    return _ready(run, event, now)


def _final(run: Run, state: RunState, ending: Ending | None, now: Moment) -> Run:
    return evolve(
        run, state=state, lease=None, ending=ending, ended_at_ms=now.wall_ms, due_engine_s=None, silent_since_ms=None,
        course=course_until(run, now),
    )  # fmt: skip


def _finish(run: Run, event: Finish, now: Moment) -> Run:
    _check_lease(run, event.lease)
    ending = event.ending
    own_end = ending.outcome in (Outcome.EXIT, Outcome.SIGNAL) and not ending.killed_by_us
    if run.cancel_reason is not None and not own_end:
        return _final(run, RunState.CANCELLED, ending, now)
    if ending.outcome is Outcome.EXIT and ending.exit_code == 0 and not ending.killed_by_us:
        return _final(run, RunState.SUCCEEDED, ending, now)
    if event.retry_engine_s is not None and run.cancel_reason is None:  # who was asked to end is not tried again
        return _again(evolve(run, ending=ending), event.retry_engine_s)
    return _final(run, RunState.FAILED, ending, now)


def _finish_item(run: Run, event: Finish, now: Moment) -> Run:
    if run.kind is not RunKind.ITEM:
        raise NotAllowed(f"run {run.id} has not begun, so it cannot have ended")
    _check_lease(run, event.lease)
    succeeded = event.ending.outcome is Outcome.EXIT and event.ending.exit_code == 0
    return _final(run, RunState.SUCCEEDED if succeeded else RunState.FAILED, event.ending, now)


def _again(run: Run, due_engine_s: float) -> Run:
    holder = run.agent_id if run.addressed else None
    return evolve(
        run,
        state=RunState.DELAYED,
        attempt=run.attempt + 1,
        lease=None,
        agent_id=holder,
        due_engine_s=due_engine_s,
        silent_since_ms=None,
        course=None,
    )


def _lost(run: Run, event: LeaseEnd, now: Moment) -> Run:
    ending = Ending(outcome=Outcome.LOST, detail="the agent stopped answering while this run was under way")
    state = RunState.CANCELLED if run.cancel_reason is not None else RunState.FAILED
    return _final(run, state, ending, now)


def _cancelled(run: Run, event: Cancel, now: Moment) -> Run:
    return evolve(_final(run, RunState.CANCELLED, None, now), cancel_reason=event.reason)


def _ask_cancel(run: Run, event: Cancel, now: Moment) -> Run:
    if run.cancel_reason is not None:
        return run
    course = evolve(run.course or Course(), cancel_at_ms=now.wall_ms, cancel_reason=event.reason)
    return evolve(run, cancel_reason=event.reason, course=course)


def _skipped(run: Run, event: Skip, now: Moment) -> Run:
    return _final(run, RunState.SKIPPED, None, now)


def _skipped_retry(run: Run, event: Skip, now: Moment) -> Run:
    """A run that waits for its retry has failed already; the stop rule makes that final."""
    state = RunState.FAILED if run.ending is not None else RunState.SKIPPED
    return _final(run, state, run.ending, now)


def _expired(run: Run, event: Expire, now: Moment) -> Run:
    return _final(run, RunState.EXPIRED, None, now)


def _bury(run: Run, event: Bury, now: Moment) -> Run:
    _check_lease(run, event.lease)
    if run.kind is not RunKind.ITEM:
        raise NotAllowed("script runs are never buried")
    return evolve(run, state=RunState.BURIED, lease=None)


def _silent(run: Run, event: Silent, now: Moment) -> Run:
    return run if run.silent_since_ms is not None else evolve(run, silent_since_ms=event.since_ms)


def _heard(run: Run, event: Heard, now: Moment) -> Run:
    return run if run.silent_since_ms is None else evolve(run, silent_since_ms=None, course=course_until(run, now))


def course_until(run: Run, now: Moment) -> Course | None:
    """The course of the run's attempt when a silence that lasts ends now."""
    if run.silent_since_ms is None:
        return run.course
    course = run.course or Course()
    return evolve(course, silences=[*course.silences, (run.silent_since_ms, now.wall_ms)][-SILENCES_MOST:])


def _reopen(run: Run, event: Reopen, now: Moment) -> Run:
    attempt = run.attempt + 1 if run.started_at_ms is not None else run.attempt
    fresh = evolve(
        run, attempt=attempt, cancel_reason=None, started_at_ms=None, ended_at_ms=None, fence=None, ending=None,
        expires_engine_s=None, course=None,
    )  # fmt: skip
    return _ready(fresh, event, now)


_S = RunState
TABLE: Mapping[tuple[RunState, type], tuple[Move, frozenset[RunState]]] = {
    (_S.DELAYED, Due): (_ready, frozenset({_S.READY})),
    (_S.DELAYED, Kick): (_ready, frozenset({_S.READY})),
    (_S.DELAYED, Cancel): (_cancelled, frozenset({_S.CANCELLED})),
    (_S.DELAYED, Skip): (_skipped_retry, frozenset({_S.SKIPPED, _S.FAILED})),
    (_S.READY, Claim): (_claim, frozenset({_S.LEASED})),
    (_S.READY, Cancel): (_cancelled, frozenset({_S.CANCELLED})),
    (_S.READY, Skip): (_skipped, frozenset({_S.SKIPPED})),
    (_S.READY, Expire): (_expired, frozenset({_S.EXPIRED})),
    (_S.LEASED, Begin): (_begin, frozenset({_S.RUNNING})),
    (_S.LEASED, Release): (_release, frozenset({_S.READY})),
    (_S.LEASED, LeaseEnd): (_ready, frozenset({_S.READY})),
    (_S.LEASED, Cancel): (_cancelled, frozenset({_S.CANCELLED})),
    (_S.LEASED, Skip): (_skipped, frozenset({_S.SKIPPED})),
    (_S.LEASED, Finish): (_finish_item, frozenset({_S.SUCCEEDED, _S.FAILED})),
    (_S.LEASED, Bury): (_bury, frozenset({_S.BURIED})),
    (_S.RUNNING, Begin): (_begin_again, frozenset({_S.RUNNING})),
    (_S.RUNNING, Finish): (_finish, frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED, _S.DELAYED})),
    (_S.RUNNING, LeaseEnd): (_lost, frozenset({_S.FAILED, _S.CANCELLED})),
    (_S.RUNNING, Cancel): (_ask_cancel, frozenset({_S.RUNNING})),
    (_S.RUNNING, Silent): (_silent, frozenset({_S.RUNNING})),
    (_S.RUNNING, Heard): (_heard, frozenset({_S.RUNNING})),
    (_S.BURIED, Kick): (_ready, frozenset({_S.READY})),
    (_S.BURIED, Cancel): (_cancelled, frozenset({_S.CANCELLED})),
    **{(state, Reopen): (_reopen, frozenset({_S.READY})) for state in FINAL_STATES},
}
"""(state, event) → (move, states it may lead to). What is not listed is not allowed."""


def step(run: Run, event: Event, *, now: Moment) -> Run:
    """The run after `event`; the very same object when nothing changes.

    Raises `NotAllowed` when the table has no such transition, `StaleLease` when the event's lease isn't the run's.
    The version goes up by one with every change.
    """
    entry = TABLE.get((run.state, type(event)))
    if entry is None:
        lease = getattr(event, "lease", None)
        if lease is not None and not isinstance(event, Claim) and run.lease != lease:
            raise StaleLease(f"run {run.id}: this lease is no longer held (state {run.state.value})")
        raise NotAllowed(f"run {run.id}: {type(event).__name__.lower()} is not allowed while {run.state.value}")
    moved = entry[0](run, event, now)
    return run if moved is run else evolve(moved, version=run.version + 1)


def move_counts(counts: Mapping[str, int], before: RunState, after: RunState) -> dict[str, int]:
    """The task's counts after one of its runs went from `before` to `after`; zero counts are left out."""
    new = dict(counts)
    new[before.value] = new.get(before.value, 0) - 1
    new[after.value] = new.get(after.value, 0) + 1
    return {state: number for state, number in new.items() if number}


def held(task: Task) -> int:
    """How many runs of the task agents hold now (leased or running)."""
    return task.counts.get(RunState.LEASED, 0) + task.counts.get(RunState.RUNNING, 0)


def task_state(task: Task) -> TaskState:
    """What the counts add up to (see the concepts page)."""
    final = sum(task.counts.get(state, 0) for state in FINAL_STATES)
    if final < task.total:
        return TaskState.RUNNING if held(task) or task.started_at_ms is not None else TaskState.WAITING
    if task.counts.get(RunState.SUCCEEDED, 0) == task.total:
        return TaskState.SUCCEEDED
    return TaskState.CANCELLED if task.cancel_requested else TaskState.FAILED


def room(task: Task) -> int | None:
    """How many more runs may be claimed now; None means no bound. 0 while paused, stopped, cancelled or final."""
    if task.paused or task.stopped or task.cancel_requested or task.state in TASK_FINAL_STATES:
        return 0
    return None if task.parallel == 0 else max(0, task.parallel - held(task))


def stop_rule(task: Task, *, failed_run_id: str | None = None) -> Reason | None:
    """Why the task must stop starting runs, judged on its present counts; None while it may go on.

    `fail_count` stops at that many failed runs; `fail_rate` stops once failed ÷ total exceeds it.
    """
    failed = task.counts.get(RunState.FAILED, 0)
    counted = {"failed": failed, "total": task.total}
    if 0 < task.fail_count <= failed:
        return reason("fail_count", {**counted, "limit": task.fail_count}, run_id=failed_run_id)
    if task.fail_rate is not None and failed / task.total > task.fail_rate:
        return reason("fail_rate", {**counted, "limit": task.fail_rate}, run_id=failed_run_id)
    return None
