"""Facts about callers that records state: by partition, and those that hold, beside the ones of operators."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
ADDED = ("record_plan", "record_tenant", "record_zone", "record_anchor")


def upgrade() -> None:
    with op.batch_alter_table("callers") as table:
        for name in ADDED:
            table.add_column(sa.Column(name, sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "record_facts",
        sa.Column("caller", NAME, nullable=False),
        sa.Column("fact", NAME, nullable=False),
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("topic_id", NAME, nullable=False),
        sa.Column("partition", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "caller", "fact", "cluster", "topic_id", "partition", name=op.f("pk_record_facts")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "waiting_facts",
        sa.Column("caller", NAME, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("caller", name=op.f("pk_waiting_facts")),
    )
    op.create_index(op.f("ix_waiting_facts_at_ms"), "waiting_facts", ["at_ms"])


def downgrade() -> None:
    op.drop_table("waiting_facts")
    op.drop_table("record_facts")
    with op.batch_alter_table("callers") as table:
        for name in ADDED:
            table.drop_column(name)
