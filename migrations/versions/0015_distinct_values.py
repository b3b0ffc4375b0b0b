"""Distinct values that policies look at, each once for a series and a window."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "distinct_values",
        sa.Column("sum", sa.SmallInteger(), nullable=False, autoincrement=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("resource", NAME, nullable=False),
        sa.Column("window_s", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("value", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.PrimaryKeyConstraint(
            "sum", "key", "resource", "window_s", "value", name=op.f("pk_distinct_values")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_distinct_values_sum_window_s"), "distinct_values", ["sum", "window_s"])


def downgrade() -> None:
    op.drop_index(op.f("ix_distinct_values_sum_window_s"), "distinct_values")
    op.drop_table("distinct_values")
