"""The first schema: tasks, runs, offers, agents, keys, blobs and the change feed."""

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("agents_name", "agents", ["name"], unique=True)
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.Integer(), nullable=False),
        sa.Column("revoked", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("api_tokens_sha256", "api_tokens", ["sha256"], unique=True)
    op.create_table(
        "attempts",
        sa.Column("num", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("late", sa.Integer(), nullable=False),
        sa.Column("claimed_at_ms", sa.Integer(), nullable=True),
        sa.Column("started_at_ms", sa.Integer(), nullable=True),
        sa.Column("ended_at_ms", sa.Integer(), nullable=True),
        sa.Column("ending", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("num"),
    )
    op.create_index("attempts_once", "attempts", ["run_id", "attempt", "late"], unique=True)
    op.create_table(
        "blobs",
        sa.Column("num", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("num"),
    )
    op.create_index("blobs_sha256", "blobs", ["sha256"], unique=True)
    op.create_table(
        "events",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("end_offset", sa.Integer(), nullable=True),
        sa.Column("at_ms", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "join_tokens",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.Integer(), nullable=False),
        sa.Column("expires_engine_s", sa.Float(), nullable=False),
        sa.Column("used_by", sa.Text(), nullable=True),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "meta",
        sa.Column("one", sa.Integer(), nullable=False),
        sa.Column("commit_seq", sa.Integer(), nullable=False),
        sa.Column("submit_seq", sa.Integer(), nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("engine_s", sa.Float(), nullable=False),
        sa.Column("wall_ms", sa.Integer(), nullable=False),
        sa.Column("run_counts", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("one"),
    )
    op.create_table(
        "offers",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "priority", "seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "runs",
        sa.Column("num", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("addressed", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease", sa.Text(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("due_engine_s", sa.Float(), nullable=True),
        sa.Column("expires_engine_s", sa.Float(), nullable=True),
        sa.Column("created_at_ms", sa.Integer(), nullable=False),
        sa.Column("claimed_at_ms", sa.Integer(), nullable=True),
        sa.Column("started_at_ms", sa.Integer(), nullable=True),
        sa.Column("ended_at_ms", sa.Integer(), nullable=True),
        sa.Column("silent_since_ms", sa.Integer(), nullable=True),
        sa.Column("ending", sa.LargeBinary(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("num"),
    )
    op.create_index(
        "runs_agent", "runs", ["agent_id", "seq"], unique=False, sqlite_where=sa.text("agent_id IS NOT NULL")
    )
    op.create_index("runs_due", "runs", ["due_engine_s"], unique=False, sqlite_where=sa.text("state = 'delayed'"))
    op.create_index(
        "runs_expiring",
        "runs",
        ["expires_engine_s"],
        unique=False,
        sqlite_where=sa.text("state = 'ready' AND expires_engine_s IS NOT NULL"),
    )
    op.create_index(
        "runs_free", "runs", ["seq"], unique=False, sqlite_where=sa.text("state = 'ready' AND agent_id IS NULL")
    )
    op.create_index(
        "runs_held", "runs", ["agent_id"], unique=False, sqlite_where=sa.text("state IN ('leased', 'running')")
    )
    op.create_index("runs_id", "runs", ["id"], unique=True)
    op.create_index("runs_task", "runs", ["seq"], unique=False)
    op.create_table(
        "set_members",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "scope"),
        sqlite_with_rowid=False,
    )
    op.create_index("set_members_order", "set_members", ["agent_id", "priority", "seq"], unique=False)
    op.create_index("set_members_scope", "set_members", ["scope", "priority", "seq"], unique=False)
    op.create_table(
        "sets",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("members", sa.LargeBinary(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("scope"),
    )
    op.create_table(
        "specs",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("body_sha256", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index(
        "specs_key", "specs", ["idempotency_key"], unique=True, sqlite_where=sa.text("idempotency_key IS NOT NULL")
    )
    op.create_table(
        "tasks",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("parallel", sa.Integer(), nullable=False),
        sa.Column("fail_count", sa.Integer(), nullable=False),
        sa.Column("fail_rate", sa.Float(), nullable=True),
        sa.Column("on_stop", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=True),
        sa.Column("lost_after_s", sa.Float(), nullable=False),
        sa.Column("paused", sa.Integer(), nullable=False),
        sa.Column("stopped", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Integer(), nullable=False),
        sa.Column("reason", sa.LargeBinary(), nullable=True),
        sa.Column("offered", sa.Integer(), nullable=False),
        sa.Column("created_at_ms", sa.Integer(), nullable=False),
        sa.Column("started_at_ms", sa.Integer(), nullable=True),
        sa.Column("ended_at_ms", sa.Integer(), nullable=True),
        sa.Column("submitted_by", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("n_delayed", sa.Integer(), nullable=False),
        sa.Column("n_ready", sa.Integer(), nullable=False),
        sa.Column("n_leased", sa.Integer(), nullable=False),
        sa.Column("n_running", sa.Integer(), nullable=False),
        sa.Column("n_buried", sa.Integer(), nullable=False),
        sa.Column("n_succeeded", sa.Integer(), nullable=False),
        sa.Column("n_failed", sa.Integer(), nullable=False),
        sa.Column("n_cancelled", sa.Integer(), nullable=False),
        sa.Column("n_skipped", sa.Integer(), nullable=False),
        sa.Column("n_expired", sa.Integer(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=True),
        sa.Column("name_folded", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("tasks_created", "tasks", ["created_at_ms"], unique=False)
    op.create_index("tasks_id", "tasks", ["id"], unique=True)
    op.create_index("tasks_name", "tasks", ["name_folded"], unique=False)
    op.create_index(
        "tasks_ready", "tasks", ["queue", "created_at_ms"], unique=False, sqlite_where=sa.text("n_ready > 0")
    )
    op.create_index("tasks_state", "tasks", ["state"], unique=False)
    op.create_table(
        "trusted_keys",
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("revoked", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("public_key"),
    )
    op.create_table(
        "withdrawn",
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", "scope"),
        sqlite_with_rowid=False,
    )
    op.execute(
        sa.text("INSERT INTO meta VALUES (1, 0, 0, 0, 0.0, 0, :nothing)").bindparams(nothing=msgspec.msgpack.encode({}))
    )
