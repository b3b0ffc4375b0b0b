"""Shares: series that are over a mark, and judgements that wait for a backlog."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "holds",
        sa.Column("scope", NAME, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("resource", NAME, nullable=False),
        sa.Column("policy", NAME, nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", "resource", "policy", name=op.f("pk_holds")),
    )
    op.create_index(op.f("ix_holds_seen_ms"), "holds", ["seen_ms"])
    op.add_column("postponed", sa.Column("is_behind", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("postponed", "is_behind")
    op.drop_index(op.f("ix_holds_seen_ms"), "holds")
    op.drop_table("holds")
