"""Replays: logs that are read again into a shadow generation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
PARTITION = ("replay", "cluster", "topic_id", "partition")
SERIES = ("replay", "grouping", "page", "bucket_s", "key", "resource")


def key(name: str, kind: sa.types.TypeEngine[object] | None = None) -> sa.Column[object]:
    return sa.Column(name, kind or sa.BigInteger(), autoincrement=False, nullable=False)


def numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def partition() -> list[sa.Column[object]]:
    return [key("replay"), key("cluster", NAME), key("topic_id", NAME), key("partition")]


def upgrade() -> None:
    op.create_table(
        "replays",
        key("id"),
        *texts("state", "source"),
        *numbers("plan"),
        *texts("mark", "parts", "files", "about", "who"),
        *numbers("began_ms"),
        sa.Column("counted_ms", sa.BigInteger()),
        sa.Column("swapped_ms", sa.BigInteger()),
        *texts("swapped_by", "reason"),
        *numbers("rows"),
        *texts("days"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replays")),
    )
    op.create_table(
        "replay_positions",
        *partition(),
        *texts("source", "topic"),
        *numbers("warm", "begin", "next", "end"),
        *texts("stretches"),
        *numbers("seen", "counted", "duplicate", "dead", "late", "renamed", "kept"),
        sa.PrimaryKeyConstraint(*PARTITION, name=op.f("pk_replay_positions")),
    )
    op.create_table(
        "replayed_counts",
        key("replay"),
        *(key(name, sa.SmallInteger()) for name in ("grouping", "page")),
        key("bucket_s"),
        *(key(name, NAME) for name in ("key", "resource")),
        *(sa.Column(f"{kind}_{at}", sa.BigInteger()) for kind in ("value", "denied") for at in range(8)),
        sa.PrimaryKeyConstraint(*SERIES, name=op.f("pk_replayed_counts")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "replayed_rejects",
        *partition(),
        key("offset"),
        *numbers("is_added"),
        *texts("reason"),
        sa.Column("sample", sa.LargeBinary(), nullable=False),
        *(sa.Column(name, sa.BigInteger()) for name in ("value_bytes", "kafka_ms")),
        sa.PrimaryKeyConstraint(*PARTITION, "offset", name=op.f("pk_replayed_rejects")),
    )


def downgrade() -> None:
    for table in ("replayed_rejects", "replayed_counts", "replay_positions", "replays"):
        op.drop_table(table)
