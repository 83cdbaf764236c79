"""Records from rows and rows from records, in the column order of `statements`; nothing else knows that order."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from common import wire
from common.model import (
    Attempt,
    Course,
    Ending,
    OnStop,
    Reason,
    Record,
    Run,
    RunKind,
    RunState,
    Task,
    TaskState,
)
from master.store.schema import COUNTED
from master.store.statements import TASK_COLUMNS

Row = tuple[Any, ...]
R = TypeVar("R", bound=Record)

_RUN_STATES: Final = {state.value: state for state in RunState}
_RUN_KINDS: Final = {kind.value: kind for kind in RunKind}
_TASK_STATES: Final = {state.value: state for state in TaskState}
_ON_STOP: Final = {choice.value: choice for choice in OnStop}
_COUNT_NAMES: Final = tuple(state.value for state in COUNTED)
_FIRST_COUNT: Final = TASK_COLUMNS.index(f"n_{_COUNT_NAMES[0]}")
_AFTER_COUNTS: Final = _FIRST_COUNT + len(_COUNT_NAMES)
SCOPE: Final = _AFTER_COUNTS
"""Where a task's row has its scope."""


def _packed(record: Record | None) -> bytes | None:
    return None if record is None else wire.pack(record)


def _unpacked(kind: type[R], raw: bytes | None) -> R | None:
    return None if raw is None else wire.unpack(kind, raw)


def task_from_row(row: Row) -> Task:
    """A task from `TASK_COLUMNS`."""
    return Task(
        seq=row[0],
        id=row[1],
        name=row[2],
        state=_TASK_STATES[row[3]],
        total=row[4],
        priority=row[5],
        parallel=row[6],
        fail_count=row[7],
        fail_rate=row[8],
        on_stop=_ON_STOP[row[9]],
        queue=row[10],
        count=row[11],
        lost_after_s=row[12],
        paused=row[13] != 0,
        stopped=row[14] != 0,
        cancel_requested=row[15] != 0,
        reason=_unpacked(Reason, row[16]),
        offered=row[17] != 0,
        created_at_ms=row[18],
        started_at_ms=row[19],
        ended_at_ms=row[20],
        submitted_by=row[21],
        version=row[22],
        counts={
            name: number for name, number in zip(_COUNT_NAMES, row[_FIRST_COUNT:_AFTER_COUNTS], strict=True) if number
        },
    )


def _counts(task: Task) -> Row:
    return tuple([task.counts.get(name, 0) for name in _COUNT_NAMES])


def new_task_row(task: Task, scope: str | None) -> Row:
    """The row of a task to be added, all columns."""
    return (
        task.seq, task.id, task.name, task.state.value, task.total, task.priority, task.parallel, task.fail_count,
        task.fail_rate, task.on_stop.value, task.queue, task.count, task.lost_after_s, task.paused, task.stopped,
        task.cancel_requested, _packed(task.reason), task.offered, task.created_at_ms, task.started_at_ms,
        task.ended_at_ms, task.submitted_by, task.version, *_counts(task), scope, task.name.casefold(),
    )  # fmt: skip


def moving_task_row(task: Task) -> Row:
    """The values of `TASK_MOVING`."""
    return (
        task.paused, task.stopped, task.cancel_requested, _packed(task.reason), task.offered, task.started_at_ms,
        task.ended_at_ms, task.version, *_counts(task),
    )  # fmt: skip


def run_from_row(row: Row) -> Run:
    """A run from `RUN_COLUMNS`; the row's number in the database comes behind them."""
    return Run(
        id=row[0],
        task_id=row[1],
        kind=_RUN_KINDS[row[2]],
        state=_RUN_STATES[row[3]],
        seq=row[4],
        priority=row[5],
        agent_id=row[6],
        addressed=row[7] != 0,
        attempt=row[8],
        lease=row[9],
        fence=row[10],
        cancel_reason=row[11],
        due_engine_s=row[12],
        expires_engine_s=row[13],
        created_at_ms=row[14],
        claimed_at_ms=row[15],
        started_at_ms=row[16],
        ended_at_ms=row[17],
        silent_since_ms=row[18],
        ending=_unpacked(Ending, row[19]),
        version=row[20],
        course=_unpacked(Course, row[21]),
    )


def new_run_row(run: Run) -> Row:
    """The values of `RUN_COLUMNS`."""
    return (
        run.id, run.task_id, run.kind.value, run.state.value, run.seq, run.priority, run.agent_id, run.addressed,
        run.attempt, run.lease, run.fence, run.cancel_reason, run.due_engine_s, run.expires_engine_s,
        run.created_at_ms, run.claimed_at_ms, run.started_at_ms, run.ended_at_ms, run.silent_since_ms,
        _packed(run.ending), run.version, _packed(run.course),
    )  # fmt: skip


def moving_run_row(run: Run) -> Row:
    """The values of `RUN_MOVING`."""
    return (
        run.state.value, run.attempt, run.lease, run.fence, run.cancel_reason, run.due_engine_s,
        run.expires_engine_s, run.claimed_at_ms, run.started_at_ms, run.ended_at_ms, run.silent_since_ms,
        _packed(run.ending), run.version, _packed(run.course),
    )  # fmt: skip


def attempt_from_row(row: Row) -> Attempt:
    """An attempt from `ATTEMPT_COLUMNS`."""
    return Attempt(
        run_id=row[0],
        attempt=row[1],
        agent_id=row[2],
        state=_RUN_STATES[row[3]],
        late=row[4] != 0,
        claimed_at_ms=row[5],
        started_at_ms=row[6],
        ended_at_ms=row[7],
        ending=_unpacked(Ending, row[8]),
        course=_unpacked(Course, row[9]),
    )


def attempt_row(attempt: Attempt) -> Row:
    """The values of `ATTEMPT_COLUMNS`."""
    return (
        attempt.run_id, attempt.attempt, attempt.agent_id, attempt.state.value, attempt.late, attempt.claimed_at_ms,
        attempt.started_at_ms, attempt.ended_at_ms, _packed(attempt.ending), _packed(attempt.course),
    )  # fmt: skip


def run_counts_from_blob(raw: bytes) -> dict[RunState, int]:
    """Runs per state over all tasks, from `run_counts_blob`."""
    return msgspec.msgpack.decode(raw, type=dict[RunState, int])


def run_counts_blob(counts: dict[RunState, int]) -> bytes:
    """Runs per state as one value, zero counts left out."""
    return msgspec.msgpack.encode({state: number for state, number in counts.items() if number})
