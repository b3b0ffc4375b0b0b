"""Sentences about differences between a database's tables and schema.py, as Alembic finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, DropIndex


def difference_sentence(difference: Sequence[Any], dialect: sa.Dialect) -> str:
    """Returns one sentence: what differs, and what to do about it.

    Args:
        difference: An element of what `alembic.autogenerate.compare_metadata` returns: a tuple with a word
            and the objects that it is about, or a list of such tuples about one column.
        dialect: That of the database, whose SQL the sentence has.
    """
    if isinstance(difference, list):
        return "; ".join(difference_sentence(part, dialect) for part in difference)
    match difference:
        case ("add_table" | "remove_table" as word, table):
            return _table_sentence(word, table)
        case ("add_column" | "remove_column" as word, _, table_name, column):
            return _column_sentence(word, table_name, column, dialect)
        case ("add_index" | "remove_index" as word, index):
            return _index_sentence(word, index, dialect)
        case (word, constraint):
            return _constraint_sentence(word, constraint)
    return _changed_column_sentence(difference, dialect)


def guard_sentence(guard: str) -> str:
    """Returns what it means that the trigger "table.trigger" is missing, and what to do about it."""
    table, _, name = guard.partition(".")
    return (
        f"the trigger {name} of the table {table} is missing or disabled, and what is closed can be changed: "
        "enable it, or restore the database from a backup; `gatelock billing audit` finds changed days"
    )


def _table_sentence(word: str, table: sa.Table) -> str:
    if word == "add_table":
        return f"the table {table.name} is missing: restore the database from a backup"
    return f"the table {table.name} is none of Gatelock's: move it to another database, or drop it"


def _column_sentence(word: str, table: str, column: sa.Column[Any], dialect: sa.Dialect) -> str:
    what = f"the column {column.name} of the table {table}"
    if word == "add_column":
        kind = column.type.compile(dialect)
        return f"{what}, of the type {kind}, is missing: restore the database from a backup"
    return f"{what} is none of Gatelock's: drop it with `ALTER TABLE {table} DROP COLUMN {column.name}`"


def _index_sentence(word: str, index: sa.Index, dialect: sa.Dialect) -> str:
    table = "" if index.table is None else f" of the table {index.table.name}"
    what = f"the index {index.name}{table}"
    if word == "add_index":
        return f"{what} is missing: create it with `{_sql(CreateIndex(index), dialect)}`"
    cure = f"drop it with `{_sql(DropIndex(index), dialect)}`"
    return f"{what} is none of Gatelock's, or has other columns: {cure}"


def _constraint_sentence(word: str, constraint: sa.Constraint) -> str:
    what = f"the constraint {constraint.name or 'without a name'} of the table {constraint.table.name}"
    if word.startswith("remove_"):
        return f"{what} is none of Gatelock's, and may refuse its rows: drop it"
    return f"{what} is missing: restore the database from a backup"


def _changed_column_sentence(difference: Sequence[Any], dialect: sa.Dialect) -> str:
    word, _, table, column, _, present, needed = difference
    what = f"the column {column} of the table {table}"
    cure = "change it as the schema of this version has it, or restore the database from a backup"
    match word:
        case "modify_type":
            kinds = f"{present.compile(dialect)}, and needs {needed.compile(dialect)}"
            return f"{what} has the type {kinds}: {cure}"
        case "modify_nullable" if present:
            return f"{what} permits NULL, and must not: {cure}"
        case "modify_nullable":
            return f"{what} does not permit NULL, and must: {cure}"
        case _:
            return f"{what} has another {word.removeprefix('modify_')} than it needs: {cure}"


def _sql(statement: CreateIndex | DropIndex, dialect: sa.Dialect) -> str:
    return " ".join(str(statement.compile(dialect=dialect)).split())
