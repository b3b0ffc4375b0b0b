"""The kinds of columns that tables have, and the collection of all tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, SmallInteger, Text

COLUMNS_PER_PAGE = 8  # of the amounts of meters: meter n has the columns n % 8 on page n // 8

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Compared byte by byte, as Python does, in any locale of the database: one order everywhere.
NAME = Text().with_variant(Text(collation="C"), "postgresql")


def key(name: str, kind: Text | type[BigInteger] = NAME) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def small(name: str, kind: type[Integer] = SmallInteger) -> Column[int]:
    """Returns a part of a key that has few values."""
    return Column(name, kind, primary_key=True, autoincrement=False)


def number(name: str, default: int = 0) -> Column[int]:
    return Column(name, BigInteger, nullable=False, default=default)


def text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, default="")


def partition_key() -> list[Column[Any]]:
    return [key("cluster"), key("topic_id"), key("partition", BigInteger)]


def key_of_lock() -> list[Column[Any]]:
    return [key("scope"), key("key"), key("resource"), key("policy")]
