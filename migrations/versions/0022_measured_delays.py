"""Delays and clocks, as each analyzer has measured them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("analyzers") as table:
        table.add_column(sa.Column("measured", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("analyzers") as table:
        table.drop_column("measured")
