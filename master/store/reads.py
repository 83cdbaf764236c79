"""Tasks and runs as a snapshot shows them: single records by the hot statements, a task's runs by cursor.

A cursor is the number of the last row seen; runs come in the order they were added, so a page stays right while rows
come in. Lists of tasks are in `master.store.lists`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from common import wire
from common.errors import InvalidRequest
from common.model import Attempt, Run, RunState, Task, TaskSpec
from master.store import rows, statements
from master.store.base import Page

T = TypeVar("T")

AFTER_PREFIX = "\U0010ffff"  # sorts behind every text that goes on from a prefix


def marks(number: int) -> str:
    """Places for `number` values of an IN list."""
    return ",".join("?" * number)


class Tx:
    """A transaction on one connection."""

    __slots__ = ("db",)

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def one(self, sql: str, *values: Any) -> Any | None:
        """The first row, or None."""
        return self.db.execute(sql, values).fetchone()

    def all(self, sql: str, *values: Any) -> list[Any]:
        """All rows."""
        return self.db.execute(sql, values).fetchall()

    def runs(self, where: str, values: Sequence[Any]) -> list[Run]:
        """Runs by the rest of a SELECT."""
        return [self.run_of(row) for row in self.db.execute(f"{statements.RUN_SELECT} {where}", values)]

    def run_of(self, row: rows.Row) -> Run:
        """The run of a row that a run statement found."""
        return rows.run_from_row(row)


def number_of(cursor: str | None, *, missing: int) -> int:
    """The number that a cursor is; raises `InvalidRequest` for one that is none."""
    if cursor is None:
        return missing
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidRequest.of("cursor", "this is no cursor of a list: leave it out to begin anew")
    return int(cursor)


class TaskReads(Tx):
    """Tasks."""

    __slots__ = ()

    def get_task(self, task_id: str) -> Task | None:
        """See `ReadTx.get_task`."""
        row = self.one(statements.GET_TASK, task_id)
        return None if row is None else rows.task_from_row(row)

    def find_task_ids(self, prefix: str, *, limit: int = 2) -> list[str]:
        """See `ReadTx.find_task_ids`."""
        sql = "SELECT id FROM tasks WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        return [row[0] for row in self.all(sql, prefix, prefix + AFTER_PREFIX, limit)]

    def get_spec(self, task_id: str) -> TaskSpec | None:
        """See `ReadTx.get_spec`."""
        raw = self.get_spec_raw(task_id)
        return None if raw is None else wire.unpack(TaskSpec, raw)

    def get_spec_raw(self, task_id: str) -> bytes | None:
        """See `ReadTx.get_spec_raw`."""
        row = self.one(statements.GET_SPEC, task_id)
        return None if row is None else row[0]

    def task_by_idempotency_key(self, key: str) -> tuple[str, str] | None:
        """See `ReadTx.task_by_idempotency_key`."""
        return self.one(statements.TASK_OF_KEY, key)

    def oldest_ready_ms(self) -> dict[str, int]:
        """See `ReadTx.oldest_ready_ms`."""
        # INDEXED BY: the partial index holds waiting tasks only, and without statistics the planner cannot know.
        sql = "SELECT queue, min(created_at_ms) FROM tasks INDEXED BY tasks_ready WHERE n_ready > 0 GROUP BY queue"
        return dict(self.all(sql))


class RunReads(Tx):
    """Runs and their former attempts."""

    __slots__ = ()

    def get_run(self, run_id: str) -> Run | None:
        """See `ReadTx.get_run`."""
        row = self.one(statements.GET_RUN, run_id)
        return None if row is None else self.run_of(row)

    def find_run_ids(self, prefix: str, *, limit: int = 2) -> list[str]:
        """See `ReadTx.find_run_ids`."""
        sql = "SELECT id FROM runs WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        return [row[0] for row in self.all(sql, prefix, prefix + AFTER_PREFIX, limit)]

    def list_runs(
        self,
        task_id: str,
        *,
        states: Collection[RunState] | None,
        limit: int,
        cursor: str | None,
        agents: Collection[str] | None = None,
    ) -> Page[Run]:
        """See `ReadTx.list_runs`; in the order they were added."""
        wanted = "" if states is None else f" AND state IN ({marks(len(states))})"
        values: list[Any] = [task_id, number_of(cursor, missing=0), *(states or ())]
        if agents is not None:
            # As one value: a fleet has more agents than a statement may have places.
            wanted += " AND agent_id IN (SELECT value FROM json_each(?))"
            values.append(json.dumps(list(agents)))
        sql = f"SELECT num FROM runs WHERE seq = {_SEQ_OF} AND num > ?{wanted} ORDER BY num LIMIT ?"
        nums = [row[0] for row in self.all(sql, *values, limit + 1)]
        page = nums[:limit]
        items = self.runs(f"WHERE num IN ({marks(len(page))}) ORDER BY num", page)
        return Page(items=items, next_cursor=str(page[-1]) if len(nums) > limit else None)

    def runs_in(self, task_id: str, states: Collection[RunState]) -> list[Run]:
        """See `ReadTx.runs_in`."""
        where = f"WHERE seq = {_SEQ_OF} AND state IN ({marks(len(states))}) ORDER BY id"
        return self.runs(where, (task_id, *states))

    def runs_held(self, agent_id: str | None = None) -> list[Run]:
        """See `ReadTx.runs_held`."""
        held = "state IN ('leased', 'running')"
        if agent_id is None:
            return self.runs(f"INDEXED BY runs_held WHERE {held} ORDER BY num", ())
        return self.runs(f"INDEXED BY runs_held WHERE {held} AND agent_id = ? ORDER BY num", (agent_id,))

    def runs_of_agent(
        self, agent_id: str, *, states: Collection[RunState] | None = None, limit: int, cursor: str | None = None
    ) -> Page[Run]:
        """See `ReadTx.runs_of_agent`; a cursor is `SEQ.NUM` of the last run of the page before."""
        task, _, number = ("" if cursor is None else cursor).partition(".")
        before = [] if cursor is None else [number_of(task, missing=0), number_of(number, missing=0)]
        clauses = ["agent_id = ?", *(["(seq, num) < (?, ?)"] if before else [])]
        if states is not None:
            clauses.append(f"state IN ({marks(len(states))})")
        where = f"WHERE {' AND '.join(clauses)} ORDER BY seq DESC, num DESC LIMIT ?"
        # Chosen by hand: an agent has few of all runs, a state may have most of them.
        sql = f"SELECT seq, num FROM runs INDEXED BY runs_agent {where}"
        found = self.all(sql, agent_id, *before, *(states or ()), limit + 1)
        page = [row[1] for row in found[:limit]]
        items = self.runs(f"WHERE num IN ({marks(len(page))}) ORDER BY seq DESC, num DESC", page)
        last = found[limit - 1] if len(found) > limit else None
        return Page(items=items, next_cursor=None if last is None else f"{last[0]}.{last[1]}")

    def open_runs_of_agent(self, agent_id: str, *, limit: int) -> list[Run]:
        """See `ReadTx.open_runs_of_agent`."""
        scope = f"a:{agent_id}"
        sql = (
            "SELECT num FROM runs INDEXED BY runs_held WHERE state IN ('leased', 'running') AND agent_id = ?"
            " UNION SELECT r.num FROM offers o JOIN runs r ON r.seq = o.seq AND r.agent_id = ? WHERE o.scope = ?"
            " UNION SELECT r.num FROM withdrawn w JOIN runs r ON r.seq = w.seq AND r.agent_id = ? WHERE w.scope = ?"
            " UNION SELECT num FROM runs INDEXED BY runs_due WHERE state = 'delayed' AND agent_id = ?"
            # A closed task: what became ready since (released, reopened) has no row of offers yet.
            " UNION SELECT r.num FROM tasks t INDEXED BY tasks_state CROSS JOIN runs r ON r.seq = t.seq"
            " AND r.agent_id = ? WHERE t.state IN ('waiting', 'running') AND NOT t.offered AND r.state = 'ready'"
            " ORDER BY num LIMIT ?"
        )
        # What has ended long ago is not looked at: an agent of years has a hundred thousand such runs.
        nums = [row[0] for row in self.all(sql, agent_id, agent_id, scope, agent_id, scope, agent_id, agent_id, limit)]
        return self.runs(f"WHERE num IN ({marks(len(nums))}) ORDER BY num", nums)

    def list_attempts(self, run_id: str) -> list[Attempt]:
        """See `ReadTx.list_attempts`."""
        sql = f"SELECT {', '.join(statements.ATTEMPT_COLUMNS)} FROM attempts WHERE run_id = ? ORDER BY attempt, num"
        return [rows.attempt_from_row(row) for row in self.all(sql, run_id)]

    def due(self, engine_s: float, *, limit: int) -> list[Run]:
        """See `ReadTx.due`; longest overdue first."""
        where = "INDEXED BY runs_due WHERE state = 'delayed' AND due_engine_s <= ? ORDER BY due_engine_s LIMIT ?"
        return self.runs(where, (engine_s, limit))

    def expired(self, engine_s: float, *, limit: int) -> list[Run]:
        """See `ReadTx.expired`; longest overdue first."""
        where = (
            "INDEXED BY runs_expiring WHERE state = 'ready' AND expires_engine_s IS NOT NULL"
            " AND expires_engine_s <= ? ORDER BY expires_engine_s LIMIT ?"
        )
        return self.runs(where, (engine_s, limit))

    def next_deadline(self) -> float | None:
        """See `ReadTx.next_deadline`."""
        due = self.one("SELECT min(due_engine_s) FROM runs WHERE state = 'delayed'")
        expiring = self.one(
            "SELECT min(expires_engine_s) FROM runs WHERE state = 'ready' AND expires_engine_s IS NOT NULL"
        )
        times = [row[0] for row in (due, expiring) if row is not None and row[0] is not None]
        return min(times, default=None)

    def count_runs(self) -> dict[RunState, int]:
        """See `ReadTx.count_runs`."""
        row = self.one("SELECT run_counts FROM meta")
        return {} if row is None else rows.run_counts_from_blob(row[0])


_SEQ_OF = "(SELECT t.seq FROM tasks t WHERE t.id = ?)"
