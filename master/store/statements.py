"""The hot statements, compiled once from the tables to SQL text with `?` places for the raw driver.

The places come in the order named in each comment; an insert takes the table's columns in order.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Table, and_, bindparam, delete, exists, insert, literal_column, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.expression import ClauseElement

from master.store import schema as t
from master.store.passed import NOWHERE

_dialect = sqlite.dialect(paramstyle="qmark")


def sql(statement: ClauseElement, *, places: tuple[str, ...] | None = None) -> str:
    """The statement as text; `places`, when given, are the names its `?` must stand for, in order."""
    compiled = statement.compile(dialect=_dialect)
    names = tuple(getattr(compiled, "positiontup", None) or ())
    if places is not None and names != places:
        raise AssertionError(f"{compiled}: takes {names}, not {places}")
    return str(compiled)


def columns(table: Table, *names: str) -> list[ColumnElement[object]]:
    """These columns of a table, in this order."""
    return [table.c[name] for name in names]


def p(name: str) -> ColumnElement[object]:
    """A place for a value."""
    return bindparam(name)


def _insert(table: Table, *, ignore: bool = False) -> str:
    statement = insert(table)
    return sql(statement.prefix_with("OR IGNORE") if ignore else statement)


COUNT_COLUMNS: Final = tuple(f"n_{state.value}" for state in t.COUNTED)
TASK_COLUMNS: Final = (
    "seq", "id", "name", "state", "total", "priority", "parallel", "fail_count", "fail_rate", "on_stop", "queue",
    "count", "lost_after_s", "paused", "stopped", "cancel_requested", "reason", "offered", "created_at_ms",
    "started_at_ms", "ended_at_ms", "submitted_by", "version", *COUNT_COLUMNS, "scope",
)  # fmt: skip
TASK_MOVING: Final = (
    "paused", "stopped", "cancel_requested", "reason", "offered", "started_at_ms", "ended_at_ms", "version",
    *COUNT_COLUMNS,
)  # fmt: skip
"""What changes in a task that keeps its state; leaving `state` out spares its index."""
RUN_COLUMNS: Final = tuple(column.name for column in t.runs.columns if column.name != "num")
RUN_MOVING: Final = (
    "state", "attempt", "lease", "fence", "cancel_reason", "due_engine_s", "expires_engine_s", "claimed_at_ms",
    "started_at_ms", "ended_at_ms", "silent_since_ms", "ending", "version", "course",
)  # fmt: skip
"""What changes in a run that stays with its agent, or with none; leaving `agent_id` out spares its index."""
ATTEMPT_COLUMNS: Final = tuple(column.name for column in t.attempts.columns if column.name != "num")

_task = select(*columns(t.tasks, *TASK_COLUMNS))
_run = select(*columns(t.runs, *RUN_COLUMNS), t.runs.c.num)
_seq_of_task = select(t.tasks.c.seq).where(t.tasks.c.id == p("task_id")).scalar_subquery()


def _update(table: Table, key: str, moving: tuple[str, ...]) -> str:
    statement = (
        update(table)
        .where(table.c[key] == bindparam("the_key"), table.c.version == bindparam("expected"))
        .ordered_values(*((table.c[name], bindparam(f"new_{name}")) for name in moving))
    )
    return sql(statement, places=(*(f"new_{name}" for name in moving), "the_key", "expected"))


# --- tasks
GET_TASK: Final = sql(_task.where(t.tasks.c.id == p("id")))
TASK_SELECT: Final = sql(_task)
ADD_TASK: Final = sql(insert(t.tasks))
ADD_SPEC: Final = sql(insert(t.specs))
MOVE_TASK: Final = _update(t.tasks, "seq", ("state", *TASK_MOVING))
COUNT_TASK: Final = _update(t.tasks, "seq", TASK_MOVING)
GET_SPEC: Final = sql(select(t.specs.c.spec).where(t.specs.c.seq == _seq_of_task))
TASK_OF_KEY: Final = sql(
    select(t.tasks.c.id, t.specs.c.body_sha256)
    .join(t.specs, t.specs.c.seq == t.tasks.c.seq)
    .where(t.specs.c.idempotency_key == p("key"))
)
# state, by how many there are more
COUNT_TASKS: Final = (
    f"{_insert(t.task_counts)} ON CONFLICT (state) DO UPDATE SET number = task_counts.number + excluded.number"
)

# --- runs
GET_RUN: Final = sql(_run.where(t.runs.c.id == p("id")))
RUN_SELECT: Final = sql(_run)
ADD_RUN: Final = sql(insert(t.runs).values({name: bindparam(name) for name in RUN_COLUMNS}), places=RUN_COLUMNS)
MOVE_RUN: Final = _update(t.runs, "num", RUN_MOVING)
MOVE_RUN_AND_AGENT: Final = _update(t.runs, "num", (*RUN_MOVING, "agent_id"))
RUNS_OF_AGENT_IN_TASK: Final = sql(
    _run.where(t.runs.c.agent_id == p("agent_id"), t.runs.c.seq == p("seq")), places=("agent_id", "seq")
)
FREE_RUN: Final = sql(
    _run.where(
        t.runs.c.seq == p("seq"), t.runs.c.state == literal_column("'ready'"), t.runs.c.agent_id.is_(None)
    ).order_by(t.runs.c.num)
) + " LIMIT 1"  # fmt: skip
ANY_FREE_RUN: Final = sql(
    select(literal_column("1"))
    .select_from(t.runs)
    .where(t.runs.c.seq == p("seq"), t.runs.c.state == literal_column("'ready'"), t.runs.c.agent_id.is_(None))
) + " LIMIT 1"  # fmt: skip
ADD_ATTEMPT: Final = sql(
    insert(t.attempts).prefix_with("OR IGNORE").values({name: bindparam(name) for name in ATTEMPT_COLUMNS}),
    places=ATTEMPT_COLUMNS,
)

# --- offers
_offer = select(t.offers.c.scope, t.offers.c.priority, t.offers.c.seq, t.offers.c.task_id)
_in_order = (t.offers.c.priority, t.offers.c.seq)
# scope, then how many
OFFERS_OF_SCOPE: Final = sql(_offer.where(t.offers.c.scope == p("scope")).order_by(*_in_order)) + " LIMIT ?"
ADD_OFFER: Final = _insert(t.offers, ignore=True)
_same_offer = and_(t.offers.c.scope == p("scope"), t.offers.c.priority == p("priority"), t.offers.c.seq == p("seq"))
DROP_OFFER: Final = sql(delete(t.offers).where(_same_offer), places=("scope", "priority", "seq"))
HAS_OFFER: Final = sql(
    select(literal_column("1")).select_from(t.offers).where(_same_offer), places=("scope", "priority", "seq")
)
# the scope before; the next one that has something, and its first offer
NEXT_QUEUE_HEAD: Final = sql(
    select(*columns(t.offers, "scope", "priority", "seq"))
    .where(t.offers.c.scope > p("after"), t.offers.c.scope < literal_column("'q;'"))
    .order_by(t.offers.c.scope, *_in_order)
) + " LIMIT 1"  # fmt: skip
ADD_WITHDRAWN: Final = _insert(t.withdrawn, ignore=True)
DROP_WITHDRAWN: Final = sql(
    delete(t.withdrawn).where(t.withdrawn.c.seq == p("seq"), t.withdrawn.c.scope == p("scope")), places=("seq", "scope")
)
WITHDRAWN_SCOPES: Final = sql(select(t.withdrawn.c.scope).where(t.withdrawn.c.seq == p("seq")))
REOFFER: Final = sql(
    insert(t.offers)
    .prefix_with("OR IGNORE")
    .from_select(
        ["scope", "priority", "seq", "task_id"],
        select(t.withdrawn.c.scope, t.tasks.c.priority, t.tasks.c.seq, t.tasks.c.id)
        .join(t.tasks, t.tasks.c.seq == t.withdrawn.c.seq)
        .where(t.withdrawn.c.seq == p("seq")),
    )
)
CLEAR_WITHDRAWN: Final = sql(delete(t.withdrawn).where(t.withdrawn.c.seq == p("seq")))
# agent, the place to begin after, how many; sets that hold nothing for the agent are left out
SETS_OF_AGENT: Final = (
    sql(
        select(*columns(t.set_members, "scope", "priority", "seq", "queue")).where(
            t.set_members.c.agent_id == p("agent_id"), t.set_members.c.priority < literal_column(str(NOWHERE[0]))
        )
    )
    + " AND (set_members.priority, set_members.seq) > (?, ?) ORDER BY set_members.priority, set_members.seq LIMIT ?"
)
RAISE_SET: Final = "UPDATE set_members SET priority = ?, seq = ? WHERE agent_id = ? AND scope = ?"
LOWER_SET: Final = "UPDATE set_members SET priority = ?, seq = ? WHERE scope = ? AND (priority, seq) > (?, ?)"
LOWER_SET_FOR: Final = f"{RAISE_SET} AND (priority, seq) > (?, ?)"
ADD_SET: Final = _insert(t.sets, ignore=True)
GET_SET: Final = sql(select(t.sets.c.queue, t.sets.c.members, t.sets.c.waiting).where(t.sets.c.scope == p("scope")))
SET_WAITING: Final = sql(
    update(t.sets).where(t.sets.c.scope == bindparam("the_scope")).values(waiting=bindparam("number")),
    places=("number", "the_scope"),
)
ADD_MEMBER: Final = _insert(t.set_members, ignore=True)
DROP_MEMBERS: Final = sql(delete(t.set_members).where(t.set_members.c.scope == p("scope")))
IS_MEMBER: Final = sql(
    select(literal_column("1"))
    .select_from(t.set_members)
    .where(t.set_members.c.agent_id == p("agent_id"), t.set_members.c.scope == p("scope")),
    places=("agent_id", "scope"),
)
# agent, scope, priority and seq to begin after, how many; the last column is 1 when the agent has a run of the task
OFFERS_WITH_MINE: Final = (
    sql(
        select(
            t.offers.c.scope,
            t.offers.c.priority,
            t.offers.c.seq,
            t.offers.c.task_id,
            exists().where(t.runs.c.agent_id == p("agent_id"), t.runs.c.seq == t.offers.c.seq).label("mine"),
        ).where(t.offers.c.scope == p("scope")),
        places=("agent_id", "scope"),
    )
    + " AND (offers.priority, offers.seq) > (?, ?) ORDER BY offers.priority, offers.seq LIMIT ?"
)

# --- the rest of the hot ones
ADD_EVENT: Final = sql(insert(t.events))
SEAL: Final = sql(
    update(t.meta).ordered_values(
        *(
            (t.meta.c[name], bindparam(f"new_{name}"))
            for name in ("commit_seq", "submit_seq", "event_seq", "engine_s", "wall_ms", "run_counts")
        )
    )
)
META: Final = sql(
    select(
        t.meta.c.commit_seq,
        t.meta.c.submit_seq,
        t.meta.c.event_seq,
        t.meta.c.engine_s,
        t.meta.c.wall_ms,
        t.meta.c.run_counts,
    )
)
