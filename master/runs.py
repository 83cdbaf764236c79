"""The one door through which runs and tasks change: a `Change`, alive for one transaction.

Every change goes step → counts → stop rule → window → store → event, in `Change._settle`, whoever asks for it. What
it means to those who wait (leases, parked pulls, callers, the feed) is noted for the `master.ledger` to tell after
the commit. A `Change` runs on the writer thread and touches nothing but its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.model import FINAL_STATES, TASK_FINAL_STATES, Attempt, OnStop, Run, RunState, Task, evolve
from master import lifecycle
from master.lifecycle import Cancel, Event, Moment, Reopen, Skip
from master.store.base import RunNotice, WriteTx

SLICE = 200
"""Runs of one task changed in one transaction when all of them must change."""
NOT_BEGUN = frozenset({RunState.DELAYED, RunState.READY, RunState.LEASED})
UNSUCCESSFUL = FINAL_STATES - {RunState.SUCCEEDED}
RETRIES = {"retry_failed": UNSUCCESSFUL, "retry_all": FINAL_STATES}
"""Reason codes of a task that is being reopened, slice by slice, and the states its runs are taken from."""


@dataclass(slots=True)
class Notes:
    """What a committed change means to those outside the store."""

    runs: list[RunNotice] = field(default_factory=list)
    tasks: dict[str, tuple[Task | None, Task]] = field(default_factory=dict)
    agents: set[str] = field(default_factory=set)  # have something of their own to claim
    fills: dict[str, int] = field(default_factory=dict)  # task → room that somebody could use now
    sweeps: list[str] = field(default_factory=list)  # tasks with more runs to end or reopen than one slice
    events: int = 0


@dataclass(frozen=True, slots=True)
class Swept:
    """How far a sweep came: `done`, or go on after `cursor` in another transaction."""

    done: bool
    cursor: str | None = None


class Change:
    """All changes of one transaction. Raises what `lifecycle.step` raises, and then that one change is not made."""

    __slots__ = ("_tasks", "notes", "now", "tx")

    def __init__(self, tx: WriteTx, now: Moment) -> None:
        self.tx = tx
        self.now = now
        self.notes = Notes()
        self._tasks: dict[str, Task] = {}

    def task(self, task_id: str) -> Task | None:
        """The task as this transaction sees it."""
        task = self._tasks.get(task_id)
        if task is None:
            task = self.tx.get_task(task_id)
            if task is not None:
                self._tasks[task_id] = task
        return task

    def move(self, run: Run, event: Event) -> Run:
        """The run after `event`, stored; the very same object when nothing changes."""
        moved = lifecycle.step(run, event, now=self.now)
        if moved is not run:
            self._settle(self._task_of(run), [(run, moved)], {})
        return moved

    def move_all(self, task: Task, runs: Iterable[Run], event: Event) -> None:
        """The same event for many runs of one task, which is counted and stored once."""
        moves = [(run, lifecycle.step(run, event, now=self.now)) for run in runs]
        self._settle(task, [(run, moved) for run, moved in moves if moved is not run], {})

    def alter(self, task: Task, **changes: Any) -> Task:
        """The task with other flags, stored; what that makes claimable is offered again."""
        return self._settle(task, [], changes)

    def added(self, task: Task) -> None:
        """A new task was stored: note it."""
        self._tasks[task.id] = task
        self.notes.tasks[task.id] = (None, task)
        self.event("task", task_id=task.id)

    def close(self, task: Task) -> Task:
        """Note that the offers of a task without room are being taken out of the index, one by one."""
        if not task.offered:
            return task
        after = evolve(task, offered=False, version=task.version + 1)
        self.tx.save_task(after, expect=task.version)
        self._tasks[task.id] = after
        return after

    def event(
        self, kind: str, *, task_id: str | None, run_id: str | None = None, end_offset: int | None = None
    ) -> None:
        """Append to the change feed; `end_offset`: bytes known of a run's output."""
        self.tx.append_event(kind, task_id=task_id, run_id=run_id, end_offset=end_offset)
        self.notes.events += 1

    def _task_of(self, run: Run) -> Task:
        task = self.task(run.task_id) if run.task_id is not None else None
        if task is None:
            raise LookupError(f"run {run.id} belongs to no task that is stored")
        return task

    def _settle(self, task: Task, moves: Sequence[tuple[Run, Run]], changes: dict[str, Any]) -> Task:
        after = self._reason_named(task, _summed(task, moves, changes, self.now))
        reopened = not after.offered and lifecycle.room(after) != 0
        after = evolve(after, offered=after.offered or reopened, version=task.version + 1)
        self.tx.save_task(after, expect=task.version)  # first: storing a run asks whether its task is offered
        self._tasks[task.id] = after
        self.notes.tasks[task.id] = (self.notes.tasks.get(task.id, (task,))[0], after)
        for before, moved in moves:
            if moved.attempt != before.attempt:
                self.tx.add_attempt(former_attempt(before, moved, now=self.now))
            self.tx.save_run(moved, expect=before.version)
            self.notes.runs.append(RunNotice(before, moved))
            self.event("run", task_id=task.id, run_id=moved.id)
        if _shown_differently(task, after):
            self.event("task", task_id=task.id)
        scopes = self.tx.reoffer(task.id) if reopened else []
        self._note_room(task, after, moves, scopes)
        fired = after.stopped and not task.stopped and not retrying(after)
        if fired and not sweep(self, task.id).done:
            self.notes.sweeps.append(task.id)
        return after

    def _reason_named(self, before: Task, after: Task) -> Task:
        """The task, and when its stop rule has just fired, which agent's run it was."""
        reason = after.reason
        if reason is None or reason is before.reason or reason.run_id is None:
            return after
        run = self.tx.get_run(reason.run_id)
        agent_id = run.agent_id if run is not None and run.agent_id is not None else ""
        agent = self.tx.get_agent(agent_id)
        name = agent_id[:13] if agent is None else agent.name
        return evolve(after, reason=evolve(reason, args={**reason.args, "agent": name}))

    def _note_room(self, before: Task, after: Task, moves: Sequence[tuple[Run, Run]], scopes: list[str]) -> None:
        room = lifecycle.room(after)
        ready = after.counts.get(RunState.READY, 0)
        if room == 0 or ready == 0:
            self.notes.fills.pop(after.id, None)
            return
        fresh = [moved for run, moved in moves if moved.state is RunState.READY and run.state is not RunState.READY]
        if after.parallel or after.count is not None:
            former = lifecycle.room(before)
            if fresh or scopes or (room is not None and former is not None and room > former):
                self.notes.fills[after.id] = ready if room is None else min(room, ready)
            return
        self.notes.agents.update(run.agent_id for run in fresh if run.agent_id is not None)
        self.notes.agents.update(scope[2:] for scope in scopes if scope.startswith("a:"))


