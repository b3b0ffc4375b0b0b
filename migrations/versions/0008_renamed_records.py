"""A number of records that count under another name, because their callers' names were unusable."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("offsets", sa.Column("renamed", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("offsets", "renamed")
