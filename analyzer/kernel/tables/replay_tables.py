"""The tables of replays: what was read again, and by how much its counts differ; see docs/decisions/0055."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, Table

from analyzer.kernel.tables.table_columns import (
    COLUMNS_PER_PAGE,
    key,
    metadata,
    number,
    partition_key,
    small,
    text,
)

# Replays, each by the number of its shadow generation.
replays = Table(
    "replays",
    metadata,
    key("id", BigInteger),
    text("state"),  # "counting", "counted", "swapped" or "dropped"
    text("source"),
    number("plan"),  # the version that it counts by
    text("mark"),
    text("parts"),  # digest of what the plan says about counts: only with an equal one is it swapped in
    text("files"),  # JSON: the paths; of a topic, none
    text("about"),  # what was asked for, in words
    text("who"),
    number("began_ms"),
    Column("counted_ms", BigInteger),
    Column("swapped_ms", BigInteger),
    text("swapped_by"),
    text("reason"),
    number("rows"),  # of buckets that the swap has changed
    text("days"),  # JSON: the ids of the closed days that it has booked adjustments of
)

# How far each partition is read again, and how the outcomes of its records differ from those in the ledger.
replay_positions = Table(
    "replay_positions",
    metadata,
    key("replay", BigInteger),
    *partition_key(),
    text("source"),
    text("topic"),
    number("warm"),  # where reading begins: what is before `begin` is not replayed, and fills the memory
    number("begin"),
    number("next"),
    number("end"),
    text("stretches"),  # JSON: the plans by which [warm, end) was counted
    *map(number, ("seen", "counted", "duplicate", "dead", "late", "renamed")),
    number("kept"),  # records that stay as they are
)

# What the records count for by the replay's plan, less what they were counted for: signed.
replayed_counts = Table(
    "replayed_counts",
    metadata,
    key("replay", BigInteger),
    small("grouping"),
    small("page"),
    key("bucket_s", BigInteger),
    key("key"),
    key("resource"),
    *(
        Column(f"{kind}_{place}", BigInteger)  # as in `buckets`; null: 0
        for kind in ("value", "denied")
        for place in range(COLUMNS_PER_PAGE)
    ),
    sqlite_with_rowid=False,
)

# Records that are rejected in a replay and were not before, or that were and are not any more.
replayed_rejects = Table(
    "replayed_rejects",
    metadata,
    key("replay", BigInteger),
    *partition_key(),
    key("offset", BigInteger),
    number("is_added"),
    text("reason"),
    Column("sample", LargeBinary, nullable=False),
    Column("value_bytes", BigInteger),
    Column("kafka_ms", BigInteger),
)