def _summed(task: Task, moves: Sequence[tuple[Run, Run]], changes: dict[str, Any], now: Moment) -> Task:
    """The task after these moves of its runs: counts, the stop rule, state and times."""
    after = evolve(task, **changes) if changes else task
    counts = after.counts
    begun = False
    for before, moved in moves:
        if moved.state is before.state:
            continue
        counts = lifecycle.move_counts(counts, before.state, moved.state)
        begun = begun or moved.state is RunState.RUNNING
        if moved.state is RunState.FAILED and not (after.stopped or after.cancel_requested):
            after = evolve(after, counts=counts)
            reason = lifecycle.stop_rule(after, failed_run_id=moved.id)
            if reason is not None:
                after = evolve(after, stopped=True, reason=reason)
    started_at_ms = after.started_at_ms
    if begun and started_at_ms is None:
        started_at_ms = now.wall_ms
    after = evolve(after, counts=counts, started_at_ms=started_at_ms)
    state = lifecycle.task_state(after)
    final = state in TASK_FINAL_STATES
    ended_at_ms = (after.ended_at_ms if after.ended_at_ms is not None else now.wall_ms) if final else None
    return evolve(after, state=state, ended_at_ms=ended_at_ms)


def former_attempt(before: Run, moved: Run, *, now: Moment) -> Attempt:
    """The attempt that `before` was in, now that `moved` goes on to the next one."""
    return Attempt(
        run_id=before.id,
        attempt=before.attempt,
        agent_id=before.agent_id,
        state=before.state if before.state in FINAL_STATES else RunState.FAILED,
        late=False,
        claimed_at_ms=before.claimed_at_ms,
        started_at_ms=before.started_at_ms,
        ended_at_ms=before.ended_at_ms,
        ending=before.ending if before.state in FINAL_STATES else moved.ending,
        course=lifecycle.course_until(before, now),
    )


def _shown_differently(before: Task, after: Task) -> bool:
    return (
        before.state is not after.state
        or before.paused is not after.paused
        or before.stopped is not after.stopped
        or before.cancel_requested is not after.cancel_requested
        or before.reason != after.reason
    )


# -- all runs of a task at once, in slices -------------------------------------------------------------------------


def sweep(change: Change, task_id: str, *, cursor: str | None = None, known: Collection[str] | None = None) -> Swept:
    """Carry on, one slice long, with what a task's flags have decided already: end its runs or reopen them.

    The flags make claims and begins impossible from the moment they are stored, so the slices may come later, even
    after a restart. `known`: the agents enrolled, for reopening; None means all are.
    """
    task = change.task(task_id)
    if task is None or (task.state in TASK_FINAL_STATES and not retrying(task)):
        return Swept(True)
    if task.cancel_requested:
        return _end_slice(change, task, Cancel("request"), Cancel("request"), cursor)
    if retrying(task):
        return _reopen_slice(change, task, cursor, known)
    if task.stopped:
        kill = Cancel("stop_rule") if task.on_stop is OnStop.KILL else None
        return _end_slice(change, task, Skip(), kill, cursor)
    return Swept(True)


def retrying(task: Task) -> bool:
    """Whether the task is being reopened in slices and must not start anything before the last one."""
    return task.stopped and task.reason is not None and task.reason.code in RETRIES


def _end_slice(change: Change, task: Task, waiting: Event, running: Event | None, cursor: str | None) -> Swept:
    page = change.tx.list_runs(task.id, states=NOT_BEGUN, limit=SLICE, cursor=None)
    if page.items:
        change.move_all(task, page.items, waiting)
    if page.next_cursor is not None:
        return Swept(False)
    if running is None:
        return Swept(True)
    page = change.tx.list_runs(task.id, states={RunState.RUNNING}, limit=SLICE, cursor=cursor)
    asked = [run for run in page.items if run.cancel_reason is None]
    if asked:
        change.move_all(change.task(task.id) or task, asked, running)
    return Swept(page.next_cursor is None, page.next_cursor)


def _reopen_slice(change: Change, task: Task, cursor: str | None, known: Collection[str] | None) -> Swept:
    states = RETRIES[task.reason.code] if task.reason is not None else UNSUCCESSFUL
    page = change.tx.list_runs(task.id, states=states, limit=SLICE, cursor=cursor)
    runs = [run for run in page.items if known is None or not run.addressed or run.agent_id in known]
    if runs:
        change.move_all(task, runs, Reopen())
    if page.next_cursor is not None:
        return Swept(False, page.next_cursor)
    change.alter(change.task(task.id) or task, stopped=False, reason=None)
    return Swept(True)
