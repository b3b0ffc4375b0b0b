"""The brakes of policies, and how much traffic there is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBERS = ("since_ms", "interval_ms", "locks", "requests", "paced_until_ms", "is_clearing")


def upgrade() -> None:
    op.create_table(
        "brakes",
        sa.Column("policy", NAME, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in NUMBERS),
        sa.Column("braked_ms", sa.BigInteger()),
        sa.Column("released_ms", sa.BigInteger()),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("policy", name=op.f("pk_brakes")),
    )
    op.create_table(
        "traffic_samples",
        sa.Column("at_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("counted", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("at_ms", name=op.f("pk_traffic_samples")),
    )


def downgrade() -> None:
    op.drop_table("traffic_samples")
    op.drop_table("brakes")
