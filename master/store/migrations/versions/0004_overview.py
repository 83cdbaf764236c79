"""What an overview shows at once: tasks counted by state, the latest ends and failures, what waits for a person."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "task_counts",
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("state"),
        sqlite_with_rowid=False,
    )
    op.execute("INSERT INTO task_counts (state, number) SELECT state, count(*) FROM tasks GROUP BY state")
    op.create_index(
        "tasks_ended", "tasks", ["ended_at_ms"], unique=False, sqlite_where=sa.text("ended_at_ms IS NOT NULL")
    )
    op.create_index("tasks_failed", "tasks", ["ended_at_ms"], unique=False, sqlite_where=sa.text("state = 'failed'"))
    op.create_index(
        "tasks_halted",
        "tasks",
        ["created_at_ms"],
        unique=False,
        sqlite_where=sa.text("ended_at_ms IS NULL AND (paused = 1 OR stopped = 1)"),
    )
