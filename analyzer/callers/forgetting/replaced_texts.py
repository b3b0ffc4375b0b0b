"""Texts that name a caller: the audit log, sentences about locks, reports of gates, samples of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from analyzer.callers.forgetting.renaming import Renaming
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import ROWS_AT_ONCE, slow_reading, writing
from analyzer.kernel.tables.billing_tables import day_audits
from analyzer.kernel.tables.counter_tables import named_callers
from analyzer.kernel.tables.job_tables import job_runs
from analyzer.kernel.tables.schema import (
    analyzers,
    events,
    gaps,
    gates,
    lock_history,
    notices,
    plans,
    rejects,
)

TEXTS = (
    events.c.about,
    events.c.why,
    plans.c.body,  # of earlier plans
    gates.c.told,
    analyzers.c.measured,
    analyzers.c.refused,
    day_audits.c.differences,
    day_audits.c.remarks,
    job_runs.c.error,
    gaps.c.reason,
    lock_history.c.detail,
    notices.c.detail,
)
AT_ONCE = 500  # rows in one transaction
NO_SAMPLE = b"(forgotten)"

ReplaceValue = Callable[[Any], Any]


def replace(engine: sa.Engine, caller: Renaming) -> int:
    """Replaces the name in all texts, and samples that contain it; returns the number of rows."""
    changed = sum(_change(engine, column, caller.spellings, caller.replaced) for column in TEXTS)

    def without_name(callers: str) -> str:
        return "\n".join(caller.pseudonym if name == caller.name else name for name in callers.split("\n"))

    changed += _change(engine, named_callers.c.callers, (caller.name,), without_name)

    def hidden(sample: bytes) -> bytes:
        return NO_SAMPLE if caller.is_named_by(bytes(sample)) else sample

    return changed + _change(engine, rejects.c.sample, caller.plain_spellings, hidden)


def _change(
    engine: sa.Engine, column: sa.Column[Any], spellings: tuple[str, ...], change: ReplaceValue
) -> int:
    """Changes the values of a column that contain a text; returns how many."""
    changes = [
        (key, new) for key, value in _containing(engine, column, spellings) if (new := change(value)) != value
    ]
    key_columns = list(column.table.primary_key.columns)
    for first in range(0, len(changes), AT_ONCE):
        with writing(engine) as db:
            for key, new in changes[first : first + AT_ONCE]:
                is_row = sa.and_(
                    *(key_column == value for key_column, value in zip(key_columns, key, strict=True))
                )
                db.execute(sa.update(column.table).where(is_row).values({column: new}))
    return len(changes)


def _containing(
    engine: sa.Engine, column: sa.Column[Any], spellings: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields the keys and values of the rows whose value contains one of the texts."""
    is_binary = isinstance(column.type, sa.LargeBinary)
    with slow_reading(engine) as db:
        position = dialect_of(db).position
        conditions = []
        for text in spellings:
            part: Any = sa.literal(text.encode(), sa.LargeBinary) if is_binary else sa.literal(text)
            conditions.append(position(column, part) > 0)
        statement = sa.select(*column.table.primary_key.columns, column).where(sa.or_(*conditions))
        with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
            for *key, value in rows:
                yield tuple(key), value
