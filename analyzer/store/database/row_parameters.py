"""Many rows as the parameters of one statement.

Rows come in one parameter per column (PostgreSQL) or in a single JSON parameter (SQLite), so that the
statement's text is equal for one row and for ten thousand: it is built once, and compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

SEPARATOR = "\x1f"

GivenRows = sa.Subquery | sa.TableValuedAlias


def rows_given(dialect: str, columns: Sequence[sa.ColumnClause[Any]]) -> GivenRows:
    """Returns a selectable with the names and types of `columns`.

    For a statement that is executed with `as_parameters`; a statement can have one of these.
    """
    if dialect == "postgresql":
        # Plain text: in a comparison with a column, the column's own collation takes precedence.
        kinds = [sa.Text() if isinstance(column.type, sa.Text) else column.type for column in columns]
        parts = [sa.column(c.name, kind) for c, kind in zip(columns, kinds, strict=True)]
        return sa.func.unnest(*map(_array, parts)).table_valued(*parts).render_derived()
    given = sa.func.json_each(sa.bindparam("given", type_=sa.JSON)).table_valued("value")
    return sa.select(
        *(
            sa.func.json_extract(given.c.value, f"$[{index}]", type_=column.type).label(column.name)
            for index, column in enumerate(columns)
        )
    ).subquery()


def _array(part: sa.ColumnClause[Any]) -> sa.ColumnElement[Any]:
    """Returns an array that is sent as one text and split by the server.

    Quoting ten thousand names one by one would cost the driver more than the rest of a flush.
    """
    joined = sa.bindparam(f"given_{part.name}", type_=sa.Text)
    split = sa.func.string_to_array(joined, sa.bindparam("given_between", type_=sa.Text))
    array = sa.cast(split, postgresql.ARRAY(part.type))
    if not isinstance(part.type, sa.Text):
        return array
    return sa.case((joined == "", postgresql.array([sa.literal_column("''", sa.Text)])), else_=array)


def as_parameters(
    dialect: str, columns: Sequence[sa.ColumnClause[Any]], rows: Sequence[Sequence[object]]
) -> dict[str, object]:
    """Returns the parameters for `rows_given`: `rows` (at least one, without None), in their order."""
    if dialect != "postgresql":
        return {"given": [list(row) for row in rows]}
    texts = [[str(row[index]) for row in rows] for index in range(len(columns))]
    separator, joined = _joined(texts)
    given = {f"given_{column.name}": text for column, text in zip(columns, joined, strict=True)}
    return {"given_between": separator, **given}


def _joined(columns: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """Returns a separator that occurs in none of the texts, and each column joined by it."""
    separator = SEPARATOR
    while True:
        joined = [separator.join(column) for column in columns]
        counts = zip(joined, columns, strict=True)
        if all(text.count(separator) == len(column) - 1 for text, column in counts):
            return separator, joined
        separator += "1"  # no suffix of it is also a prefix, so it cannot match where two texts meet
