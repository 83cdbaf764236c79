"""The store's invariants, checked over everything that is stored; each finding is a sentence that names the record.

Only reads, from one snapshot; `muster verify` shows the answer, tests demand an empty one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from common.model import FINAL_STATES, HELD_STATES, TASK_FINAL_STATES, RunState, TaskState
from master import lifecycle
from master.store import rows, statements
from master.store.schema import COUNTED

SHOWN_MOST: Final = 20
"""Findings of one kind at most; one broken rule in a big store must not answer a million sentences."""

_FINAL: Final = ",".join(f"'{state.value}'" for state in sorted(FINAL_STATES))
_HELD: Final = ",".join(f"'{state.value}'" for state in sorted(HELD_STATES))


class _Script(msgspec.Struct):
    script_sha256: str


def findings(db: sqlite3.Connection) -> list[str]:
    """All broken invariants, a sentence each."""
    damage = list(_damage(db))
    if damage:
        return damage  # whatever else is asked of such a file may fail or mislead
    checks = (
        _counts, _totals, _task_states, _runs_of_tasks, _leases, _ends, _two_on_one_agent, _windows,
        _missing_offers, _spare_offers, _sets, _numbers, _scripts,
    )  # fmt: skip
    return [sentence for check in checks for sentence in islice(check(db), SHOWN_MOST)]


def _damage(db: sqlite3.Connection) -> Iterator[str]:
    try:
        for (text,) in db.execute(f"PRAGMA quick_check({SHOWN_MOST})"):
            if text != "ok":
                yield f"the database file is damaged: {text}"
    except sqlite3.DatabaseError as error:
        yield f"the database file is damaged: {error}"


def _counts(db: sqlite3.Connection) -> Iterator[str]:
    sums = ", ".join(f"sum(state = '{state.value}') AS s_{state.value}" for state in COUNTED)
    differ = " OR ".join(f"coalesce(s.s_{state.value}, 0) != t.n_{state.value}" for state in COUNTED)
    sql = (
        f"WITH s AS (SELECT seq, count(*) AS total, {sums} FROM runs WHERE task_id IS NOT NULL GROUP BY seq)"
        f" SELECT t.id FROM tasks t LEFT JOIN s ON s.seq = t.seq WHERE coalesce(s.total, 0) != t.total OR {differ}"
    )
    for (task_id,) in db.execute(sql):
        yield f"task {task_id}: its counts do not agree with the states of its runs"


def _totals(db: sqlite3.Connection) -> Iterator[str]:
    raw = db.execute("SELECT run_counts FROM meta").fetchone()[0]
    found = {RunState(state): number for state, number in db.execute("SELECT state, count(*) FROM runs GROUP BY state")}
    kept = rows.run_counts_from_blob(raw)
    if kept != found:
        yield f"the runs per state are {_listed(found)}, but the store counts {_listed(kept)}"

    tasks = {
        TaskState(state): number for state, number in db.execute("SELECT state, count(*) FROM tasks GROUP BY state")
    }
    stored = db.execute("SELECT state, number FROM task_counts WHERE number != 0")
    known = {TaskState(state): number for state, number in stored}
    if known != tasks:
        yield f"the tasks per state are {_listed(tasks)}, but the store counts {_listed(known)}"


def _listed(counts: Mapping[RunState, int] | Mapping[TaskState, int]) -> str:
    return ", ".join(f"{number} {state.value}" for state, number in sorted(counts.items())) or "none"


def _task_states(db: sqlite3.Connection) -> Iterator[str]:
    for row in db.execute(statements.TASK_SELECT):
        task = rows.task_from_row(row)
        due = lifecycle.task_state(task)
        if task.state is not due:
            yield f"task {task.id} is {task.state.value}, but its counts add up to {due.value}"
        elif (task.ended_at_ms is None) != (due not in TASK_FINAL_STATES):
            yield f"task {task.id} is {task.state.value}, but its end says otherwise"


def _runs_of_tasks(db: sqlite3.Connection) -> Iterator[str]:
    sql = (
        "SELECT r.id, r.task_id FROM runs r LEFT JOIN tasks t ON t.seq = r.seq"
        " WHERE r.task_id IS NOT NULL AND (t.id IS NOT r.task_id OR t.priority != r.priority)"
    )
    for run_id, task_id in db.execute(sql):
        yield f"run {run_id} does not fit its task {task_id}"


def _leases(db: sqlite3.Connection) -> Iterator[str]:
    sql = f"SELECT id, state FROM runs WHERE (state IN ({_HELD})) != (lease IS NOT NULL)"
    for run_id, state in db.execute(sql):
        yield f"run {run_id} is {state} and {'has no' if state in HELD_STATES else 'still has a'} lease"
    for run_id, state in db.execute(f"SELECT id, state FROM runs WHERE state IN ({_HELD}) AND agent_id IS NULL"):
        yield f"run {run_id} is {state}, but nobody holds it"
    twice = f"SELECT min(id), max(id) FROM runs WHERE state IN ({_HELD}) GROUP BY lease HAVING count(*) > 1"
    for first, last in db.execute(twice):
        yield f"runs {first} and {last} are held under one lease"


def _ends(db: sqlite3.Connection) -> Iterator[str]:
    for run_id, state in db.execute(
        f"SELECT id, state FROM runs WHERE (state IN ({_FINAL})) != (ended_at_ms IS NOT NULL)"
    ):
        yield f"run {run_id} is {state}, but its end says otherwise"
    sql = (
        "SELECT id, state FROM runs WHERE (state = 'running' AND (fence IS NULL OR started_at_ms IS NULL))"
        " OR (state = 'delayed') != (due_engine_s IS NOT NULL)"
    )
    for run_id, state in db.execute(sql):
        yield f"run {run_id} is {state} without what belongs to that state"


def _two_on_one_agent(db: sqlite3.Connection) -> Iterator[str]:
    sql = (
        "SELECT min(id), max(id), agent_id FROM runs WHERE agent_id IS NOT NULL AND task_id IS NOT NULL"
        " GROUP BY agent_id, seq HAVING count(*) > 1"
    )
    for first, last, agent_id in db.execute(sql):
        yield f"runs {first} and {last} of one task are both on agent {agent_id}"


def _windows(db: sqlite3.Connection) -> Iterator[str]:
    held = "n_leased + n_running"
    for task_id, number, parallel in db.execute(
        f"SELECT id, {held}, parallel FROM tasks WHERE parallel > 0 AND {held} > parallel"
    ):
        yield f"task {task_id}: {number} runs are held, its window allows {parallel}"
    sql = (
        "SELECT id FROM tasks WHERE offered = 0 AND n_ready > 0 AND NOT paused AND NOT stopped"
        f" AND NOT cancel_requested AND (parallel = 0 OR {held} < parallel)"
    )
    for (task_id,) in db.execute(sql):
        yield f"task {task_id} has room, but its ready runs are not offered"


_READY_SCOPES: Final = (
    "SELECT DISTINCT CASE WHEN r.addressed THEN 'a:' || r.agent_id ELSE t.scope END AS scope, r.seq AS seq"
    " FROM runs r JOIN tasks t ON t.seq = r.seq WHERE r.state = 'ready' AND r.task_id IS NOT NULL"
)


def _missing_offers(db: sqlite3.Connection) -> Iterator[str]:
    sql = f"{_READY_SCOPES} EXCEPT SELECT scope, seq FROM offers EXCEPT SELECT scope, seq FROM withdrawn"
    yield from _about_offers(db, db.execute(sql), "has a ready run that nobody is offered")
    sql = "SELECT w.scope, w.seq FROM withdrawn w JOIN tasks t ON t.seq = w.seq WHERE t.offered AND t.n_ready > 0"
    yield from _about_offers(db, db.execute(sql), "is open, but one of its offers is withdrawn")


def _spare_offers(db: sqlite3.Connection) -> Iterator[str]:
    for table in ("offers", "withdrawn"):
        sql = f"SELECT scope, seq FROM {table} EXCEPT {_READY_SCOPES}"
        yield from _about_offers(db, db.execute(sql), "is offered without a ready run")
    both = "SELECT scope, seq FROM offers INTERSECT SELECT scope, seq FROM withdrawn"
    yield from _about_offers(db, db.execute(both), "is offered and withdrawn at once")
    sql = (
        "SELECT o.scope, o.seq FROM offers o JOIN tasks t ON t.seq = o.seq"
        " WHERE t.id != o.task_id OR t.priority != o.priority"
    )
    yield from _about_offers(db, db.execute(sql), "does not fit its offer")


def _about_offers(db: sqlite3.Connection, found: Iterable[tuple[str, int]], what: str) -> Iterator[str]:
    for scope, seq in found:
        row = db.execute("SELECT id FROM tasks WHERE seq = ?", (seq,)).fetchone()
        yield f"task {row[0] if row else f'number {seq}'} {what} (scope {scope})"


def _sets(db: sqlite3.Connection) -> Iterator[str]:
    sql = (
        "SELECT s.scope FROM sets s WHERE s.waiting != (SELECT count(*) FROM offers o WHERE o.scope = s.scope)"
        " + (SELECT count(*) FROM withdrawn w WHERE w.scope = s.scope)"
    )
    # Only sets with rows are looked into closely: there may be one set per task, and most are long done.
    sql += " AND (s.waiting != 0 OR s.scope IN (SELECT scope FROM offers) OR s.scope IN (SELECT scope FROM withdrawn))"
    for (scope,) in db.execute(sql):
        yield f"set {scope} miscounts its offers"
    sql = (
        "SELECT DISTINCT m.scope FROM set_members m LEFT JOIN sets s ON s.scope = m.scope"
        " WHERE coalesce(s.waiting, 0) = 0"
    )
    for (scope,) in db.execute(sql):
        yield f"set {scope} has members listed, but no offers"
    sql = (
        "SELECT DISTINCT m.scope, m.agent_id FROM set_members m"
        " JOIN offers o ON o.scope = m.scope AND (o.priority, o.seq) < (m.priority, m.seq)"
        " WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.agent_id = m.agent_id AND r.seq = o.seq)"
    )
    for scope, agent_id in db.execute(sql):
        yield f"set {scope} hides an offer from its member {agent_id}"
    enrolled = {row[0] for row in db.execute("SELECT id FROM agents")}
    for scope, members in db.execute("SELECT scope, members FROM sets WHERE waiting > 0"):
        listed = {row[0] for row in db.execute("SELECT agent_id FROM set_members WHERE scope = ?", (scope,))}
        missing = sorted(enrolled.intersection(msgspec.msgpack.decode(members, type=list[str])) - listed)
        if missing:
            yield f"set {scope} is not offered to its member {missing[0]}"


def _numbers(db: sqlite3.Connection) -> Iterator[str]:
    sql = (
        "SELECT (SELECT coalesce(max(seq), 0) FROM tasks) <= submit_seq,"
        " (SELECT coalesce(max(seq), 0) FROM events) <= event_seq,"
        " (SELECT coalesce(max(fence), 0) FROM runs) <= commit_seq FROM meta"
    )
    names = ("a task's number", "a change's number", "a fence")
    for name, right in zip(names, db.execute(sql).fetchone(), strict=True):
        if not right:
            yield f"{name} is larger than the counter it was taken from"


def _scripts(db: sqlite3.Connection) -> Iterator[str]:
    for (task_id,) in db.execute("SELECT t.id FROM tasks t LEFT JOIN specs s ON s.seq = t.seq WHERE s.seq IS NULL"):
        yield f"task {task_id} has no spec"
    stored = {row[0] for row in db.execute("SELECT sha256 FROM blobs")}
    decode = msgspec.msgpack.Decoder(_Script).decode
    for task_id, raw in db.execute("SELECT t.id, s.spec FROM specs s JOIN tasks t ON t.seq = s.seq"):
        if decode(raw).script_sha256 not in stored:
            yield f"task {task_id}: its script is not stored"
