"""Facts that records state about callers, in SQL: what each partition states, and what wins.

A row has the last value of a fact about a caller in one partition, and the record in which it changed. It is
written by the transaction that moves the partition's offset, so it depends on the partition's records up to
the offset and on nothing else. Of the rows of a caller the one that changed last wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.core.model import DrainedCounts, FactRun, StatedFacts
from analyzer.store.database.clock import millis
from analyzer.store.database.partition_keys import KEY_COLUMNS, PartitionKey, is_of, key_of, key_row_of
from analyzer.store.database.row_parameters import ColumnValues, is_one_of, upsert_columns
from analyzer.store.database.schema import record_facts, waiting_facts
from analyzer.store.transaction.judgement.directory import DirectoryCache

KNOWN_MAX = 200_000  # callers of all partitions in memory, some 35 MB; those of others are read
ROWS_AT_ONCE = 10_000

Values = tuple[str, ...]  # of each fact; "" for what is not stated


class KnownPartition(NamedTuple):
    """What one partition states up to the offset `next`, of callers that it has stated something about."""

    next: int
    names: tuple[str, ...]
    values: dict[str, Values]  # by caller


class KnownFacts:
    """What the partitions of this analyzer state, as far as it is in memory. Not shared between threads.

    Other analyzers may have counted a partition in the meantime, or a transaction may have failed: what is
    known of a partition is used only if the flush begins at the offset at which the last one ended.
    """

    def __init__(self) -> None:
        self._known: dict[PartitionKey, KnownPartition] = {}

    def forget(self) -> None:
        """Forgets everything: a transaction has failed, or its outcome is unknown."""
        self._known.clear()

    def of(self, stated: StatedFacts, start: int, next_: int) -> dict[str, Values]:
        """Returns what the partition of `stated` states up to `start`, by caller.

        The values must be changed to those at `next_`.
        """
        key = key_of(stated.part)
        known = self._known.get(key)
        if sum(len(one.values) for one in self._known.values()) > KNOWN_MAX:
            self._known.clear()
            known = None
        is_valid = known is not None and (known.next, known.names) == (start, stated.names)
        values = known.values if known is not None and is_valid else {}
        self._known[key] = KnownPartition(next_, stated.names, values)
        return values

    def move(self, key: PartitionKey, start: int, next_: int) -> None:
        """Notes that the records of a partition from `start` up to `next_` have stated nothing."""
        known = self._known.get(key)
        if known is not None and known.next == start:
            self._known[key] = known._replace(next=next_)


class ChangedFact(NamedTuple):
    """A value that differs from what the partition has stated before."""

    caller: str
    fact: str
    run: FactRun


def store(
    db: sa.Connection, facts: KnownFacts, counted: DrainedCounts, directory: DirectoryCache, now: datetime
) -> None:
    """Stores what the counted records state, where it has changed, and that the warden must apply it.

    The transaction holds the offsets of the partitions. Beyond the number of callers that may have facts,
    those without any get none.
    """
    by_part = {stated.part: stated for stated in counted.facts}
    waiting: set[str] = set()
    for progress in counted.parts:
        stated = by_part.get(progress.part)
        if stated is None:
            facts.move(key_of(progress.part), progress.start, progress.next)
            continue
        known = facts.of(stated, progress.start, progress.next)
        _read(db, stated, known)
        may_be_new = None if directory.has_room else directory
        changed = sorted(_changed(stated, known, may_be_new))
        if changed:
            _write(db, stated, changed)
            waiting |= {one.caller for one in changed}
    if waiting:
        queued: dict[str, ColumnValues] = {"caller": sorted(waiting), "at_ms": millis(now)}
        upsert_columns(db, waiting_facts, queued, _as_queued)


def _read(db: sa.Connection, stated: StatedFacts, known: dict[str, Values]) -> None:
    """Adds what the partition states about callers that are not in memory."""
    unknown = sorted(caller for of in (stated.steady, stated.varied) for caller in of if caller not in known)
    none = ("",) * len(stated.names)
    known |= dict.fromkeys(unknown, none)
    at = {name: index for index, name in enumerate(stated.names)}
    found: dict[str, list[str]] = {}
    for first in range(0, len(unknown), ROWS_AT_ONCE):
        is_wanted = is_one_of(db.dialect.name, record_facts.c.caller, unknown[first : first + ROWS_AT_ONCE])
        columns = record_facts.c["caller", "fact", "value"]
        here = sa.select(*columns).where(is_wanted, is_of(record_facts, stated.part))
        for caller, fact, value in db.execute(here):
            if fact in at:
                found.setdefault(caller, list(none))[at[fact]] = value
    known |= {caller: tuple(values) for caller, values in found.items()}


def _changed(
    stated: StatedFacts, known: dict[str, Values], only: DirectoryCache | None
) -> Iterable[ChangedFact]:
    """Yields what has changed, and changes `known`; with `only`, of callers that have facts."""
    others = [caller for caller, (values, _) in stated.steady.items() if known[caller] != values]
    for caller in (*others, *stated.varied):
        before = known[caller]
        if only is not None and not any(before) and caller not in only.callers:
            continue
        after = list(before)
        for at, run in enumerate(stated.runs_of(caller)):
            if run is not None and (run.value != before[at] or not run.is_only):
                after[at] = run.value
                yield ChangedFact(caller, stated.names[at], run)
        known[caller] = tuple(after)


def _write(db: sa.Connection, stated: StatedFacts, changed: Sequence[ChangedFact]) -> None:
    rows: dict[str, ColumnValues] = {
        "caller": [one.caller for one in changed],
        "fact": [one.fact for one in changed],
        **key_row_of(stated.part),
        "value": [one.run.value for one in changed],
        "since_ms": [one.run.since.ms for one in changed],
        "offset": [one.run.since.offset for one in changed],
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
    is_wanted = is_one_of(db.dialect.name, record_facts.c.caller, sorted(callers))
    ranked = sa.select(*columns, place).where(is_wanted).subquery()
    first = sa.select(*(ranked.c[column.name] for column in columns)).where(ranked.c.place == 1)
    found: dict[str, list[Statement]] = {}
    for row in db.execute(first.order_by(ranked.c.caller, ranked.c.fact)):
        found.setdefault(row.caller, []).append(Statement(*row[1:]))
    return found
