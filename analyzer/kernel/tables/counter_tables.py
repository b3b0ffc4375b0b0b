"""Tables of what counters remember of a partition, besides the numbers of its row in `offsets`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, Table

from analyzer.kernel.tables.table_columns import key, metadata, partition_key, text

# The callers that a partition counts by name in the hour that it has reached and the one before: a row per
# flush in which some were new.
named_callers = Table(
    "named_callers",
    metadata,
    *partition_key(),
    key("hour", BigInteger),
    key("how"),  # "old", "new" or "drawn"
    key("next", BigInteger),  # the partition's offset after that flush
    text("callers"),  # one per line
)

# The ids that a partition remembers: a row per flush in which some were new.
event_ids = Table(
    "event_ids",
    metadata,
    *partition_key(),
    key("generation", BigInteger),
    key("number", BigInteger),  # of the row within its generation; below 0: ids that a retry has counted
    Column("began_ms", BigInteger, nullable=False),
    Column("hashes", LargeBinary, nullable=False),  # of caller and id, 8 bytes each
)

# Random values that belong to this database: see `installation_secrets`.
secrets = Table(
    "secrets",
    metadata,
    key("name"),
    Column("value", LargeBinary, nullable=False),
)
