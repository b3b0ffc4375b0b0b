"""Tables of operators' actions (audit log, gaps, tokens), gate reports, and locks with the action slow."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from alembic import op

from analyzer.kernel.database.migrate import require_empty

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TABLES = ("tokens", "events", "gates", "gaps", "named")
CARRIED = ("run", "rejects_to", "behind_hour")  # on `offsets`: state of the counter
HOURS = ("hour", "hour_before")
WHOLE = ("value_bytes", "kafka_ms")  # on `rejects`: needed to read a sample again
SLOWED = ("locks", "lock_changes")  # the rate of a lock that slows
SLOW = ("slow_limit", "slow_ms")
KEPT = ("events", "tokens", "gaps")  # their contents cannot be restored


def upgrade() -> None:
    _room_on_each_page()
    _events()
    _gaps()
    _tokens()
    _gates()
    _named()
    _more_columns()


def _room_on_each_page() -> None:
    """For updates that touch no index; SQLite knows nothing of the kind."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE buckets SET (fillfactor = 70)")
        op.execute("ALTER TABLE totals SET (fillfactor = 50)")


def _events() -> None:
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


def _gaps() -> None:
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


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("name", NAME, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("made_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tokens")),
    )


def _gates() -> None:
    op.create_table(
        "gates",
        sa.Column("instance", NAME, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("number", "at_ms", "first_ms")),
        sa.Column("told", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("instance", name=op.f("pk_gates")),
    )
    op.create_index(op.f("ix_gates_at_ms"), "gates", ["at_ms"], unique=False)


def _named() -> None:
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


def _more_columns() -> None:
    _add_numbers("offsets", CARRIED, nullable=False)
    _add_numbers("offsets", HOURS, nullable=True)
    _add_numbers("rejects", WHOLE, nullable=True)
    for table in SLOWED:
        _add_numbers(table, SLOW, nullable=False)


def _add_numbers(table: str, columns: Iterable[str], *, nullable: bool) -> None:
    for column in columns:
        default = None if nullable else "0"
        op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=nullable, server_default=default))


def downgrade() -> None:
    require_empty(*KEPT)
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
