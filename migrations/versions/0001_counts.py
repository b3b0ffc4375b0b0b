"""The first tables: offsets with their ledger, buckets, totals, rejects, plans, locks and their feed."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

from analyzer.kernel.database.migrate import require_empty

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TABLES = (
    "buckets",
    "feed",
    "feed_versions",
    "leases",
    "lock_changes",
    "locks",
    "offsets",
    "plans",
    "rejects",
    "totals",
)
COUNTS = ("buckets", "offsets", "rejects")  # the rest can be made again


def upgrade() -> None:
    _buckets()
    _feed()
    _feed_versions()
    _leases()
    _lock_changes()
    _locks()
    _offsets()
    _plans()
    _rejects()
    _totals()


def _buckets() -> None:
    op.create_table(
        "buckets",
        sa.Column("grouping", NAME, nullable=False),
        sa.Column("meter", NAME, nullable=False),
        sa.Column("width_s", sa.BigInteger(), nullable=False),
        sa.Column("bucket_s", sa.BigInteger(), nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("resource", NAME, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("denied", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "grouping", "meter", "width_s", "bucket_s", "key", "resource", name=op.f("pk_buckets")
        ),
    )


def _feed() -> None:
    op.create_table(
        "feed",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.Column("pruned_to", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feed")),
    )
    # A gate that holds version 0 of another database must not take this one for it.
    kinds = {"id": sa.BigInteger, "version": sa.BigInteger, "mark": sa.Text, "pruned_to": sa.BigInteger}
    feed = sa.table("feed", *(sa.column(name, kind) for name, kind in kinds.items()))
    op.bulk_insert(feed, [{"id": 1, "version": 0, "mark": secrets.token_hex(4), "pruned_to": 0}])


def _feed_versions() -> None:
    op.create_table(
        "feed_versions",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_feed_versions")),
    )
    op.create_index(op.f("ix_feed_versions_at_ms"), "feed_versions", ["at_ms"], unique=False)


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("name", NAME, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )


def _lock_changes() -> None:
    op.create_table(
        "lock_changes",
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("began_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("on_stale", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version", "number", name=op.f("pk_lock_changes")),
    )


def _locks() -> None:
    op.create_table(
        "locks",
        sa.Column("scope", NAME, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("resource", NAME, nullable=False),
        sa.Column("policy", NAME, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("began_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("on_stale", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", "resource", "policy", name=op.f("pk_locks")),
    )
    op.create_index(op.f("ix_locks_until_ms"), "locks", ["until_ms"], unique=False)


def _offsets() -> None:
    op.create_table(
        "offsets",
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("topic_id", NAME, nullable=False),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.Column("witness", sa.Text(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("counted", sa.BigInteger(), nullable=False),
        sa.Column("duplicate", sa.BigInteger(), nullable=False),
        sa.Column("dead", sa.BigInteger(), nullable=False),
        sa.Column("late", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("beat_ms", sa.BigInteger(), nullable=True),
        sa.Column("behind_ms", sa.BigInteger(), nullable=False),
        sa.Column("behind_records", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "topic_id", "partition", name=op.f("pk_offsets")),
    )


def _plans() -> None:
    op.create_table(
        "plans",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("active", sa.BigInteger(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_plans")),
    )


def _rejects() -> None:
    op.create_table(
        "rejects",
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("topic_id", NAME, nullable=False),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("sample", sa.LargeBinary(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "topic_id", "partition", "offset", name=op.f("pk_rejects")),
    )
    op.create_index(op.f("ix_rejects_at_ms"), "rejects", ["at_ms"], unique=False)


def _totals() -> None:
    op.create_table(
        "totals",
        sa.Column("policy", NAME, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("resource", NAME, nullable=False),
        sa.Column("window_s", sa.BigInteger(), nullable=False),
        sa.Column("until_s", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "key", "resource", "window_s", name=op.f("pk_totals")),
    )
    op.create_index(op.f("ix_totals_until_s"), "totals", ["until_s"], unique=False)


def downgrade() -> None:
    require_empty(*COUNTS)
    for table in TABLES:
        op.drop_table(table)
