"""The last audit of each closed day, and its outcome."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "day_audits",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("zone", "date")),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("who", "digest", "result")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("differences", "remarks")),
        sa.PrimaryKeyConstraint("day", name=op.f("pk_day_audits")),
    )


def downgrade() -> None:
    op.drop_table("day_audits")
