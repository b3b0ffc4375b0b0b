"""Time zones and anchors of callers, and the totals that wait for what their callers had before a change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
ADDED = ("zone", "anchor")


def upgrade() -> None:
    with op.batch_alter_table("callers") as table:
        for name in ADDED:
            table.add_column(sa.Column(name, sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "refills",
        sa.Column("key", NAME, nullable=False),
        sa.Column("sum", sa.SmallInteger(), nullable=False, autoincrement=False),
        sa.Column("window_s", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", "sum", "window_s", name=op.f("pk_refills")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("refills")
    with op.batch_alter_table("callers") as table:
        for name in ADDED:
            table.drop_column(name)
