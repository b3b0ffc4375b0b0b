"""The table `old_buckets`: rows of the form before 0004, one per meter, until analyzers have moved them.

It exists only in a database that was migrated with such rows, and is dropped a day after it is empty. It is
not part of the schema.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, MetaData, Table

from analyzer.kernel.tables.table_columns import key

old_buckets = Table(
    "old_buckets",
    MetaData(),
    key("grouping"),
    key("meter"),
    key("width_s", BigInteger),
    key("bucket_s", BigInteger),
    key("key"),
    key("resource"),
    Column("value", BigInteger, nullable=False),
    Column("denied", BigInteger, nullable=False),
)
