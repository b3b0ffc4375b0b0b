"""Many rows as the parameters of one statement.

Rows come in one parameter per column (PostgreSQL) or in a single JSON parameter (SQLite), so that the
statement's text is equal for one row and for ten thousand: it is built once, and compiled once.

`upsert_columns` is for millions of rows: it takes columns rather than rows, a value that all rows share is
passed once, and SQLite gets the rows bound one by one, which is faster than JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles

from analyzer.kernel.database.dialects import DIALECTS
from analyzer.kernel.database.engine import insert_into

SEPARATOR = "\x1f"
ROWS_MAX = 10_000  # per statement, whose time-out is two seconds; so many take 0.1 s
STATEMENTS_MAX = 128  # kept in memory; one plan uses a few of them

ColumnValues = Sequence[int] | Sequence[str] | int | str  # a number or a text: equal in all rows
Assignments = Callable[[str, sa.Table, Any], Mapping[str, sa.ColumnElement[Any]]]

GivenRows = sa.Subquery | sa.TableValuedAlias


def rows_given(dialect: str, columns: Sequence[sa.ColumnClause[Any]]) -> GivenRows:
    """Returns a selectable with the names and types of `columns`.

    For a statement that is executed with `as_parameters`; a statement can have one of these.
    """
    if DIALECTS[dialect].takes_arrays:
        # Plain text: in a comparison with a column, the column's own collation takes precedence.
        kinds = [sa.Text() if isinstance(column.type, sa.Text) else column.type for column in columns]
        parts = [sa.column(c.name, kind) for c, kind in zip(columns, kinds, strict=True)]
        return sa.func.unnest(*map(_array, parts)).table_valued(*parts).render_derived()
    elements = sa.func.json_each(sa.bindparam("given", type_=sa.JSON)).table_valued("value")
    return sa.select(
        *(
            sa.func.json_extract(elements.c.value, f"$[{index}]", type_=column.type).label(column.name)
            for index, column in enumerate(columns)
        )
    ).subquery()


class LookUp(sa.Join):
    """A join of given rows with the rows of a table that they name: `LookUp(given, table, condition)`.

    Each given row is looked up in an index. SQLite decides by itself without statistics: it would rather
    read all rows of a sum, and all given ones for each of these. It keeps the order of a CROSS JOIN.
    """

    inherit_cache = True


@compiles(LookUp)
def _look_up_in_order(join: LookUp, compiler: Any, **options: Any) -> str:
    text: str = compiler.visit_join(join, **options)
    return text.replace(" JOIN ", DIALECTS[compiler.dialect.name].ordered_join, 1)


def is_among(
    dialect: str, column: sa.ColumnElement[Any], values: Sequence[int] | Sequence[str]
) -> sa.ColumnElement[bool]:
    """Returns the condition that looks each value up in an index, rather than reading all in between."""
    if DIALECTS[dialect].takes_arrays:
        array = sa.bindparam(None, list(values), type_=postgresql.ARRAY(column.type))
        return column == sa.any_(array)
    listed = sa.func.json_each(sa.literal(list(values), sa.JSON)).table_valued("value")
    return column.in_(sa.select(listed.c.value))


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
    if not DIALECTS[dialect].takes_arrays:
        return {"given": [list(row) for row in rows]}
    texts = [[str(row[index]) for row in rows] for index in range(len(columns))]
    separator, joined = _joined(texts)
    parameters = {f"given_{column.name}": text for column, text in zip(columns, joined, strict=True)}
    return {"given_between": separator, **parameters}


def in_parts(
    dialect: str, columns: Sequence[sa.ColumnClause[Any]], rows: Sequence[Sequence[object]]
) -> Iterator[dict[str, object]]:
    """Yields the parameters for as many executions of a statement with `rows_given` as the rows need."""
    for first in range(0, len(rows), ROWS_MAX):
        yield as_parameters(dialect, columns, rows[first : first + ROWS_MAX])


def insert_given(
    dialect: str, table: sa.Table, names: Collection[str], constants: Collection[str] = ()
) -> Any:
    """Returns an INSERT of given rows, to be executed with `as_parameters`.

    The columns in `constants` have the same value in all rows, the parameter `given_NAME`.
    """
    columns = [table.c[name] for name in names]
    rows = rows_given(dialect, [column for column in columns if column.name not in constants])
    selected = [
        sa.bindparam(f"given_{column.name}", type_=column.type).label(column.name)
        if column.name in constants
        else rows.c[column.name]
        for column in columns
    ]
    # With a condition, or SQLite would take ON CONFLICT for a part of the SELECT.
    return insert_into(dialect, table).from_select(list(names), sa.select(*selected).where(sa.true()))


@lru_cache(maxsize=STATEMENTS_MAX)
def store_given(dialect: str, columns: tuple[sa.Column[Any], ...]) -> Any:
    """Returns an INSERT of given rows that replaces those that exist, to be executed with `as_parameters`."""
    table = columns[0].table
    added = insert_given(dialect, table, [column.name for column in columns])
    changed = {column.name: added.excluded[column.name] for column in columns if not column.primary_key}
    return added.on_conflict_do_update(index_elements=table.primary_key, set_=changed)


@lru_cache(maxsize=STATEMENTS_MAX)
def delete_given(dialect: str, columns: tuple[sa.Column[Any], ...]) -> sa.Delete:
    """Returns a DELETE of rows by given values of these columns, to be executed with `as_parameters`."""
    rows = rows_given(dialect, columns)
    return sa.delete(columns[0].table).where(sa.tuple_(*columns).in_(sa.select(*rows.c)))


def _joined(columns: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """Returns a separator that occurs in none of the texts, and each column joined by it."""
    separator = SEPARATOR
    while True:
        joined = [separator.join(column) for column in columns]
        counts = zip(joined, columns, strict=True)
        if all(text.count(separator) == len(column) - 1 for text, column in counts):
            return separator, joined
        separator += "1"  # no suffix of it is also a prefix, so it cannot match where two texts meet


def upsert_columns(
    db: sa.Connection,
    table: sa.Table,
    values: Mapping[str, ColumnValues],
    assignments: Assignments,
    returning: Callable[[Any], sa.Select[Any]] | None = None,
) -> list[sa.Row[Any]]:
    """Inserts rows, at least one, in their order; rows that exist are updated by
    `assignments(dialect, table, new)`.

    Both functions must be equal for equal statements, because statements are kept: methods of a value that
    hashes, or functions of a module. `returning` makes a query of the rows that were written, and what it
    selects is returned. Without arrays nothing is returned.
    """
    lists = {name: value for name, value in values.items() if not isinstance(value, int | str)}
    constants = {name: value for name, value in values.items() if isinstance(value, int | str)}
    number = len(next(iter(lists.values())))
    statement: Any
    dialect = db.dialect.name
    driver: Any = type(db.dialect)
    if not DIALECTS[dialect].takes_arrays:
        text, order = _upsert_of_rows(driver, table, tuple(values), assignments)
        columns = (
            lists[name] if name in lists else repeat(values.get(str(name), name), number) for name in order
        )
        db.exec_driver_sql(text, list(zip(*columns, strict=True)))
        return []
    statement = _upsert_of_columns(
        dialect, table, tuple(values), frozenset(constants), assignments, returning
    )
    rows: list[sa.Row[Any]] = []
    fixed = {f"given_{name}": value for name, value in constants.items()}
    for first in range(0, number, ROWS_MAX):
        chunk = [_texts(column[first : first + ROWS_MAX]) for column in lists.values()]
        separator, joined = _joined(chunk)
        parameters = {f"given_{name}": text for name, text in zip(lists, joined, strict=True)}
        result = db.execute(statement, {"given_between": separator, **fixed, **parameters})
        if returning is not None:
            rows += result
    return rows


def _texts(values: Sequence[Any]) -> Sequence[str]:
    return values if isinstance(values[0], str) else list(map(str, values))


@lru_cache(maxsize=STATEMENTS_MAX)
def _upsert_of_rows(
    driver: Any, table: sa.Table, names: tuple[str, ...], assignments: Assignments
) -> tuple[str, tuple[str | int, ...]]:
    """Returns the statement for one row, and its parameters: names of columns, and fixed numbers."""
    added = insert_into(driver.name, table).values({name: sa.bindparam(name) for name in names})
    added = added.on_conflict_do_update(
        index_elements=table.primary_key, set_=dict(assignments(driver.name, table, added.excluded))
    )
    compiled = added.compile(dialect=driver(paramstyle="qmark"))
    order: Sequence[str] = compiled.positiontup or ()
    return str(compiled), tuple(name if name in names else compiled.params[name] for name in order)


@lru_cache(maxsize=STATEMENTS_MAX)
def _upsert_of_columns(
    dialect: str,
    table: sa.Table,
    names: tuple[str, ...],
    constants: frozenset[str],
    assignments: Assignments,
    returning: Callable[[Any], sa.Select[Any]] | None,
) -> Any:
    insertion = insert_given(dialect, table, names, constants)
    added: Any = insertion.on_conflict_do_update(
        index_elements=table.primary_key, set_=dict(assignments(dialect, table, insertion.excluded))
    )
    if returning is None:
        return added
    return returning(added.returning(*table.c).cte("written"))
