"""Who may use it: API tokens know their last use, sessions stand beside them, and login links make sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Made anew: an added column would stand behind the constraints, and the table would not read as the code has it.
    op.drop_index("api_tokens_sha256", "api_tokens")
    op.execute("ALTER TABLE api_tokens RENAME TO api_tokens_before")
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.Integer(), nullable=False),
        sa.Column("revoked", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("last_used_at_ms", sa.Integer(), nullable=True),
        sa.Column("expires_engine_s", sa.Float(), nullable=True),
        sa.Column("about", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.execute(
        "INSERT INTO api_tokens (id, name, role, sha256, created_at_ms, revoked, kind, about)"
        " SELECT id, name, role, sha256, created_at_ms, revoked, 'api', '' FROM api_tokens_before"
    )
    op.drop_table("api_tokens_before")
    op.create_index("api_tokens_sha256", "api_tokens", ["sha256"], unique=True)
    op.create_table(
        "login_links",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.Integer(), nullable=False),
        sa.Column("expires_engine_s", sa.Float(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
