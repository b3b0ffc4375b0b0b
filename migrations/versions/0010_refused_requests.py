"""Refused requests for locks, by client, and the token that each gate reports with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "refused_requests",
        sa.Column("address", NAME, nullable=False),
        sa.Column("instance", NAME, nullable=False),
        sa.Column("reason", NAME, nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("first_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("address", "instance", "reason", name=op.f("pk_refused_requests")),
    )
    op.add_column("gates", sa.Column("token", sa.Text()))
    op.execute("UPDATE gates SET token = ''")  # belongs to the first token that reports it


def downgrade() -> None:
    op.drop_column("gates", "token")
    op.drop_table("refused_requests")
