"""Locks that an operator has cleared, and that are not set again before a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
KEY = ("scope", "key", "resource", "policy")


def upgrade() -> None:
    op.create_table(
        "hold_offs",
        *(sa.Column(name, NAME, nullable=False) for name in KEY),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(*KEY, name=op.f("pk_hold_offs")),
    )
    op.create_index(op.f("ix_hold_offs_until_ms"), "hold_offs", ["until_ms"])


def downgrade() -> None:
    op.drop_table("hold_offs")
