"""What people do and decide beside the counting: an account of every manual act, locks that slow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TABLES = ("tokens", "events", "gates", "gaps", "named")
CARRIED = ("run", "rejects_to", "behind_hour")  # on `offsets`: what counting the next record depends on
HOURS = ("hour", "hour_before")
WHOLE = ("value_bytes", "kafka_ms")  # on `rejects`: what it takes to read a sample again
SLOWED = ("locks", "lock_changes")  # what a lock of the action "slow" lets through
SLOW = ("slow_limit", "slow_ms")
KEPT = ("events", "tokens", "gaps")  # nobody can find out again what these say


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":  # room on each page, for updates that touch no index
        op.execute("ALTER TABLE buckets SET (fillfactor = 70)")
        op.execute("ALTER TABLE totals SET (fillfactor = 50)")
    op.create_table(
        "events",
        sa.Column("id", NAME, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_at_ms"), "events", ["at_ms"], unique=False)
    op.create_table(
        "gaps",
        sa.Column("id", NAME, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("cluster", "topic_id")),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("source", "topic", "kind")),
        sa.Column("start", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in ("end", "position")),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("found_ms", sa.BigInteger(), nullable=False),
        sa.Column("found_by", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in ("accepted_to", "accepted_ms")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("accepted_by", "reason")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gaps")),
    )
    still_open = sa.text("accepted_ms IS NULL")
    op.create_index(
        "ix_gaps_open", "gaps", ["cluster", "topic_id", "partition"], unique=True,
        postgresql_where=still_open, sqlite_where=still_open,
    )  # fmt: skip
    op.create_table(
        "tokens",
        sa.Column("name", NAME, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("made_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tokens")),
    )
    op.create_table(
        "gates",
        sa.Column("instance", NAME, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("number", "at_ms", "first_ms")),
        sa.Column("told", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("instance", name=op.f("pk_gates")),
    )
    op.create_index(op.f("ix_gates_at_ms"), "gates", ["at_ms"], unique=False)
    op.create_table(
        "named",
        *(sa.Column(name, NAME, nullable=False) for name in ("cluster", "topic_id")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("partition", "hour")),
        sa.Column("how", NAME, nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.Column("callers", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "cluster", "topic_id", "partition", "hour", "how", "next", name=op.f("pk_named")
        ),
    )
    for column in CARRIED:
        op.add_column("offsets", sa.Column(column, sa.BigInteger(), nullable=False, server_default="0"))
    for table, columns in (("offsets", HOURS), ("rejects", WHOLE)):
        for column in columns:
            op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=True))
    for table in SLOWED:
        for column in SLOW:
            op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    keep_what_was_decided()
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE buckets RESET (fillfactor)")
        op.execute("ALTER TABLE totals RESET (fillfactor)")
    for table in TABLES:
        op.drop_table(table)
    for table, columns in (
        *((table, SLOW) for table in SLOWED),
        ("offsets", CARRIED + HOURS),
        ("rejects", WHOLE),
    ):
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column)


def keep_what_was_decided() -> None:
    """Refuse to drop a table with decisions in it, unless told so: `-x drop-counts=yes`."""
    if context.get_x_argument(as_dictionary=True).get("drop-counts") == "yes" or context.is_offline_mode():
        return
    for table in KEPT:
        rows = op.get_bind().execute(sa.select(sa.func.count()).select_from(sa.table(table))).scalar_one()
        if rows:
            raise RuntimeError(
                f"{table} holds {rows} rows that a downgrade would drop; "
                "keep a copy, then say so with `-x drop-counts=yes`"
            )
