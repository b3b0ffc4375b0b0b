"""Facts that records state about callers, in SQL: what each partition states, and what wins.

A row has the last value of a fact about a caller in one partition, and the record in which it changed. It is
written by the transaction that moves the partition's offset, so it depends on the partition's records up to
the offset and on nothing else. Of the rows of a caller the one that changed last wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging.sql.directory import DirectoryCache
from analyzer.kernel.database.clock import millis
from analyzer.kernel.database.partition_keys import KEY_COLUMNS, is_partition, key_values
from analyzer.kernel.database.row_parameters import ColumnValues, is_among, upsert_columns
from analyzer.kernel.model import DrainedCounts, FactRun, StatedFacts
from analyzer.kernel.tables.schema import record_facts, waiting_facts

ROWS_AT_ONCE = 10_000


class ChangedFact(NamedTuple):
    """A value that differs from what the partition has stated before."""

    caller: str
    fact: str
    run: FactRun


def store(db: sa.Connection, counted: DrainedCounts, directory: DirectoryCache, now: datetime) -> None:
    """Stores what the counted records state, where it has changed, and that the warden must apply it.

    The transaction holds the offsets of the partitions. Beyond the number of callers that may have facts,
    those without any get none.
    """
    waiting: set[str] = set()
    for facts in counted.facts:
        callers = sorted(caller for caller in facts.runs if directory.has_room or caller in directory.callers)
        changed = sorted(_changed(db, facts, callers))
        if changed:
            _write(db, facts, changed)
            waiting |= {fact.caller for fact in changed}
    if waiting:
        queued: dict[str, ColumnValues] = {"caller": sorted(waiting), "at_ms": millis(now)}
        upsert_columns(db, waiting_facts, queued, _as_queued)


def _changed(db: sa.Connection, facts: StatedFacts, callers: Sequence[str]) -> Iterator[ChangedFact]:
    """Yields the facts about these callers that the partition has stated otherwise before, or not at all."""
    stored: dict[tuple[str, str], str] = {}
    for first in range(0, len(callers), ROWS_AT_ONCE):
        is_wanted = is_among(db.dialect.name, record_facts.c.caller, callers[first : first + ROWS_AT_ONCE])
        columns = record_facts.c["caller", "fact", "value"]
        statement = sa.select(*columns).where(is_wanted, is_partition(record_facts, facts.part))
        stored |= {(caller, fact): value for caller, fact, value in db.execute(statement)}
    for caller in callers:
        for fact, run in zip(facts.names, facts.runs[caller], strict=True):
            if run is not None and not (run.is_first and stored.get((caller, fact)) == run.value):
                yield ChangedFact(caller, fact, run)


def _write(db: sa.Connection, facts: StatedFacts, changed: Sequence[ChangedFact]) -> None:
    rows: dict[str, ColumnValues] = {
        "caller": [fact.caller for fact in changed],
        "fact": [fact.fact for fact in changed],
        **key_values(facts.part),
        "value": [fact.run.value for fact in changed],
        "since_ms": [fact.run.since.ms for fact in changed],
        "offset": [fact.run.since.offset for fact in changed],
    }
    upsert_columns(db, record_facts, rows, _as_stated)


def _as_stated(_dialect: str, _table: sa.Table, new: Any) -> Mapping[str, sa.ColumnElement[Any]]:
    return {name: new[name] for name in ("value", "since_ms", "offset")}


def _as_queued(_dialect: str, table: sa.Table, _new: Any) -> Mapping[str, sa.ColumnElement[Any]]:
    return {"at_ms": table.c.at_ms}


class Statement(NamedTuple):
    """A fact about a caller, and the record that has stated it."""

    fact: str
    value: str
    since_ms: int
    cluster: str
    topic_id: str
    partition: int
    offset: int


def winners(db: sa.Connection, callers: Collection[str]) -> Mapping[str, Sequence[Statement]]:
    """Returns what records state about callers, one statement for each fact, by caller.

    Of several partitions the one whose value changed last wins, by Kafka time, then by its key.
    """
    order = [record_facts.c[name].desc() for name in ("since_ms", *KEY_COLUMNS)]
    of_fact = [record_facts.c[name] for name in ("caller", "fact")]
    place = sa.func.row_number().over(partition_by=of_fact, order_by=order).label("place")
    columns = [record_facts.c[name] for name in ("caller", *Statement._fields)]
    is_wanted = is_among(db.dialect.name, record_facts.c.caller, sorted(callers))
    ranked = sa.select(*columns, place).where(is_wanted).subquery()
    first = sa.select(*(ranked.c[column.name] for column in columns)).where(ranked.c.place == 1)
    statements: dict[str, list[Statement]] = {}
    for row in db.execute(first.order_by(ranked.c.caller, ranked.c.fact)):
        statements.setdefault(row.caller, []).append(Statement(*row[1:]))
    return statements
