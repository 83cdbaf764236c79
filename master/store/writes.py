"""Tasks and runs, to be changed: each save checks the version read before and keeps counts and offers in step.

`Counters` is what the writer remembers beside the database: numbers that never go back, the runs per state, and the
engine clock's mark; every commit stores them.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable

from common import wire
from common.errors import Conflict, VersionConflict
from common.model import Attempt, Run, RunState, Task, TaskSpec, TaskState
from master.store import rows, statements
from master.store.findings import findings
from master.store.fleet import FleetReads, FleetWrites
from master.store.lists import TaskLists
from master.store.offers import OfferReads, OfferWrites, set_scope
from master.store.overview import OverviewReads
from master.store.passed import Passed
from master.store.reads import RunReads, TaskReads, Tx

Mark = Callable[[], tuple[float, int]]
"""Reads the engine clock (seconds) and the wall clock (milliseconds); called in the writer thread."""


class Verifies(Tx):
    """The invariants."""

    __slots__ = ()

    def findings(self) -> list[str]:
        """See `ReadTx.findings`."""
        return findings(self.db)


class SqliteReadTx(TaskReads, TaskLists, OverviewReads, RunReads, OfferReads, FleetReads, Verifies):
    """A snapshot."""

    __slots__ = ()


class Counters:
    """The writer's memory; a `writer.Ledger`."""

    def __init__(self, mark: Mark | None) -> None:
        self._mark = mark
        self.commit_seq = 0
        self.submit_seq = 0
        self.event_seq = 0
        self.engine_s = 0.0
        self.wall_ms = 0
        self.run_counts: dict[RunState, int] = {}
        self._batch_counts: dict[RunState, int] = {}
        self._batch_tasks: Counter[TaskState] = Counter()
        self.passed = Passed()

    def load(self, db: sqlite3.Connection) -> None:
        """Take over what the last commit stored."""
        row = db.execute(statements.META).fetchone()
        # Numbers given to closures whose commit failed may be known outside: they are not given again.
        self.commit_seq = max(self.commit_seq, row[0])
        self.submit_seq = max(self.submit_seq, row[1])
        self.event_seq = max(self.event_seq, row[2])
        self.engine_s, self.wall_ms = row[3], row[4]
        self.run_counts = rows.run_counts_from_blob(row[5])
        self.passed.forget()

    def now_ms(self) -> int:
        """Wall time for rows that are trimmed by age: the clock's, else that of the last mark."""
        return self.wall_ms if self._mark is None else self._mark()[1]

    def open_tx(self, db: sqlite3.Connection) -> SqliteWriteTx:
        """See `writer.Ledger`."""
        self.commit_seq += 1
        return SqliteWriteTx(db, self)

    def keep(self, tx: SqliteWriteTx) -> None:
        """See `writer.Ledger`."""
        for state, number in tx.counted.items():
            self._batch_counts[state] = self._batch_counts.get(state, 0) + number
        self._batch_tasks.update(tx.counted_tasks)
        tx.keep_spans()

    def seal(self, db: sqlite3.Connection) -> None:
        """See `writer.Ledger`."""
        if self._mark is not None:
            self.engine_s, self.wall_ms = self._mark()
        sums = dict(self.run_counts)
        for state, number in self._batch_counts.items():
            sums[state] = sums.get(state, 0) + number
        values = (self.commit_seq, self.submit_seq, self.event_seq, self.engine_s, self.wall_ms)
        db.execute(statements.SEAL, (*values, rows.run_counts_blob(sums)))
        changed = [(state.value, number) for state, number in self._batch_tasks.items() if number]
        if changed:
            db.executemany(statements.COUNT_TASKS, changed)

    def committed(self) -> None:
        """See `writer.Ledger`."""
        for state, number in self._batch_counts.items():
            self.run_counts[state] = self.run_counts.get(state, 0) + number
        self._batch_counts.clear()
        self._batch_tasks.clear()

    def undone(self) -> None:
        """See `writer.Ledger`."""
        self._batch_counts.clear()
        self._batch_tasks.clear()
        self.passed.forget()


