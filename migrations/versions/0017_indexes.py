"""Indexes for judgements and status pages: overrides in force, and totals that wait for a backlog."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

OVERRIDES, POSTPONED = "ix_overrides_state_subject_kind", "ix_postponed_behind"


def upgrade() -> None:
    op.create_index(op.f(OVERRIDES), "overrides", ["state", "subject_kind"])
    is_behind = sa.text("is_behind = 1")
    op.create_index(POSTPONED, "postponed", ["is_behind"], postgresql_where=is_behind, sqlite_where=is_behind)


def downgrade() -> None:
    op.drop_index(POSTPONED, "postponed")
    op.drop_index(op.f(OVERRIDES), "overrides")
