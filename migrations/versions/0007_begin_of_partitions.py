"""The offset at which counting of a partition began, for the audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("offsets", sa.Column("begin", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("offsets", "begin")
