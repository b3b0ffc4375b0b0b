"""The action, the detail and the plan of each lock of the history, and what its series had used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

TEXTS = ("action", "detail")
NUMBERS = {"plan": "0", "used_began": "-1", "used_ended": "-1"}


def upgrade() -> None:
    with op.batch_alter_table("lock_history") as table:
        for name in TEXTS:
            table.add_column(sa.Column(name, sa.Text(), nullable=False, server_default=""))
        for name, default in NUMBERS.items():
            table.add_column(sa.Column(name, sa.BigInteger(), nullable=False, server_default=default))


def downgrade() -> None:
    # Earlier versions believe a verdict for every lock of the history.
    op.execute("delete from lock_history where action not in ('', 'deny', 'slow') and key <> ''")
    with op.batch_alter_table("lock_history") as table:
        for name in (*TEXTS, *NUMBERS):
            table.drop_column(name)
