"""Columns and tables by the words that the code uses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    # `batch_alter_table` would copy the table on SQLite; both databases rename in place.
    op.execute("ALTER TABLE offsets RENAME COLUMN witness TO resume_token")
    op.execute("ALTER TABLE offsets RENAME COLUMN run TO reject_run")
    op.execute("ALTER TABLE offsets RENAME COLUMN rejects_to TO rejects_accepted_to")
    op.execute("ALTER TABLE offsets RENAME COLUMN behind_hour TO behind_run")
    _named_callers("named_callers", "named")


def downgrade() -> None:
    _named_callers("named", "named_callers")
    op.execute("ALTER TABLE offsets RENAME COLUMN behind_run TO behind_hour")
    op.execute("ALTER TABLE offsets RENAME COLUMN rejects_accepted_to TO rejects_to")
    op.execute("ALTER TABLE offsets RENAME COLUMN reject_run TO run")
    op.execute("ALTER TABLE offsets RENAME COLUMN resume_token TO witness")


def _named_callers(table: str, old: str) -> None:
    """Copied rather than renamed, so that the primary key's name follows; a few rows per partition."""
    op.create_table(
        table,
        *(sa.Column(name, NAME, nullable=False) for name in ("cluster", "topic_id")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("partition", "hour")),
        sa.Column("how", NAME, nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.Column("callers", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "cluster", "topic_id", "partition", "hour", "how", "next", name=op.f(f"pk_{table}")
        ),
    )
    op.execute(f"INSERT INTO {table} SELECT * FROM {old}")  # noqa: S608 - both names are literals above
    op.drop_table(old)
