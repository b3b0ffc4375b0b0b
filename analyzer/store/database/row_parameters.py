"""Many rows given to one statement, in one parameter or one per column: its text is the same for one row as
for ten thousand, so that it can be built once and is compiled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

SEPARATOR = "\x1f"

GivenRows = sa.Subquery | sa.TableValuedAlias


def rows_given(dialect: str, columns: Sequence[sa.Column[Any]]) -> GivenRows:
    """Something to select from, with the names and types of `columns`, for a statement that is executed with
    `as_parameters`. One of these to a statement."""
    if dialect == "postgresql":
        # Plain text: beside the columns' own collation the default one gives way.
        kinds = [sa.Text() if isinstance(column.type, sa.Text) else column.type for column in columns]
        parts = [sa.column(c.name, kind) for c, kind in zip(columns, kinds, strict=True)]
        return sa.func.unnest(*map(_array, parts)).table_valued(*parts).render_derived()
    each = sa.func.json_each(sa.bindparam("given", type_=sa.JSON)).table_valued("value")
    return sa.select(
        *(
            sa.func.json_extract(each.c.value, f"$[{at}]", type_=c.type).label(c.name)
            for at, c in enumerate(columns)
        )
    ).subquery()


def _array(part: sa.ColumnClause[Any]) -> sa.ColumnElement[Any]:
    """An array that comes as one text, and that the server takes apart: quoting ten thousand names one by
    one costs the driver more than all the rest of a flush."""
    joined = sa.bindparam(f"given_{part.name}", type_=sa.Text)
    apart = sa.func.string_to_array(joined, sa.bindparam("given_between", type_=sa.Text))
    array = sa.cast(apart, postgresql.ARRAY(part.type))
    if not isinstance(part.type, sa.Text):
        return array
    return sa.case((joined == "", postgresql.array([sa.literal_column("''", sa.Text)])), else_=array)


def as_parameters(
    dialect: str, columns: Sequence[sa.Column[Any]], rows: Sequence[Sequence[object]]
) -> Mapping[str, object]:
    """`rows` (at least one, without None) for a statement with `rows_given` in it, which gives them in their
    order."""
    if dialect != "postgresql":
        return {"given": [list(row) for row in rows]}
    texts = [[str(row[at]) for row in rows] for at in range(len(columns))]
    between, joined = _joined(texts)
    return {"given_between": between} | {
        f"given_{column.name}": text for column, text in zip(columns, joined, strict=True)
    }


def _joined(columns: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """What is in none of these texts, and each column joined by it."""
    between = SEPARATOR
    while True:
        joined = [between.join(column) for column in columns]
        if all(text.count(between) == len(column) - 1 for text, column in zip(joined, columns, strict=True)):
            return between, joined
        between += "1"  # no end of it is like its beginning, so that it cannot be found where two meet
