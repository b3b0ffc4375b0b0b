"""The tables of rankings: the series with the most, by stretch of time; see docs/decisions/0083."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, Table

from analyzer.kernel.tables.table_columns import key, metadata, number, partition_key, small, text

# How often the buckets of a quarter of an hour have changed: a row for each partition whose offset a writer
# holds, so that no two wait for each other. A ranking is right while the sum of the rows of its time is the
# one that it was read at. The job `rank` joins the rows of a quarter when all of it is ranked.
changed_quarters = Table(
    "changed_quarters",
    metadata,
    key("quarter_s", BigInteger),
    *partition_key(),
    number("changes"),
)

# What was counted in a quarter of an hour, an hour or a day: the whole, and the series with the most.
rankings = Table(
    "rankings",
    metadata,
    small("grouping"),
    small("meter", Integer),
    small("width_s", Integer),
    key("begin_s", BigInteger),
    Column("changes", BigInteger, nullable=False),  # of its quarters, when the buckets were read
    Column("ranked_ms", BigInteger, nullable=False),
    text("whole"),  # JSON: see counting/rankings.py
    text("series"),  # JSON
)
