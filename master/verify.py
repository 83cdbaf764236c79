"""The history checker: what must be true of everything that was accepted, begun, held, written and told.

`check` is pure: it takes what outsiders saw (clients their answers, scripts their own log, agents their leases) and
answers a sentence for each broken promise. Tests feed it from runs of the whole system under faults; `muster verify`
feeds it from the records of a live store, beside the store's own invariants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from common.model import FINAL_STATES, TASK_FINAL_STATES, Attempt, Outcome, Run, RunState, Task
from master.output import OutputStore
from master.store.base import ReadTx, Store, TaskFilter
from master.views import current_attempt


@dataclass(frozen=True, slots=True)
class Accepted:
    """A task that was answered as stored: `runs` of it must exist for ever. `parallel` 0: no bound."""

    task_id: str
    runs: int
    parallel: int = 0


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt that really started, as its script wrote down. `until_s` None: its end was not seen."""

    task_id: str
    run_id: str
    attempt: int
    at_s: float
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease as its holder knows it, from the claim's answer until it gave up or ended the run."""

    run_id: str
    lease: str
    agent_id: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """A run's state as somebody was told it at that time."""

    at_s: float
    run_id: str
    attempt: int
    state: str


@dataclass(frozen=True, slots=True)
class Output:
    """The output of an ended attempt: `size` bytes `written` (None: not known which), what is kept and what is gap."""

    run_id: str
    attempt: int
    size: int
    kept: Sequence[tuple[int, int]]  # (offset, length)
    gaps: Sequence[tuple[int, int]]
    written: bytes | None = None
    read: bytes | None = None  # the kept bytes in order


@dataclass(slots=True)
class History:
    """Everything seen. `ended`: the tasks that are final now, with the number of runs they show."""

    accepted: list[Accepted] = field(default_factory=list)
    present: dict[str, int] = field(default_factory=dict)  # task → runs that are there now
    begun: list[Begun] = field(default_factory=list)
    held: list[Holding] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)


def check(history: History) -> list[str]:
    """Broken promises, a sentence each; empty when all were kept."""
    return [
        *_lost_tasks(history),
        *_begun_twice(history),
        *_held_twice(history),
        *_windows_exceeded(history),
        *_final_changed(history),
        *_output_broken(history),
    ]


def _lost_tasks(history: History) -> Iterable[str]:
    for task in history.accepted:
        there = history.present.get(task.task_id)
        if there is None:
            yield f"task {task.task_id} was accepted and is gone"
        elif there != task.runs:
            yield f"task {task.task_id} was accepted with {task.runs} runs and has {there}"


def _begun_twice(history: History) -> Iterable[str]:
    times: dict[tuple[str, int], int] = defaultdict(int)
    for begun in history.begun:
        times[begun.run_id, begun.attempt] += 1
    for (run_id, attempt), number in times.items():
        if number > 1:
            yield f"run {run_id}: attempt {attempt} was begun {number} times"


def _held_twice(history: History) -> Iterable[str]:
    by_run: dict[str, list[Holding]] = defaultdict(list)
    holders: dict[str, set[str]] = defaultdict(set)
    for holding in history.held:
        by_run[holding.run_id].append(holding)
        holders[holding.lease].add(holding.agent_id)
    for lease, agents in holders.items():
        if len(agents) > 1:
            yield f"lease {lease} was given to {len(agents)} agents"
    for run_id, holdings in by_run.items():
        holdings.sort(key=lambda holding: holding.from_s)
        for former, later in pairwise(holdings):
            if former.lease != later.lease and later.from_s < former.until_s:
                yield f"run {run_id} was held under two leases at once ({former.lease}, {later.lease})"


def _windows_exceeded(history: History) -> Iterable[str]:
    bounds = {task.task_id: task.parallel for task in history.accepted if task.parallel}
    steps: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for begun in history.begun:
        if begun.task_id in bounds and begun.until_s is not None:
            # An end counts before a start of the same instant: the one may have made room for the other.
            steps[begun.task_id] += [(begun.at_s, 1), (begun.until_s, -1)]
    for task_id, changes in steps.items():
        under_way = most = 0
        for _, change in sorted(changes):
            under_way += change
            most = max(most, under_way)
        if most > bounds[task_id]:
            yield f"task {task_id}: {most} runs at once, parallel={bounds[task_id]}"


def _final_changed(history: History) -> Iterable[str]:
    ended: dict[tuple[str, int], str] = {}
    for told in sorted(history.told, key=lambda told: told.at_s):
        key = (told.run_id, told.attempt)
        known = ended.get(key)
        if known is not None and told.state != known:
            yield f"run {told.run_id}: attempt {told.attempt} had ended as {known} and was then {told.state}"
        elif told.state in _RAN:
            ended[key] = told.state


# What ended without having begun (skipped, say) may be reopened under the same number.
_RAN = frozenset({RunState.SUCCEEDED.value, RunState.FAILED.value})