class SqliteWriteTx(TaskReads, TaskLists, OverviewReads, RunReads, OfferWrites, FleetWrites, Verifies):
    """A transaction that may change things; lives for one closure."""

    __slots__ = ("_commit_seq", "_counters", "_runs", "_tasks", "counted", "counted_tasks")

    def __init__(self, db: sqlite3.Connection, counters: Counters) -> None:
        super().__init__(db, counters.passed)
        self._counters = counters
        self._commit_seq = counters.commit_seq
        # What is stored now of the records this transaction has met; a save need not look them up again.
        self._tasks: dict[str, tuple[Task, str | None]] = {}
        self._runs: dict[str, tuple[Run, int]] = {}
        self.counted: dict[RunState, int] = {}
        self.counted_tasks: Counter[TaskState] = Counter()

    @property
    def commit_seq(self) -> int:
        """See `WriteTx.commit_seq`."""
        return self._commit_seq

    def next_seq(self) -> int:
        """See `WriteTx.next_seq`."""
        self._counters.submit_seq += 1
        return self._counters.submit_seq

    def set_engine_mark(self, engine_s: float, wall_ms: int) -> None:
        """See `WriteTx.set_engine_mark`; a store that was given a clock takes the clock's own mark at the commit."""
        self._counters.engine_s, self._counters.wall_ms = engine_s, wall_ms
        self.db.execute("UPDATE meta SET engine_s = ?, wall_ms = ?", (engine_s, wall_ms))

    def get_task(self, task_id: str) -> Task | None:
        """See `ReadTx.get_task`."""
        known = self._task(task_id)
        return None if known is None else known[0]

    def _task(self, task_id: str) -> tuple[Task, str | None] | None:
        known = self._tasks.get(task_id)
        if known is None:
            row = self.one(statements.GET_TASK, task_id)
            if row is None:
                return None
            known = self._tasks[task_id] = (rows.task_from_row(row), row[rows.SCOPE])
        return known

    def _seq_and_scope(self, task_id: str) -> tuple[int, str | None] | None:
        known = self._task(task_id)
        return None if known is None else (known[0].seq, known[1])

    def get_run(self, run_id: str) -> Run | None:
        """See `ReadTx.get_run`."""
        known = self._runs.get(run_id)
        return super().get_run(run_id) if known is None else known[0]

    def run_of(self, row: rows.Row) -> Run:
        """The run of a row, remembered with the row's number: saving it then needs no index."""
        run = super().run_of(row)
        self._runs[run.id] = (run, row[-1])
        return run

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
        """See `WriteTx.add_task`; an id, number or key that is stored already raises `Conflict`."""
        runs = list(runs)
        scope = None
        if any(not run.addressed for run in runs):
            scope = f"q:{task.queue}" if candidates is None else set_scope(task.queue, candidates)
        if scope is not None and candidates is not None:
            self.add_set(scope, task.queue, candidates)
        try:
            self.db.execute(statements.ADD_TASK, rows.new_task_row(task, scope))
            self.db.execute(statements.ADD_SPEC, (task.seq, wire.pack(spec), idempotency_key, body_sha256))
            self.db.executemany(statements.ADD_RUN, [rows.new_run_row(run) for run in runs])
        except sqlite3.IntegrityError as error:
            raise Conflict(f"task {task.id} cannot be added, it or its key is stored already ({error})") from error
        self.add_offers(runs, task_id=task.id, scope=scope, offered=task.offered)
        self._tasks[task.id] = (task, scope)
        self._counters.submit_seq = max(self._counters.submit_seq, task.seq)
        self.counted_tasks[task.state] += 1
        for run in runs:
            self.counted[run.state] = self.counted.get(run.state, 0) + 1

    def save_task(self, task: Task, *, expect: int) -> None:
        """See `WriteTx.save_task`; what is fixed at submit (script, targets, limits, priority) is not written again."""
        known = self._task(task.id)
        if known is not None and known[0].state is task.state:
            sql, values = statements.COUNT_TASK, rows.moving_task_row(task)
        else:
            sql, values = statements.MOVE_TASK, (task.state.value, *rows.moving_task_row(task))
        if known is None or self.db.execute(sql, (*values, known[0].seq, expect)).rowcount != 1:
            raise VersionConflict(f"task {task.id} was changed by somebody else or is gone: read it again")
        if known[0].state is not task.state:
            self.counted_tasks[known[0].state] -= 1
            self.counted_tasks[task.state] += 1
        self._tasks[task.id] = (task, known[1])

    def save_run(self, run: Run, *, expect: int) -> None:
        """See `WriteTx.save_run`."""
        before = self.get_run(run.id)
        if before is None:
            raise VersionConflict(f"run {run.id} is gone: read it again")
        num = self._runs[run.id][1]
        values = rows.moving_run_row(run)
        if before.agent_id == run.agent_id:
            cursor = self.db.execute(statements.MOVE_RUN, (*values, num, expect))
        else:
            cursor = self.db.execute(statements.MOVE_RUN_AND_AGENT, (*values, run.agent_id, num, expect))
        if cursor.rowcount != 1:
            raise VersionConflict(f"run {run.id} was changed by somebody else: read it again")
        self._runs[run.id] = (run, num)
        if before.state is not run.state:
            self.counted[before.state] = self.counted.get(before.state, 0) - 1
            self.counted[run.state] = self.counted.get(run.state, 0) + 1
        if before.state is not run.state or before.agent_id != run.agent_id:
            self._keep_offers_in_step(before, run)

    def _keep_offers_in_step(self, before: Run, run: Run) -> None:
        if run.task_id is None:
            return
        left = before.agent_id is not None and run.agent_id is None
        if not left and RunState.READY not in (before.state, run.state):
            return
        known = self._task(run.task_id)
        if known is None:
            raise VersionConflict(f"task {run.task_id} of run {run.id} is gone: read it again")
        task, scope = known
        if left and scope is not None:
            self.given_back(before, scope=scope)
        if before.state is RunState.READY:
            self.take_offer(before, scope=scope)
        if run.state is RunState.READY:
            self.make_offer(run, scope=scope, offered=task.offered)

    def add_attempt(self, attempt: Attempt) -> None:
        """See `WriteTx.add_attempt`; a repeat (same run, attempt and lateness) does nothing."""
        self.db.execute(statements.ADD_ATTEMPT, rows.attempt_row(attempt))

    def append_event(self, kind: str, *, task_id: str | None, run_id: str | None, end_offset: int | None = None) -> int:
        """See `WriteTx.append_event`."""
        counters = self._counters
        counters.event_seq += 1
        self.db.execute(statements.ADD_EVENT, (counters.event_seq, kind, task_id, run_id, end_offset, counters.wall_ms))
        return counters.event_seq

    def forget_agent(self, agent_id: str) -> None:
        """See `WriteTx.forget_agent`."""
        self.db.execute("DELETE FROM offers WHERE scope = ?", (f"a:{agent_id}",))
        self.db.execute("DELETE FROM set_members WHERE agent_id = ?", (agent_id,))
        self.db.execute("DELETE FROM trusted_keys WHERE agent_id = ?", (agent_id,))
        self.db.execute("DELETE FROM agents WHERE id = ?", (agent_id,))
