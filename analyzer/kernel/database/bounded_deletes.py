"""Deletion of a bounded number of rows, in the order in which flushes lock them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def first_keys(table: sa.Table, condition: sa.ColumnElement[bool], most: int) -> sa.Select[Any]:
    """Returns a query of the keys of the first rows that meet the condition."""
    key = list(table.primary_key.columns)
    return sa.select(*key).where(condition).order_by(*key).limit(most)


def delete_at(table: sa.Table, keys: sa.Select[Any]) -> sa.Delete:
    """Returns a DELETE of the rows at `keys`, a query of primary keys in their order.

    Rows that a flush holds at the moment are skipped, so that neither waits for the other.
    """
    # A CTE is evaluated once; PostgreSQL may evaluate a subquery per row, and find other rows each time.
    once = keys.with_for_update(skip_locked=True).cte("found")
    return sa.delete(table).where(sa.tuple_(*table.primary_key.columns).in_(sa.select(*once.c)))


def delete_anywhere(table: sa.Table, condition: sa.ColumnElement[bool], most: int) -> sa.Delete:
    """Returns a DELETE of up to `most` rows that meet the condition, by their places. PostgreSQL only.

    For a table with an index of the condition's columns, which would be read once for each key.
    """
    place: sa.ColumnElement[Any] = sa.literal_column("ctid")
    places = (
        sa.select(place).select_from(table).where(condition).limit(most).with_for_update(skip_locked=True)
    )
    return sa.delete(table).where(place == sa.any_(sa.func.array(places.scalar_subquery())))
