"""The tables of the chain of what a bill takes as given; see docs/decisions/0078.

Triggers of the migration refuse to change or delete an entry.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table

from analyzer.kernel.tables.table_columns import key, metadata, number, text

# Each entry stands behind the one before: its HMAC is also over that one's digest.
chain_entries = Table(
    "chain_entries",
    metadata,
    key("number", BigInteger),  # from 1, without holes
    text("kind"),  # see `KINDS` in kernel/database/chain.py
    text("subject"),  # what it is about, without names
    text("fields"),  # JSON; names and free texts as digests with the salt of the entry
    number("at_ms"),
    text("key"),  # the fingerprint of the key; "": none, a digest that any program can compute
    text("mac"),
    Index(None, "kind", "subject"),
)

# Without its salt, nothing says which text the digest in an entry is of. Deleted with the text.
chain_salts = Table(
    "chain_salts", metadata, key("number", BigInteger), Column("salt", LargeBinary, nullable=False)
)
