"""The origin of a closed day: offsets of each partition, and what its counts take as given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.kernel.database.audit_log import RECORDS_RETRIED
from analyzer.kernel.database.chain import restored_ms
from analyzer.kernel.database.installation_secrets import REFERENCES, known_secret
from analyzer.kernel.database.partition_keys import key_columns, same_partition
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.tables.billing_tables import corrections, day_positions, days
from analyzer.kernel.tables.counter_tables import event_ids, named_callers
from analyzer.kernel.tables.schema import disbelieved, events, gaps, offsets, stretches

HASH_BYTES = 8  # of an id that is remembered


class CutPartition(NamedTuple):
    """The offsets of a partition between the cut of the day before and that of the day."""

    topic: str
    partition: int
    cluster: str
    topic_id: str
    begin: int  # without a closed day before: where counting began
    cut: int
    target: int | None
    is_left_out: bool
    is_gone: bool
    source: str


class PlanStretch(NamedTuple):
    """The plan by which a partition was counted from an offset on."""

    topic_id: str
    partition: int
    start: int
    plan: int
    mark: str


class SkippedGap(NamedTuple):
    """Offsets that an operator let a partition skip."""

    topic_id: str
    partition: int
    start: int
    accepted_to: int
    accepted_by: str


class RetriedRecords(NamedTuple):
    """Rejected records that an operator had counted since the day before was cut."""

    at_ms: int
    records: str
    who: str


class BookedCorrection(NamedTuple):
    """An amount that an operator has corrected, booked on the day."""

    id: int
    meter: str
    amount: int
    at_ms: int


class Remembered(NamedTuple):
    """The callers' names and ids of events that a partition remembers, and carries into the next day."""

    topic_id: str
    partition: int
    callers: int  # that it counts by name, of two hours
    ids: int
    ids_kept_ms: int | None  # for how long it really kept ids, at the least; None: it has none


def remembered_by(db: sa.Connection) -> list[Remembered]:
    """Returns what partitions remember, of those that remember something."""
    size = sa.func.length
    names = named_callers.c.callers
    callers = _amounts(db, named_callers, size(names) - size(sa.func.replace(names, "\n", "")) + 1)
    ids = _amounts(db, event_ids, size(event_ids.c.hashes))
    columns = offsets.c
    statement = sa.select(*key_columns(offsets), columns.ids_kept_ms).order_by(
        columns.topic, columns.partition, columns.cluster, columns.topic_id
    )
    remembered = []
    for *key, kept_ms in db.execute(statement):
        partition = tuple(key)
        if partition in callers or partition in ids:
            remembered.append(
                Remembered(
                    partition[1],
                    partition[2],
                    callers.get(partition, 0),
                    ids.get(partition, 0) // HASH_BYTES,
                    kept_ms,
                )
            )
    return remembered


def _amounts(db: sa.Connection, table: sa.Table, amount: sa.ColumnElement[int]) -> dict[tuple[Any, ...], int]:
    """Returns the sum of an amount, by cluster, topic id and partition."""
    columns = key_columns(table)
    statement = sa.select(*columns, sa.func.sum(amount)).group_by(*columns)
    return {tuple(key): int(total) for *key, total in db.execute(statement)}


def count_origin(db: sa.Connection, day: Day, remembered: Sequence[Remembered] = ()) -> dict[str, Any]:
    """Returns where the counts of a day that was cut come from, as JSON.

    Reasons of operators are not among it: they stand in tables from which a forgotten name can be taken.
    `remembered` is what partitions remembered at the cut. Stored when the day is closed: plans, and
    verdicts that were not believed, are deleted some day.
    """
    partitions = _partitions(db, day)
    previous = _day_before(db, day)
    return {
        "cut_ms": day.cut_ms,
        # The key that identifiers of billed usage are made with, which a database that is made new has not.
        "references": references_fingerprint(db),
        # Its amounts may be others than those that were handed over before.
        "closed_after_restore": _was_restored_since(db, day),
        "partitions": [part._asdict() for part in partitions],
        "given": {
            "plans": [plan._asdict() for part in partitions for plan in _plans(db, part)],
            "gaps": [gap._asdict() for part in partitions for gap in _gaps(db, part)],
            # Denied requests of these offsets that count, because no lock supports the denial.
            "disbelieved_verdicts": disbelieved_verdicts(db, partitions),
            # Booked on the day, by their numbers: their amounts and reasons stand in another table.
            "corrections": [entry._asdict() for entry in _corrections(db, day)],
            "retried": [records._asdict() for records in _retried(db, day, previous)],
            # Names and ids from the day before, by which this one was counted.
            "carried": [] if previous is None else json.loads(previous.given or "{}").get("remembered", []),
        },
        "remembered": [memory._asdict() for memory in remembered],
    }


def was_closed_after_restore(day: Day) -> bool:
    """Whether a closed day was over when the database was restored, and cut after that."""
    return bool(json.loads(day.given or "{}").get("closed_after_restore"))


def _was_restored_since(db: sa.Connection, day: Day) -> bool:
    """Whether the database was restored when a day was over, and not cut yet."""
    at_ms = restored_ms(db)
    return at_ms is not None and day.end_s * 1000 <= at_ms < (day.cut_ms or 0)


def references_fingerprint(db: sa.Connection) -> str:
    """Returns what tells the key of references apart from others; "" if there is none."""
    secret = known_secret(db, REFERENCES)
    return "" if secret is None else DigestKey(secret).fingerprint


