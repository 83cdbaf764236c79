"""What befell an attempt while it ran: the silences of its agent, and when it was asked to end."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("course", sa.LargeBinary(), nullable=True))
    op.add_column("attempts", sa.Column("course", sa.LargeBinary(), nullable=True))
