"""Slots of rolling sums, and totals that wait for their judgement."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SLOTS = ("slots_0", "slots_1", "slots_2")


def upgrade() -> None:
    for name in SLOTS:
        op.create_table(
            name,
            sa.Column("sum", sa.SmallInteger(), autoincrement=False, nullable=False),
            sa.Column("key", NAME, nullable=False),
            sa.Column("resource", NAME, nullable=False),
            sa.Column("slot_s", sa.BigInteger(), autoincrement=False, nullable=False),
            sa.Column("value", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("sum", "key", "resource", "slot_s", name=op.f(f"pk_{name}")),
            postgresql_with={"fillfactor": 70},
            sqlite_with_rowid=False,
        )
    op.create_table(
        "postponed",
        sa.Column("sum", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("window_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("resource", NAME, nullable=False),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sum", "window_s", "key", "resource", name=op.f("pk_postponed")),
    )
    op.create_index(op.f("ix_postponed_due_ms"), "postponed", ["due_ms"])
    op.add_column("totals", sa.Column("touched_s", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("totals", "touched_s")
    op.drop_table("postponed")
    for name in SLOTS:
        op.drop_table(name)
