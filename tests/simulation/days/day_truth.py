"""The truth about closed days: the raw records, added up again by the dates that a zone's clocks show.

From the database it takes the cuts of days. What lies before a cut must be frozen, what lies behind it must
be an adjustment, booked on the day that was open when it was counted. Windows are not used: the date of a
record comes from `zoneinfo`, record by record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from analyzer.billing.audit.examined_days import examine_digests
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.tables.table_columns import COLUMNS_PER_PAGE
from analyzer.maintenance.audit import audit
from analyzer.plan.plan import Plan
from tests.simulation.days.day_database import DayDatabase
from tests.simulation.kafka_log import Expected, Topic
from tests.simulation.ledgers import KnownIds, Ledger
from tests.simulation.policies.rolling_truth import Wrong
from tests.simulation.policies.series import amount_of, series_of

METERS = ("requests", "bytes", "largest")
GROUPINGS = ("caller", "caller+resource")
Amounts = Mapping[tuple[str, str, str, str], int]  # grouping, key, resource, meter
Positions = Mapping[int, int]  # by partition


class StoredDay(NamedTuple):
    """A row of `days`."""

    id: int
    zone: str
    date: str
    begin_s: int
    end_s: int
    state: str
    meters: str  # JSON

    def __str__(self) -> str:
        return f"{self.date} ({self.zone})"


class Counted(NamedTuple):
    """A record that counts."""

    partition: int
    offset: int
    request: Expected


class Booking(NamedTuple):
    """A correction that an operator has asked for, and what is known about its outcome."""

    reason: str
    amount: int
    outcome: str  # "stored", "refused" or "unknown": its reply was lost


class DayTruth:
    """Compares the days in the database with the log.

    `arrived_s` has the time at which each batch was written, by partition and its first offset.
    """

    def __init__(self, database: DayDatabase, topic: Topic, plan: Plan, key: DigestKey) -> None:
        self.arrived_s: dict[tuple[int, int], float] = {}
        self.bookings: list[Booking] = []
        self._database = database
        self._topic = topic
        self._plan = plan
        self._key = key
        # How far partitions were counted when a day was cut for the first time: from then on another is open.
        self._first_cuts: dict[int, Positions] = {}

    # -- during a story --------------------------------------------------------------------------

    def committed(self) -> None:
        """Notes the first cut of each day; called after each commit."""
        rows = self._database.read("select id from days where state = 'closing'")
        for (number,) in rows:
            if number not in self._first_cuts:
                self._first_cuts[number] = self.positions()

    def positions(self) -> Positions:
        """Returns how far each partition is counted now."""
        return dict(self._database.read('select partition, "next" from offsets'))

    def amount(self, day: StoredDay, caller: str, meter: str) -> int:
        """Returns what a caller has on a day: all that is counted so far, and the corrections."""
        counted = self._added_up(self._of_day(day, self._counted(self.positions())))
        booked = self._database.read(
            "select coalesce(sum(c.amount), 0) from corrections c join referenced_names n"
            " on n.reference = c.reference where c.day = ? and n.name = ? and c.meter = ?"
            " and c.grouping = 'caller'",
            *(day.id, caller, meter),
        )
        return counted.get(("caller", caller, "", meter), 0) + int(booked[0][0])

    def days(self, zone: str) -> list[StoredDay]:
        """Returns the stored days of a zone, by time."""
        wanted = (
            "select id, zone, date, begin_s, end_s, state, meters from days where zone = ? order by begin_s"
        )
        return [StoredDay(*row) for row in self._database.read(wanted, zone)]

    # -- in the end ------------------------------------------------------------------------------

    def check(self, zones: Iterable[str], grace_s: float, now_s: float) -> None:
        """Compares everything. Raises Wrong."""
        self._check_ledgers()
        for zone in zones:
            stored = self.days(zone)
            self._check_calendar(zone, stored)
            for day in stored:
                is_due = day.end_s + grace_s < now_s
                if is_due != (day.state == "closed"):
                    raise Wrong(f"{day} is {day.state}, and {'is' if is_due else 'is not'} due")
            for day in stored[:-1]:
                self._check_day(day, stored)
                self._check_targets(day, day.end_s + grace_s)
        self._check_corrections()
        self._check_audits()

    def _check_ledgers(self) -> None:
        rows = self._database.read('select partition, "next", seen, counted, duplicate, dead from offsets')
        for number, *row in rows:
            log = next(log for log in self._topic.logs.values() if log.number == number)
            counted = sum(one.partition == number for one in self._counted({number: log.end}))
            records = [record for _, _, record in log.records(0, log.end)]
            dead = sum(record.expected is None for record in records)
            must = Ledger(log.end, len(records), counted, dead, len(records) - counted - dead)
            found = Ledger(*row[:3], dead=row[4], duplicate=row[3])
            if found != must:
                raise Wrong(f"partition {number}: the ledger is {found}, and must be {must}")

    def _check_calendar(self, zone: str, stored: list[StoredDay]) -> None:
        """Checks that days follow each other, and that the clocks of the zone show their dates."""
        for one, other in pairwise(stored):
            if one.end_s != other.begin_s:
                raise Wrong(f"{other} does not begin where {one} ends")
        for day in stored:
            shown = [date_of(zone, at_s) for at_s in (day.begin_s - 1, day.begin_s, day.end_s - 1, day.end_s)]
            if shown[1:3] != [day.date] * 2 or day.date in (shown[0], shown[3]):
                raise Wrong(f"{day} is from {shown[1]} to {shown[2]}")

    def _check_day(self, day: StoredDay, stored: list[StoredDay]) -> None:
        cut = self._cut(day)
        records = list(self._of_day(day, self._counted(self.positions())))
        frozen = [record for record in records if record.offset < cut.get(record.partition, 0)]
        self._compare(f"frozen of {day}", self._stored(day, "frozen_counts"), self._added_up(frozen))
        later: dict[int, list[Counted]] = defaultdict(list)
        for record in records:
            if record.offset >= cut.get(record.partition, 0):
                later[self._booked(record, stored)].append(record)
        booked = {
            row[0] for row in self._database.read("select booked from adjustments where day = ?", day.id)
        }
        for number in sorted(booked | later.keys()):
            found = self._stored(day, "adjustments", f"and f.booked = {number}")
            self._compare(f"late of {day}, booked on {number}", found, self._added_up(later.get(number, ())))

    def _booked(self, record: Counted, stored: list[StoredDay]) -> int:
        """Returns the id of the day that was open when a record was counted."""
        for day in stored:
            positions = self._first_cuts.get(day.id)
            if positions is None or record.offset < positions.get(record.partition, 0):
                return day.id
        raise Wrong(f"{record} was counted while no day was open")

    def _check_targets(self, day: StoredDay, due_s: float) -> None:
        """Checks that a day has what was in the log when it was due."""
        cut = self._cut(day)
        for (partition, base), at_s in self.arrived_s.items():
            if at_s < due_s and base >= cut.get(partition, 0):
                raise Wrong(
                    f"{day} was cut at {cut} of {partition}, and {base} was written {due_s - at_s} s before"
                )

    def _check_corrections(self) -> None:
        rows = self._database.read("select reason, amount from corrections order by id")
        for booking in self.bookings:
            found = [amount for reason, amount in rows if reason == booking.reason]
            may_be = {"stored": [1], "refused": [0], "unknown": [0, 1]}[booking.outcome]
            if len(found) not in may_be or set(found) - {booking.amount}:
                raise Wrong(f"{booking} is stored as {found}")
        if len(rows) > len(self.bookings):
            raise Wrong(f"corrections that were not asked for: {rows}")

    def _check_audits(self) -> None:
        closed = [row[0] for row in self._database.read("select id from days where state = 'closed'")]
        outcomes = dict(self._database.read("select day, result || differences from day_audits"))
        if outcomes != dict.fromkeys(closed, "equal[]"):
            raise Wrong(f"the audits of days: {outcomes}")
        digests = examine_digests(self._database.engine, [self._key], every_day=True)
        if not digests.equal:
            raise Wrong(f"the digests: {digests}")
        if not (found := audit(self._database.engine, every_day=True)).equal:
            raise Wrong(f"the audit: {found}")

    # -- from the log ----------------------------------------------------------------------------

    def _counted(self, ends: Positions) -> list[Counted]:
        """Returns the records before these positions that count: no duplicates, nothing unreadable."""
        found, ids = [], KnownIds()
        for log in self._topic.logs.values():
            for offset, kafka_ms, record in log.records(0, ends.get(log.number, 0)):
                request = record.expected
                if request and not ids.is_repeated(self._plan, log.number, request, kafka_ms):
                    found.append(Counted(log.number, offset, request))
        return found

    def _of_day(self, day: StoredDay, records: Iterable[Counted]) -> Iterator[Counted]:
        return (record for record in records if date_of(day.zone, record.request.at_s) == day.date)

    def _added_up(self, records: Iterable[Counted]) -> Amounts:
        found: dict[tuple[str, str, str, str], int] = defaultdict(int)
        for _, _, request in records:
            for grouping in GROUPINGS:
                for meter in METERS:
                    at = grouping, *series_of(grouping, request), meter
                    amount = amount_of(meter, request)
                    found[at] = max(found[at], amount) if meter == "largest" else found[at] + amount
        return found

    # -- from the database -----------------------------------------------------------------------

    def _cut(self, day: StoredDay) -> Positions:
        return dict(
            self._database.read("select partition, coalesce(cut, 0) from day_positions where day = ?", day.id)
        )

    def _stored(self, day: StoredDay, table: str, condition: str = "") -> Amounts:
        """Returns the amounts that a table has of a day, without zeros."""
        columns = ", ".join(f"f.value_{place}" for place in range(COLUMNS_PER_PAGE))
        wanted = (
            f"select g.name, n.name, f.resource, f.page, {columns} from {table} f"
            " join referenced_names n on n.reference = f.reference"
            f" join catalog g on g.kind = 'grouping' and g.number = f.grouping where f.day = ? {condition}"
        )
        name_of = {number: name for number, name, _ in json.loads(day.meters)}
        found: dict[tuple[str, str, str, str], int] = {}
        for grouping, key, resource, page, *values in self._database.read(wanted, day.id):
            for place, value in enumerate(values):
                name = name_of.get(page * COLUMNS_PER_PAGE + place)
                if value and name in METERS:
                    found[grouping, key, resource, name] = value
        return found

    def _compare(self, what: str, found: Amounts, must: Amounts) -> None:
        if found != (nonzero := {at: amount for at, amount in must.items() if amount}):
            places = sorted(found.keys() | nonzero.keys())
            different = [
                (at, found.get(at, 0), nonzero.get(at, 0))
                for at in places
                if found.get(at) != nonzero.get(at)
            ]
            raise Wrong(f"{what}: place, found and expected: {different[:4]}")


def date_of(zone: str, at_s: int) -> str:
    """Returns the date that the clocks of a zone show."""
    return f"{datetime.fromtimestamp(at_s, UTC).astimezone(ZoneInfo(zone)):%Y-%m-%d}"
