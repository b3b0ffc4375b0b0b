"""Ids of events that partitions remember."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "event_ids",
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("topic_id", NAME, nullable=False),
        sa.Column("partition", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("began_ms", sa.BigInteger(), nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "cluster", "topic_id", "partition", "generation", "number", name=op.f("pk_event_ids")
        ),
    )
    with op.batch_alter_table("offsets") as table:
        table.add_column(sa.Column("ids_reached_ms", sa.BigInteger(), nullable=True))
        table.add_column(sa.Column("ids_far_run", sa.BigInteger(), nullable=False, server_default="0"))
        table.add_column(sa.Column("ids_kept_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("offsets") as table:
        for name in ("ids_kept_ms", "ids_far_run", "ids_reached_ms"):
            table.drop_column(name)
    op.drop_table("event_ids")
