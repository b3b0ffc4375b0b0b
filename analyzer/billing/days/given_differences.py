"""Compares what a bill takes as given with the chain of entries, both ways; see docs/decisions/0078."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.billing.days.deleted_days import ROWS
from analyzer.billing.days.signed_reasons import is_signed
from analyzer.kernel.database import chain, signed_rows
from analyzer.kernel.database.audit_log import RECORDS_RETRIED
from analyzer.kernel.database.chain import ChainCheck, ChainEntry, EntryKind, Signer, Witness
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import reading
from analyzer.kernel.database.partition_keys import same_partition
from analyzer.kernel.database.signed_rows import Given, StoredRow, rows_of
from analyzer.kernel.errors import WitnessAway
from analyzer.kernel.tables.billing_tables import (
    corrections,
    day_positions,
    days,
    deleted_days,
    deliveries,
)
from analyzer.kernel.tables.replay_tables import replay_positions, replays
from analyzer.kernel.tables.schema import events, gaps, offsets, plans, stretches

DELETED_WITHIN_MS = 86_400_000  # of its mark, a day has no rows any more
DELETED_AGE_MS = 62 * 86_400_000  # the triggers refuse the mark of a younger day
WITHOUT_WITNESS = "no [billing] witness: entries that were cut off the end of the chain are not found"


class GivenDifference(NamedTuple):
    """A given thing that the chain does not have, or has in another form.

    Attributes:
        what: A sentence about it.
        day: The id of the one day that it concerns; None: all of them.
    """

    what: str
    day: int | None = None


class GivenOutcome(NamedTuple):
    """The outcome of the comparison with the chain.

    Attributes:
        entries: How many it has.
        differences: In no order.
        remarks: What it does not prove.
    """

    entries: int = 0
    differences: Sequence[GivenDifference] = ()
    remarks: Sequence[str] = ()

    def about(self, day: Day) -> list[str]:
        """Returns the differences that concern a day, in sentences."""
        return [difference.what for difference in self.differences if difference.day in (None, day.id)]


def compare_given(db: sa.Connection, signer: Signer) -> GivenOutcome:
    """Compares all that bills take as given with the chain, and the chain with its witness."""
    check = chain.check_chain(db, signer)
    differences = [GivenDifference(sentence) for sentence in check.broken]
    # Until a day is closed, nothing is billed by it.
    remarks = list(check.remarks) if check.of("closing") else []
    if signer.witness is None:
        remarks += [WITHOUT_WITNESS] if signer.key.fingerprint and check.of("closing") else []
    else:
        try:
            differs = _differs_from_witness(db, signer.witness())
        except WitnessAway as error:
            differs = f"the witness of the chain cannot be read: {error}"
        differences += [GivenDifference(differs)] if differs else []
    comparison = _Comparison(db, check)
    for compare in COMPARED:
        differences += compare(comparison)
    for entry in check.of("restored").get("", ()):
        fields = json.loads(entry.fields)
        lost = f": those up to {fields['witness_number']} were lost" if fields["witness_number"] else ""
        remarks.append(f"restored after the entry {fields['number']}, as an operator has said{lost}")
    number = sum(len(entries) for by_subject in check.entries.values() for entries in by_subject.values())
    return GivenOutcome(number, differences, remarks)


def _differs_from_witness(db: sa.Connection, witness: Witness) -> str:
    seen = witness.seen()
    if not chain.differs_from_witness(db, seen):
        return ""
    # The witness has acts since this snapshot began.
    with reading(db.engine) as newer:
        return chain.differs_from_witness(newer, seen)


class _Comparison:
    """Rows beside the entries that they must have."""

    def __init__(self, db: sa.Connection, check: ChainCheck) -> None:
        self.db = db
        self.check = check
        self._salts = chain.salts(db)

    def differing(self, expected: Given, name: str, day: int | None = None) -> Iterator[GivenDifference]:
        """Yields a difference unless the last entry of its subject is the one that a row must have."""
        entries = self.check.of(expected.kind).get(expected.subject)
        if not entries:
            yield GivenDifference(f"{name} stands in the tables, and no act has entered it in the chain", day)
        elif not self._fits(expected, entries[-1]):
            yield GivenDifference(
                f"{name} is not what its act has entered in the chain (entry {entries[-1].number})", day
            )

    def _fits(self, expected: Given, entry: ChainEntry) -> bool:
        fields = json.loads(entry.fields)
        salt = self._salts.get(entry.number, b"")
        digests = {name: chain.text_digest(salt, text) for name, text in expected.texts.items()}
        return bool(fields == {**expected.fields, **digests})

    def without_row(self, kind: EntryKind, subjects: Collection[str]) -> Iterator[tuple[str, ChainEntry]]:
        """Yields the last entry of each subject that has no row any more."""
        for subject, entries in self.check.of(kind).items():
            if subject not in subjects:
                yield subject, entries[-1]


def _plans(comparison: _Comparison) -> Iterator[GivenDifference]:
    """Compares plans, and the stretches and replays that name them."""
    db = comparison.db
    rows = rows_of(db, plans)
    expected = [signed_rows.plan(row) for row in rows]
    for row, of_row in zip(rows, expected, strict=True):
        yield from comparison.differing(of_row, f"the plan {row['version']}")
    named = sa.union(
        sa.select(stretches.c.plan, stretches.c.mark),
        sa.select(replays.c.plan, replays.c.mark).where(replays.c.state == "swapped"),
    )
    counted_by = {f"{version} {mark}": version for version, mark in db.execute(named)}
    entered = comparison.check.of("plan")
    for subject, version in counted_by.items():
        if subject not in entered:
            yield GivenDifference(f"records were counted by the plan {version}, which no act put in force")
    newest = max(entered.values(), key=lambda entries: entries[-1].number, default=())
    for subject, entry in comparison.without_row("plan", {of_row.subject for of_row in expected}):
        # Others are deleted after their retention.
        if subject in counted_by or entry in newest:
            version = subject.split(" ")[0]
            yield GivenDifference(f"the plan {version} was put in force (entry {entry.number}), and is gone")


def _gaps(comparison: _Comparison) -> Iterator[GivenDifference]:
    rows = rows_of(comparison.db, gaps, gaps.c.accepted_ms.is_not(None))
    for row in rows:
        where = f"{row['topic']}[{row['partition']}]"
        yield from comparison.differing(
            signed_rows.gap(row), f"the skipped gap of {where} at {row['start']:,}"
        )
    for _, entry in comparison.without_row("gap", {str(row["id"]) for row in rows}):
        yield GivenDifference(f"a gap was skipped (entry {entry.number}), and its row is gone")


def _retries(comparison: _Comparison) -> Iterator[GivenDifference]:
    for row in rows_of(comparison.db, events, events.c.act == RECORDS_RETRIED):
        yield from comparison.differing(signed_rows.retry(row), f"the retry of {row['about']}")


def _left_out(comparison: _Comparison) -> Iterator[GivenDifference]:
    rows = rows_of(comparison.db, day_positions, day_positions.c.left_out != "")
    for row in rows:
        name = f"that {row['topic'] or row['topic_id']}[{row['partition']}] is left out"
        yield from comparison.differing(signed_rows.left_out(row), name, row["day"])


def _corrections(comparison: _Comparison) -> Iterator[GivenDifference]:
    rows = rows_of(comparison.db, corrections)
    closed = set(comparison.db.scalars(sa.select(days.c.id).where(days.c.state == "closed")))
    for row in rows:
        name = f"the correction {row['id']} of {row['amount']:+,} {row['meter']}"
        yield from comparison.differing(signed_rows.correction(row), name, row["booked"])
        # Of a closed day, its audit says so.
        if row["booked"] not in closed and not is_signed(row["reason"], row["salt"], row["reason_digest"]):
            yield GivenDifference(f"the reason of {name} is not what its act has entered", row["booked"])
    for subject, entry in comparison.without_row("correction", {str(row["id"]) for row in rows}):
        booked = json.loads(entry.fields)["booked"]
        sentence = f"the correction {subject} was booked (entry {entry.number}), and is gone"
        yield GivenDifference(sentence, booked)


def _closings(comparison: _Comparison) -> Iterator[GivenDifference]:
    rows = rows_of(comparison.db, days)
    closed = [row for row in rows if row["state"] == "closed"]
    for row in closed:
        yield from comparison.differing(
            signed_rows.closing(row), f"the closing of {row['date']} ({row['zone']})", row["id"]
        )
    ids = {signed_rows.closing(row).subject: row["id"] for row in rows}
    for subject, entry in comparison.without_row(
        "closing", {signed_rows.closing(row).subject for row in closed}
    ):
        zone, _, date = subject.rpartition(" ")
        sentence = f"{date} ({zone}) was closed (entry {entry.number}), and is not closed any more"
        yield GivenDifference(sentence, ids.get(subject, 0))
    for subject, entries in comparison.check.of("closing").items():
        if len(entries) > 1:
            numbers = ", ".join(str(entry.number) for entry in entries)
            zone, _, date = subject.rpartition(" ")
            yield GivenDifference(
                f"{date} ({zone}) was closed more than once (entries {numbers})", ids.get(subject, 0)
            )


def _offsets(comparison: _Comparison) -> Iterator[GivenDifference]:
    """Compares where partitions are counted with the cuts: what was set back would be counted twice."""
    position, is_same = day_positions.c, same_partition(offsets, day_positions)
    statement = (
        sa.select(offsets.c.topic, offsets.c.partition, offsets.c.next, sa.func.max(position.cut))
        .join(day_positions, is_same)
        .where(position.cut > offsets.c.next)
        .group_by(offsets.c.topic, offsets.c.partition, offsets.c.next)
    )
    for topic, number, next_, cut in comparison.db.execute(statement):
        yield GivenDifference(
            f"{topic}[{number}] is counted up to {next_:,}, and was up to {cut:,} when a day was cut"
        )


def _deletions(comparison: _Comparison) -> Iterator[GivenDifference]:
    """Compares the marks of deleted days; rows are deleted within a day of their mark."""
    db = comparison.db
    rows = rows_of(db, deleted_days)
    ends_s = {row.id: row.end_s for row in db.execute(sa.select(days.c.id, days.c.end_s))}
    now_ms = clock_ms(db)
    for row in rows:
        day = row["day"]
        yield from comparison.differing(signed_rows.deletion(row), "the mark of its deletion", day)
        if row["at_ms"] < ends_s.get(day, 0) * 1000 + DELETED_AGE_MS:
            yield GivenDifference("it is marked as deleted earlier than a day may be", day)
        if row["at_ms"] < now_ms - DELETED_WITHIN_MS and any(_has_rows(db, *of, day) for of in ROWS):
            yield GivenDifference("it is marked as deleted, and its rows are there", day)
    for subject, entry in comparison.without_row("deletion", {str(row["day"]) for row in rows}):
        yield GivenDifference(
            f"its rows were deleted (entry {entry.number}), and the mark is gone", int(subject)
        )


def _has_rows(db: sa.Connection, table: sa.Table, column: sa.Column[int], day: int) -> bool:
    return db.execute(sa.select(column).select_from(table).where(column == day).limit(1)).first() is not None


def _replays(comparison: _Comparison) -> Iterator[GivenDifference]:
    positions: dict[int, list[StoredRow]] = {}
    for row in rows_of(comparison.db, replay_positions):
        positions.setdefault(row["replay"], []).append(row)
    rows = rows_of(comparison.db, replays, replays.c.state == "swapped")
    for row in rows:
        expected = signed_rows.replay(row, positions.get(row["id"], []))
        yield from comparison.differing(expected, f"the replay {row['id']} that was swapped in")
    for subject, entry in comparison.without_row("replay", {str(row["id"]) for row in rows}):
        yield GivenDifference(f"the replay {subject} was swapped in (entry {entry.number}), and is gone")


def _deliveries(comparison: _Comparison) -> Iterator[GivenDifference]:
    rows = rows_of(comparison.db, deliveries)
    ids = {
        (zone, date): number
        for number, zone, date in comparison.db.execute(sa.select(days.c.id, days.c.zone, days.c.date))
    }
    for row in rows:
        if row["finished_ms"] is not None:
            name = f"what {row['destination']} has acknowledged of {row['meter']} ({row['kind']})"
            day = ids.get((row["zone"], row["date"]), 0)
            yield from comparison.differing(signed_rows.delivery(row), name, day)
    subjects = {signed_rows.delivery(row).subject for row in rows}
    for subject, entry in comparison.without_row("delivery", subjects):
        destination, zone, date, *_, meter = json.loads(subject)
        sentence = f"{destination} has acknowledged {meter} (entry {entry.number}), and the row of it is gone"
        yield GivenDifference(sentence, ids.get((zone, date), 0))


COMPARED = (
    _plans, _gaps, _retries, _left_out, _corrections, _closings, _offsets, _deletions, _replays, _deliveries,
)  # fmt: skip
