"""The tables, once, in SQLAlchemy Core: migrations, hot statements and tests are all made from these.

Hot fields are columns of their own; what is only carried along is one msgpack blob. A task's `seq` is its number in the
database, too, so runs and offers name it by an integer. A column list here names the fields of a record in order.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

from common.model import RunState

metadata = MetaData()

COUNTED: Final = tuple(RunState)
"""The run states in the order of the `n_…` columns of `tasks`."""

HALTED: Final = "ended_at_ms IS NULL AND (paused = 1 OR stopped = 1)"
"""What a task fulfils that was paused, or stopped by its rule, and has not ended."""

tasks = Table(
    "tasks",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("total", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("parallel", Integer, nullable=False),
    Column("fail_count", Integer, nullable=False),
    Column("fail_rate", Float),
    Column("on_stop", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("count", Integer),
    Column("lost_after_s", Float, nullable=False),
    Column("paused", Integer, nullable=False),
    Column("stopped", Integer, nullable=False),
    Column("cancel_requested", Integer, nullable=False),
    Column("reason", LargeBinary),
    Column("offered", Integer, nullable=False),
    Column("created_at_ms", Integer, nullable=False),
    Column("started_at_ms", Integer),
    Column("ended_at_ms", Integer),
    Column("submitted_by", Text, nullable=False),
    Column("version", Integer, nullable=False),
    *(Column(f"n_{state.value}", Integer, nullable=False) for state in COUNTED),
    # Where unaddressed runs are offered; NULL for a task whose runs are all addressed.
    Column("scope", Text),
    # For a search that knows more capitals than ASCII's.
    Column("name_folded", Text, nullable=False),
    Index("tasks_id", "id", unique=True),
    Index("tasks_state", "state"),
    Index("tasks_created", "created_at_ms"),
    Index("tasks_name", "name_folded"),
    Index("tasks_ready", "queue", "created_at_ms", sqlite_where=text("n_ready > 0")),
    # Of the tasks that have ended, the latest; of those that have not, those that wait for a person.
    Index("tasks_ended", "ended_at_ms", sqlite_where=text("ended_at_ms IS NOT NULL")),
    Index("tasks_failed", "ended_at_ms", sqlite_where=text("state = 'failed'")),
    Index("tasks_halted", "created_at_ms", sqlite_where=text(HALTED)),
)

# How many tasks there are in each state; to count them in their index takes too long for a page.
task_counts = Table(
    "task_counts",
    metadata,
    Column("state", Text, primary_key=True),
    Column("number", Integer, nullable=False),
    sqlite_with_rowid=False,
)

specs = Table(
    "specs",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("spec", LargeBinary, nullable=False),
    Column("idempotency_key", Text),
    Column("body_sha256", Text, nullable=False),
    Index("specs_key", "idempotency_key", unique=True, sqlite_where=text("idempotency_key IS NOT NULL")),
)

runs = Table(
    "runs",
    metadata,
    Column("num", Integer, primary_key=True),
    Column("id", Text, nullable=False),
    Column("task_id", Text),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("agent_id", Text),
    Column("addressed", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("lease", Text),
    Column("fence", Integer),
    Column("cancel_reason", Text),
    Column("due_engine_s", Float),
    Column("expires_engine_s", Float),
    Column("created_at_ms", Integer, nullable=False),
    Column("claimed_at_ms", Integer),
    Column("started_at_ms", Integer),
    Column("ended_at_ms", Integer),
    Column("silent_since_ms", Integer),
    Column("ending", LargeBinary),
    Column("version", Integer, nullable=False),
    Column("course", LargeBinary),
    Index("runs_id", "id", unique=True),
    Index("runs_task", "seq"),
    Index("runs_agent", "agent_id", "seq", sqlite_where=text("agent_id IS NOT NULL")),
    Index("runs_free", "seq", sqlite_where=text("state = 'ready' AND agent_id IS NULL")),
    Index("runs_held", "agent_id", sqlite_where=text("state IN ('leased', 'running')")),
    Index("runs_due", "due_engine_s", sqlite_where=text("state = 'delayed'")),
    Index("runs_expiring", "expires_engine_s", sqlite_where=text("state = 'ready' AND expires_engine_s IS NOT NULL")),
)

attempts = Table(
    "attempts",
    metadata,
    Column("num", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("agent_id", Text),
    Column("state", Text, nullable=False),
    Column("late", Integer, nullable=False),
    Column("claimed_at_ms", Integer),
    Column("started_at_ms", Integer),
    Column("ended_at_ms", Integer),
    Column("ending", LargeBinary),
    Column("course", LargeBinary),
    Index("attempts_once", "run_id", "attempt", "late", unique=True),
)

# One row per task and scope that has a ready run: in `offers` while the task is open, in `withdrawn` when an agent met
# it and the task was closed (paused, stopped, window full).
offers = Table(
    "offers",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("priority", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("task_id", Text, nullable=False),
    sqlite_with_rowid=False,
)

withdrawn = Table(
    "withdrawn",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("scope", Text, primary_key=True),
    sqlite_with_rowid=False,
)

# A candidate set, named by the hash of its queue and members. `waiting`: its rows in `offers` and `withdrawn`; while
# there are any, each member has a row in `set_members`, with the place (priority, seq) before which the set offers
# nothing that this member may take.
sets = Table(
    "sets",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("queue", Text, nullable=False),
    Column("members", LargeBinary, nullable=False),
    Column("waiting", Integer, nullable=False),
)

set_members = Table(
    "set_members",
    metadata,
    Column("agent_id", Text, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("queue", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("seq", Integer, nullable=False),
    Index("set_members_order", "agent_id", "priority", "seq"),
    Index("set_members_scope", "scope", "priority", "seq"),
    sqlite_with_rowid=False,
)

agents = Table(
    "agents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Index("agents_name", "name", unique=True),
)

events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("task_id", Text),
    Column("run_id", Text),
    Column("end_offset", Integer),
    Column("at_ms", Integer, nullable=False),
)

blobs = Table(
    "blobs",
    metadata,
    Column("num", Integer, primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Index("blobs_sha256", "sha256", unique=True),
)

trusted_keys = Table(
    "trusted_keys",
    metadata,
    Column("public_key", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("agent_id", Text),
    Column("name", Text, nullable=False),
    Column("revoked", Integer, nullable=False),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("created_at_ms", Integer, nullable=False),
    Column("revoked", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("last_used_at_ms", Integer),
    Column("expires_engine_s", Float),
    Column("about", Text, nullable=False),
    Index("api_tokens_sha256", "sha256", unique=True),
)

login_links = Table(
    "login_links",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at_ms", Integer, nullable=False),
    Column("expires_engine_s", Float, nullable=False),
    Column("used", Integer, nullable=False),
)

join_tokens = Table(
    "join_tokens",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("created_at_ms", Integer, nullable=False),
    Column("expires_engine_s", Float, nullable=False),
    Column("used_by", Text),
    Column("agent_id", Text),
)

# One row, written by every commit: numbers that never go back, the engine clock's mark, runs per state.
meta = Table(
    "meta",
    metadata,
    Column("one", Integer, primary_key=True),
    Column("commit_seq", Integer, nullable=False),
    Column("submit_seq", Integer, nullable=False),
    Column("event_seq", Integer, nullable=False),
    Column("engine_s", Float, nullable=False),
    Column("wall_ms", Integer, nullable=False),
    Column("run_counts", LargeBinary, nullable=False),
)
