"""Runs of jobs: `job_runs` has the runs of all jobs, and `jobs` goes; `analyzers` says what it refuses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.drop_table("jobs")
    op.add_column("job_runs", sa.Column("done_ms", sa.BigInteger()))
    op.execute("update job_runs set done_ms = ended_ms where outcome = 'done'")
    op.add_column("analyzers", sa.Column("refused", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("analyzers") as table:
        table.drop_column("refused")
    with op.batch_alter_table("job_runs") as table:
        table.drop_column("done_ms")
    op.create_table(
        "jobs",
        sa.Column("name", NAME, nullable=False),
        sa.Column("done_ms", sa.BigInteger()),
        sa.Column("failing_since_ms", sa.BigInteger()),
        sa.Column("failed_ms", sa.BigInteger()),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_jobs")),
    )
