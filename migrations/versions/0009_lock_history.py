"""The history of locks, and the verdicts that were not believed by it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
FOREVER_MS = 2**63 - 1


def upgrade() -> None:
    op.create_table(
        "lock_history",
        sa.Column("scope", NAME, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("began_ms", sa.BigInteger(), nullable=False),
        sa.Column("resource", NAME, nullable=False),
        sa.Column("policy", NAME, nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            *("scope", "key", "until_ms", "began_ms", "resource", "policy"), name=op.f("pk_lock_history")
        ),
    )
    op.create_index(op.f("ix_lock_history_until_ms"), "lock_history", ["until_ms"])
    op.create_index(
        "ix_lock_history_open",
        "lock_history",
        ["scope", "key", "resource", "policy"],
        postgresql_where=sa.text("ended_ms IS NULL"),
        sqlite_where=sa.text("ended_ms IS NULL"),
    )
    now_ms = (
        "(extract(epoch from clock_timestamp()) * 1000)::bigint"
        if op.get_context().dialect.name == "postgresql"
        else "cast(round((julianday('now') - 2440587.5) * 86400000) as integer)"
    )
    # The first row says since when there is a history: nothing is known of locks before.
    names = ("scope", "key", "resource", "policy", "until_ms", "began_ms", "cause")
    first = ("", "", "", "", FOREVER_MS, sa.text(now_ms), "first")
    texts = [sa.column(name, sa.Text()) for name in names if not name.endswith("_ms")]
    times = [sa.column(name, sa.BigInteger()) for name in names if name.endswith("_ms")]
    history = sa.table("lock_history", *texts, *times)
    op.execute(sa.insert(history).values(dict(zip(names, first, strict=True))))
    op.execute(
        "INSERT INTO lock_history (scope, key, resource, policy, until_ms, began_ms, cause) "
        "SELECT scope, key, resource, policy, until_ms, began_ms, '' FROM locks "
        "WHERE action IN ('deny', 'slow')"
    )
    _create_disbelieved()


def _create_disbelieved() -> None:
    op.create_table(
        "disbelieved",
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("topic_id", NAME, nullable=False),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("logged_s", sa.BigInteger(), nullable=False),
        sa.Column("bucket_s", sa.BigInteger(), nullable=False),
        sa.Column("caller", NAME, nullable=False),
        sa.Column("policy", NAME, nullable=False),
        sa.Column("series_digest", NAME, nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("begin", sa.BigInteger(), nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            *("cluster", "topic_id", "partition", "logged_s", "bucket_s", "caller", "policy"),
            "series_digest",
            name=op.f("pk_disbelieved"),
        ),
    )
    op.create_index(op.f("ix_disbelieved_logged_s"), "disbelieved", ["logged_s"])


def downgrade() -> None:
    op.drop_table("disbelieved")
    op.drop_table("lock_history")
