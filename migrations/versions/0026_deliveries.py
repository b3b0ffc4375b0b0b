"""Deliveries to billing services, as far as these have acknowledged them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
KEY = ("destination", "zone", "date", "grouping", "kind", "meter")
AMOUNTS = ("events", "amount", "known", "left_out", "left_out_amount")


def upgrade() -> None:
    op.create_table(
        "deliveries",
        *(sa.Column(name, NAME, nullable=False) for name in KEY),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("format", "place")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in AMOUNTS),
        sa.Column("who", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("began_ms", "acknowledged_ms")),
        sa.Column("tried_ms", sa.BigInteger()),
        sa.Column("finished_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint(*KEY, name=op.f("pk_deliveries")),
    )


def downgrade() -> None:
    op.drop_table("deliveries")
