"""Notices of thresholds that were reached."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "notices",
        sa.Column("policy", NAME, nullable=False),
        sa.Column("sum", NAME, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("resource", NAME, nullable=False),
        sa.Column("window_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("threshold", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("until_s", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "policy", "sum", "key", "resource", "window_s", "threshold", name=op.f("pk_notices")
        ),
    )
    op.create_index(op.f("ix_notices_at_ms"), "notices", ["at_ms"])


def downgrade() -> None:
    op.drop_table("notices")