def origin_differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Returns what counts come from otherwise than before, in sentences.

    Not compared is what cannot be repeated: what partitions remembered, and the second count.
    """
    sentences = []
    given, given_before = now["given"], before["given"]
    names = {part["topic_id"]: part["topic"] for part in [*now["partitions"], *before["partitions"]]}
    for place, entries in (
        ("partitions", (now["partitions"], before["partitions"])),
        *((name, (given[name], given_before[name])) for name in given if name != "carried"),
    ):
        stands, stood = entries
        if stands == stood:
            continue
        if place == "disbelieved_verdicts":
            sentences.append(
                f"denied requests that count, as no lock was in force: {stands:,}, not {stood:,}"
            )
            continue
        for words, those in (("there is", _without(stands, stood)), ("there was", _without(stood, stands))):
            sentences += [f"{ORIGINS[place]}: {words} {_in_words(entry, names)}" for entry in those]
    return sentences


ORIGINS = {
    "partitions": "partitions",
    "plans": "plans that it was counted by",
    "gaps": "offsets that an operator let skip",
    "retried": "rejected records that an operator had counted",
    "corrections": "amounts that operators have corrected",
}


def _without(entries: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    return [entry for entry in entries if entry not in others]


def _in_words(entry: Mapping[str, Any], names: Mapping[str, str]) -> str:
    shown = {name: value for name, value in entry.items() if name not in ("cluster", "topic_id")}
    if "topic_id" in entry and "topic" not in shown:
        shown = {"topic": names.get(entry["topic_id"], entry["topic_id"]), **shown}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _day_before(db: sa.Connection, day: Day) -> Day | None:
    """Returns the day of the zone that was cut last before this one."""
    is_before = (days.c.zone == day.zone, days.c.begin_s < day.begin_s, days.c.cut_ms.is_not(None))
    return max(stored_days(db, *is_before), key=lambda earlier: earlier.begin_s, default=None)


def _corrections(db: sa.Connection, day: Day) -> list[BookedCorrection]:
    columns = corrections.c
    statement = sa.select(columns.id, columns.meter, columns.amount, columns.at_ms)
    rows = db.execute(statement.where(columns.booked == day.id).order_by(columns.id))
    return [BookedCorrection(*row) for row in rows]


def _retried(db: sa.Connection, day: Day, previous: Day | None) -> list[RetriedRecords]:
    columns = events.c
    since_ms = 0 if previous is None else previous.cut_ms
    statement = sa.select(columns.at_ms, columns.about, columns.who).where(
        columns.act == RECORDS_RETRIED, columns.at_ms > since_ms, columns.at_ms <= day.cut_ms
    )
    return [RetriedRecords(*row) for row in db.execute(statement.order_by(columns.at_ms, columns.about))]


def _partitions(db: sa.Connection, day: Day) -> list[CutPartition]:
    earlier = day_positions.alias()
    previous_cut = (
        sa.select(sa.func.max(earlier.c.cut))
        .join(days, days.c.id == earlier.c.day)
        .where(
            *(earlier.c[column.name] == column for column in key_columns(day_positions)),
            days.c.zone == day.zone,
            days.c.begin_s < day.begin_s,
        )
        .correlate(day_positions)
        .scalar_subquery()
    )
    columns = day_positions.c
    begin = sa.func.coalesce(previous_cut, offsets.c.begin, 0)
    statement = (
        sa.select(
            *(
                columns.topic,
                columns.partition,
                columns.cluster,
                columns.topic_id,
                begin,
                columns.cut,
                columns.target,
                columns.left_out != "",
            ),
            columns.is_gone,
            columns.source,
        )
        .join(offsets, same_partition(offsets, day_positions), isouter=True)
        .where(columns.day == day.id, columns.cut.is_not(None))
        .order_by(columns.topic, columns.partition, columns.cluster, columns.topic_id)
    )
    return [CutPartition._make((*row[:8], bool(row[8]), row[9])) for row in db.execute(statement)]


def _is_cut_partition(table: sa.Table, part: CutPartition) -> sa.ColumnElement[bool]:
    values = (part.cluster, part.topic_id, part.partition)
    return sa.and_(*(column == value for column, value in zip(key_columns(table), values, strict=True)))


def _plans(db: sa.Connection, part: CutPartition) -> list[PlanStretch]:
    """Returns the plans of the offsets, among them the one that was in force where they begin."""
    columns = stretches.c
    first = (
        sa.select(sa.func.max(columns.start)).where(
            _is_cut_partition(stretches, part), columns.start <= part.begin
        )
    ).scalar_subquery()
    statement = sa.select(
        columns.topic_id, columns.partition, columns.start, columns.plan, columns.mark
    ).where(
        _is_cut_partition(stretches, part),
        columns.start >= sa.func.coalesce(first, 0),
        columns.start < part.cut,
    )
    return [PlanStretch(*row) for row in db.execute(statement.order_by(columns.start))]


def _gaps(db: sa.Connection, part: CutPartition) -> list[SkippedGap]:
    columns = gaps.c
    statement = sa.select(
        columns.topic_id,
        columns.partition,
        columns.start,
        columns.accepted_to,
        columns.accepted_by,
    ).where(
        _is_cut_partition(gaps, part),
        columns.accepted_ms.is_not(None),
        columns.start >= part.begin,
        columns.start < part.cut,
    )
    return [SkippedGap(*row) for row in db.execute(statement.order_by(columns.start, columns.id))]


def disbelieved_verdicts(db: sa.Connection, partitions: Sequence[CutPartition]) -> int:
    """Returns how many denied requests of these offsets count, because no lock supports the denial."""
    return sum(_disbelieved(db, part) for part in partitions)


def _disbelieved(db: sa.Connection, part: CutPartition) -> int:
    columns = disbelieved.c
    statement = sa.select(sa.func.coalesce(sa.func.sum(columns.requests), 0)).where(
        _is_cut_partition(disbelieved, part), columns.begin >= part.begin, columns.next <= part.cut
    )
    return int(db.execute(statement).scalar_one())
