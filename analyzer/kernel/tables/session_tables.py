"""The table of browsers that are signed in."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from analyzer.kernel.tables.table_columns import key, metadata, text

# Sessions of browsers. Only digests are stored, as of tokens: reading this table gives access to nothing.
sessions = Table(
    "sessions",
    metadata,
    key("digest"),
    text("token"),  # digest of the token that signed in: without that token the session is over
    Column("begun_ms", BigInteger, nullable=False),
    Column(
        "seen_ms", BigInteger, nullable=False
    ),  # the last act of an operator, not of a page that refreshes
    Index(None, "seen_ms"),
)
