"""A table of the jobs' outcomes, for `gatelock doctor`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("name", NAME, nullable=False),
        sa.Column("done_ms", sa.BigInteger(), nullable=True),
        sa.Column("failing_since_ms", sa.BigInteger(), nullable=True),
        sa.Column("failed_ms", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_jobs")),
    )


def downgrade() -> None:
    op.drop_table("jobs")
