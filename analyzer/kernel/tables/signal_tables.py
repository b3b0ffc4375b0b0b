"""The table of signals: what is wrong with an installation, or waits for a decision."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Table

from analyzer.kernel.tables.table_columns import key, metadata, text

# Written by the job `watch-signals`; see decision 81.
signals = Table(
    "signals",
    metadata,
    key("name"),
    key("subject"),
    *map(text, ("severity", "what", "cure")),
    Column("since_ms", BigInteger, nullable=False),
    Column("over_ms", BigInteger),  # since when it is not seen any more: it ends soon; null: it stands
)
