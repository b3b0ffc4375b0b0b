"""Examines closed days: one with all that can be compared, or all of them by their digests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.audit import digest_chain, frozen_differences
from analyzer.billing.audit.day_differences import SHOWN_MAX, AuditDifference, AuditedDay
from analyzer.billing.days.day_rows import Day
from analyzer.billing.days.deleted_days import is_deleted
from analyzer.billing.days.frozen_rows import WORK_MB
from analyzer.billing.days.given_differences import GivenOutcome, compare_given
from analyzer.billing.days.signed_reasons import unproved_reasons
from analyzer.billing.hand_over.delivered_sums import delivered_sums, delivered_without_day
from analyzer.counting.grouping_differences import comparisons
from analyzer.judging.sql import plans
from analyzer.kernel.database.chain import Signer, signer_of
from analyzer.kernel.database.engine import slow_reading, sort_in_memory, without_scans
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import SchemaBehind
from analyzer.kernel.tables.schema import plans as plans_table
from analyzer.plan import catalog
from analyzer.plan.plan import Plan

DELETED = "its rows are deleted after their retention: only its digest was compared"
ROWS_MAX = 1_000_000  # whose digests are compared without being asked for: some ten seconds


class AuditedDigests(NamedTuple):
    """The digests of all closed days.

    Attributes:
        days: Those with differences or remarks, by zone and time.
        closed: How many are closed.
        read: Of how many the rows were read; of the others only the chain of digests was.
        lost: Days that were audited once or handed over, and are not closed, in words.
        given: What they take as given, compared with the chain.
    """

    days: list[AuditedDay]
    closed: int
    read: int
    lost: list[str]
    given: GivenOutcome = GivenOutcome()

    @property
    def equal(self) -> bool:
        return not (self.lost or self.given.differences) and all(day.equal for day in self.days)


def examine_digests(
    engine: sa.Engine, keys: Sequence[DigestKey], *, every_day: bool = False
) -> AuditedDigests:
    """Compares rows of closed days with their digests and names, each digest with the one before, deliveries
    with what was counted, and what is given with the chain.

    Reads the rows of the newest days, up to ROWS_MAX, or with `every_day` of all. `keys` are those that
    digests may be made with. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        without_scans(db)
        closed = digest_chain.closed_days(db)
        chained = _chain(closed, keys)
        newest = closed if every_day else newest_days(closed)
        to_read = {day.id for day in newest}
        delivered = _delivery_differences(db, newest)
        audited, forgotten = [], _plan(db).forgotten
        for day in closed:
            differences = [*chained.get(day.id, ()), *delivered.get(day.id, ())]
            if day.id in to_read:
                differences += digest_chain.digest_differences(db, day, keys)
                differences += frozen_differences.name_differences(db, day, forgotten)
            audited.append(AuditedDay(day, differences))
        with_differences = [audited_day for audited_day in audited if audited_day.differences]
        lost = [*digest_chain.lost_days(db), *delivered_without_day(db, closed)]
        given = compare_given(db, _signer(db, keys))
        return AuditedDigests(with_differences, len(closed), len(to_read), lost, given)


def newest_days(closed: Sequence[Day]) -> list[Day]:
    """Returns the newest days that have ROWS_MAX rows together, or the newest one alone."""
    newest: list[Day] = []
    rows = 0
    for day in sorted(closed, key=lambda day: -day.end_s):
        rows += day.rows
        if rows <= ROWS_MAX or not newest:
            newest.append(day)
    return newest


def examine_day(engine: sa.Engine, day: Day, keys: Sequence[DigestKey]) -> AuditedDay:
    """Returns what differs in a closed day, in one snapshot: flushes are in all of it or in nothing.

    Compared are its rows with its digest, that with the digest before, the rows and what came later with the
    buckets, its groupings with each other, its references with their names, what was handed over with what
    it has, and the ledgers of its partitions. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        without_scans(db)
        sort_in_memory(db, WORK_MB)
        numbers = catalog.load(db)
        differences = list(digest_chain.digest_differences(db, day, keys))
        differences += _chain(digest_chain.closed_days(db, day.zone), keys).get(day.id, [])
        given = compare_given(db, _signer(db, keys)).about(day)
        differences += [AuditDifference("given", sentence) for sentence in given]
        if is_deleted(db, day):
            return AuditedDay(day, _bounded(differences), [DELETED])
        differences += _delivery_differences(db, [day]).get(day.id, [])
        differences += frozen_differences.ledger_differences(db, day)
        differences += frozen_differences.total_differences(db, numbers, day)
        plan = _plan(db)
        if unknown := [grouping for grouping in day.groupings if grouping not in numbers.groupings]:
            sentence = f"it has rows by {', '.join(unknown)}, by which nothing was ever counted"
            differences.append(AuditDifference("grouping", sentence))
            day = day._replace(groupings=tuple(name for name in day.groupings if name not in unknown))
        differences += frozen_differences.name_differences(db, day, plan.forgotten)
        differences += frozen_differences.grouping_differences(db, numbers, day, comparisons(db, plan))
        remarks = [] if day.digest_key else [digest_chain.WITHOUT_KEY]
        remarks += unproved_reasons(db, day)
        if reason := frozen_differences.why_not_comparable(db, numbers, day):
            remarks.append(f"not compared with the buckets: {reason}")
        else:
            differences += frozen_differences.bucket_differences(db, numbers, day)
    return AuditedDay(day, _bounded(differences), remarks)


def given_differences(engine: sa.Engine, day: Day, keys: Sequence[DigestKey]) -> list[str]:
    """Returns what a day takes as given and no act has entered in the chain, in sentences.

    Raises StoreAway.
    """
    with slow_reading(engine) as db:
        return compare_given(db, _signer(db, keys)).about(day)


def _signer(db: sa.Connection, keys: Sequence[DigestKey]) -> Signer:
    """Returns the signer of the database, with further keys that entries may have been made with."""
    signer = signer_of(db)
    return signer._replace(earlier=(*signer.earlier, *keys))


def _chain(closed: list[Day], keys: Sequence[DigestKey]) -> dict[int, list[AuditDifference]]:
    differences: dict[int, list[AuditDifference]] = {}
    for zone in sorted({day.zone for day in closed}):
        differences |= digest_chain.chain_differences([day for day in closed if day.zone == zone], keys)
    return differences


def _delivery_differences(db: sa.Connection, days: Sequence[Day]) -> dict[int, list[AuditDifference]]:
    """Returns the deliveries that do not add up to what days have, by the id of the day."""
    return {
        day: [
            AuditDifference("delivery", one.difference, one.stored.grouping, meter=one.stored.meter)
            for one in sums
            if one.difference
        ]
        for day, sums in delivered_sums(db, days).items()
    }


def _plan(db: sa.Connection) -> Plan:
    """Returns the plan in force; an empty one where this version cannot read it."""
    if db.execute(sa.select(plans_table.c.version).where(plans_table.c.active == 1)).first() is None:
        return Plan(groupings=())
    try:
        return plans.active(db)[1]
    except SchemaBehind:
        return Plan(groupings=())


def _bounded(differences: list[AuditDifference]) -> list[AuditDifference]:
    """Returns the first differences of each kind."""
    shown: dict[str, int] = {}
    for difference in differences:
        shown[difference.kind] = shown.get(difference.kind, 0) + 1
    kept = []
    for kind in shown:
        kept += [difference for difference in differences if difference.kind == kind][:SHOWN_MAX]
    return kept