def _output_broken(history: History) -> Iterable[str]:
    for output in history.outputs:
        where = f"run {output.run_id}, attempt {output.attempt}"
        at = 0
        for start, length in sorted([*output.kept, *output.gaps]):
            if start != at:
                what = "twice" if start < at else "neither kept nor declared a gap"
                yield f"{where}: output bytes {min(start, at)} to {max(start, at)} are {what}"
            at = max(at, start + length)
        if at != output.size:
            yield f"{where}: {at} bytes of output are accounted for, {output.size} were written"
        if output.written is None or output.read is None:
            continue
        expected = b"".join(output.written[start : start + length] for start, length in sorted(output.kept))
        if expected != output.read:
            yield f"{where}: the kept output is not what was written"


# -- a live store ----------------------------------------------------------------------------------------------------

_PAGE = 200
_RUNS_PAGE = 500
_OUTPUTS_MOST = 1_000


def verify(store: Store, output: OutputStore) -> dict[str, Any]:
    """{findings, checked} of a live store: its own invariants, then the history that its records tell, task by task, so
    that memory holds no more of it than a page. Output is checked of the newest runs that have any."""
    findings = store.read(lambda tx: tx.findings())
    seen = _Seen()
    cursor: str | None = None
    while True:
        page, cursor = store.read(lambda tx, at=cursor: _look(tx, at))  # type: ignore[misc]
        seen.add(page)
        if cursor is None:
            break
    findings += seen.findings
    for run in seen.newest:
        findings += check(History(outputs=[_output_of(output, run)]))
    checked = {"tasks": seen.tasks, "runs": seen.runs, "attempts": seen.attempts, "outputs": len(seen.newest)}
    return {"findings": findings, "checked": checked}


@dataclass(slots=True)
class _Seen:
    """What has been counted and found so far; `newest`: the first runs met that have output, newest task first."""

    tasks: int = 0
    runs: int = 0
    attempts: int = 0
    findings: list[str] = field(default_factory=list)
    newest: list[Run] = field(default_factory=list)

    def add(self, page: _Seen) -> None:
        """Add what was seen of the next page of tasks."""
        self.tasks += page.tasks
        self.runs += page.runs
        self.attempts += page.attempts
        self.findings += page.findings
        self.newest += page.newest[: _OUTPUTS_MOST - len(self.newest)]


def _look(tx: ReadTx, cursor: str | None) -> tuple[_Seen, str | None]:
    """Check a page of tasks in one snapshot; also the cursor of the next one."""
    seen = _Seen()
    page = tx.list_tasks(TaskFilter(), limit=_PAGE, cursor=cursor)
    for task in page.items:
        _look_at(tx, task, seen)
    return seen, page.next_cursor


def _look_at(tx: ReadTx, task: Task, seen: _Seen) -> None:
    history = History(accepted=[Accepted(task.id, task.total)], present={task.id: 0})
    open_run: str | None = None
    at: str | None = None
    while True:
        some = tx.list_runs(task.id, states=None, limit=_RUNS_PAGE, cursor=at)
        history.present[task.id] += len(some.items)
        for run in some.items:
            if run.state not in FINAL_STATES:
                open_run = open_run or run.id
            if len(seen.newest) < _OUTPUTS_MOST and _whole_output(run):
                seen.newest.append(run)
        begun = [attempt for run in some.items for attempt in _begun(tx, run)]
        seen.attempts += len(begun)
        # All attempts of a run are on one page, so what was begun twice shows there.
        history.begun = [Begun(task.id, attempt.run_id, attempt.attempt, 0.0) for attempt in begun]
        seen.findings += _begun_twice(history)
        at = some.next_cursor
        if at is None:
            break
    history.begun = []
    seen.tasks += 1
    seen.runs += history.present[task.id]
    seen.findings += check(history)
    if task.state in TASK_FINAL_STATES and open_run is not None:
        seen.findings.append(f"task {task.id} has ended, its run {open_run} has not")


def _begun(tx: ReadTx, run: Run) -> list[Attempt]:
    former = [attempt for attempt in tx.list_attempts(run.id) if not attempt.late] if run.attempt > 1 else []
    current = current_attempt(run)
    return former if current is None else [*former, current]


def _whole_output(run: Run) -> bool:
    """Whether the run's agent has told where its output ends, so that all of it must be accounted for."""
    return run.ending is not None and run.ending.outcome is not Outcome.LOST and run.ending.output_bytes > 0


def _output_of(store: OutputStore, run: Run) -> Output:
    kept: list[tuple[int, int]] = []
    offset = 0
    while True:
        piece = store.read(run.id, run.attempt, offset=offset)
        kept += [(start, length) for start, _, length in piece.segments]
        offset = piece.next_offset
        if offset >= piece.size:
            break
    size = run.ending.output_bytes if run.ending is not None else piece.size
    return Output(run.id, run.attempt, size, kept, piece.gaps)
