"""Pushes live usage to a billing service: the growth of the open day, and the rest of closed days."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, open_day, stored_days
from analyzer.billing.days.deleted_days import is_deleted
from analyzer.billing.hand_over.billing_services import SERVICES
from analyzer.billing.hand_over.deliveries import Deliveries, delivering, stored_deliveries
from analyzer.billing.hand_over.delivery import SENDERS, Courier
from analyzer.billing.hand_over.event_requests import EventSender, Waits, keeping_sleep
from analyzer.billing.hand_over.live_usage import LiveUsage, SeriesTotal
from analyzer.billing.hand_over.prepared_events import EventNames
from analyzer.billing.hand_over.usage_events import EventMaker
from analyzer.billing.reports.usage_amounts import AmountKind, UsageAmount, UsagePart
from analyzer.counting.usage import UsageQuery, UsageRow, usage_rows_of
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import ROWS_AT_ONCE, reading, slow_reading
from analyzer.kernel.database.installation_secrets import REFERENCES, ensure_secret
from analyzer.kernel.errors import DeliveryFailed, DeliveryLost
from analyzer.kernel.tables.billing_tables import days, deliveries
from analyzer.plan import catalog
from analyzer.plan.derived_meters import is_stated
from analyzer.plan.meters import JOINS
from analyzer.plan.windows import Window
from gatekeeper.sources.timed_connection import ServerAddress

GIVE_UP_S = 20.0  # of failures in a row: the next push is soon
LIVE: AmountKind = "live"


class LiveDestination(NamedTuple):
    """The billing service that live usage is pushed to.

    Attributes:
        name: Of the destination, as in the record of deliveries.
        format: The kind of the service.
        server: Where it is.
        token: The API key; "": none.
        zone: Of the days.
        grouping: By which series are pushed.
        every_s: Between two pushes.
    """

    name: str
    format: str
    server: ServerAddress
    token: str
    zone: str
    grouping: str
    every_s: float


class LivePush:
    """The pushes to one destination.

    Args:
        engine: Of the database.
        destination: The service.
        read_names: Returns the names of meters and customers at the service, as they are now. Its errors end
            a push.
        who: The name of this process in the record of deliveries.
        new_mark: Returns a new random mark.
    """

    def __init__(
        self,
        engine: sa.Engine,
        destination: LiveDestination,
        read_names: Callable[[], EventNames],
        who: str,
        new_mark: Callable[[], str],
    ) -> None:
        self._engine = engine
        self._destination = destination
        self._read_names = read_names
        self._who = who
        self._new_mark = new_mark
        self._moment: int | None = None

    def step(self) -> int:
        """Pushes what is due, at most once in each interval; returns how many increments were acknowledged.

        While another process hands over to the destination, nothing. Raises DeliveryFailed, StoreAway;
        ChainCut, WitnessAway.
        """
        with reading(self._engine) as db:
            moment = int(clock_ms(db) // (self._destination.every_s * 1000))
        if moment == self._moment:
            return 0
        try:
            pushed = self.push()
        except DeliveryLost:
            return 0
        self._moment = moment
        return pushed

    def push(self) -> int:
        """Pushes what is due; returns how many increments were acknowledged. Raises what `step` does, and
        DeliveryLost while another process hands over to the destination."""
        destination, names = self._destination, self._read_names()
        where = destination.name, destination.format
        with (
            delivering(self._engine, *where, self._who, self._new_mark) as record,
            event_senders(destination, record) as senders,
        ):
            live = LiveUsage(self._engine, record)
            courier = Courier(SERVICES[destination.format], senders, record, lambda _: None, live=live)
            of_days = LiveDays(self._engine, record, live, courier, names)
            settled, failure = 0, None
            try:
                settled = of_days.settle(destination.zone)
            except DeliveryFailed as error:
                if error.is_away:
                    raise
                failure = error  # what is wrong with one day does not stop the next one
            pushed = of_days.grow(destination.zone, destination.grouping)
            if failure is not None:
                raise failure
            return settled + pushed


@contextmanager
def event_senders(destination: LiveDestination, record: Deliveries) -> Iterator[list[EventSender]]:
    """Opens the connections of a push."""
    tls = ssl.create_default_context() if destination.server.scheme == "https" else None
    waits = Waits(keeping_sleep(record.keep, time.sleep), random.random, lambda _: None, give_up_s=GIVE_UP_S)
    service = SERVICES[destination.format]
    count = SENDERS if service.events_max == 1 else 1
    senders = [EventSender(destination.server, service, destination.token, waits, tls) for _ in range(count)]
    try:
        yield senders
    finally:
        for sender in senders:
            sender.close()


class LiveDays:
    """Live usage of days, by the process that holds the lease of the destination.

    Args:
        engine: Of the database.
        record: The deliveries to the destination.
        live: What was pushed to it.
        courier: Delivers increments.
        names: Of meters and customers at the service.
        repeats: Whether a day is made exact although what was pushed of it may be lost.
    """

    def __init__(
        self,
        engine: sa.Engine,
        record: Deliveries,
        live: LiveUsage,
        courier: Courier,
        names: EventNames,
        *,
        repeats: bool = False,
    ) -> None:
        self._engine = engine
        self._record = record
        self._live = live
        self._courier = courier
        self._names = names
        self._repeats = repeats
        self._secret = ensure_secret(engine, REFERENCES)

    def settle(self, zone: str, dates: Sequence[str] | None = None) -> int:
        """Makes what was pushed of closed days exact; returns how many increments were acknowledged.

        Without dates, of all days that have live usage whose delivery is not finished. Raises DeliveryFailed,
        DeliveryLost, StoreAway.
        """
        pushed = 0
        for part in self._unfinished(zone, dates):
            if part.grouping not in part.day.groupings:
                raise DeliveryFailed(
                    f"{part}: was pushed by {part.grouping}, and the day was closed by "
                    f"{', '.join(part.day.groupings)}: compare with `report reconcile`"
                )
            self._require_known(part.day)
            maker = self._maker(part)
            pushed += self._courier.push(part, maker, self._live)
            while self._live.plan_last(part):
                pushed += self._courier.push(part, maker, self._live)
            self._live.finish(part)
        return pushed

    def _unfinished(self, zone: str, dates: Sequence[str] | None) -> list[UsagePart]:
        columns = deliveries.c
        of_destination = [columns.destination == self._record.destination, columns.kind == LIVE]
        with reading(self._engine) as db:
            stored = stored_deliveries(
                db, *of_destination, columns.zone == zone, columns.finished_ms.is_(None)
            )
            closed = stored_days(db, days.c.zone == zone, days.c.state == "closed")
            by_date = {day.date: day for day in closed if not is_deleted(db, day)}
        return [
            UsagePart(by_date[one.date], one.grouping, one.meter, "sum", LIVE)
            for one in sorted(stored, key=lambda one: (one.date, one.grouping, one.meter))
            if one.date in by_date and (dates is None or one.date in dates)
        ]

    def grow(self, zone: str, grouping: str) -> int:
        """Pushes what the open day of a zone has grown by; returns how many increments were acknowledged.

        Raises DeliveryFailed, DeliveryLost, StoreAway.
        """
        with reading(self._engine) as db:
            day = open_day(db, zone)
            meters = catalog.load(db).meters.values()
        if day is None:
            return 0
        self._require_alone(day, grouping)
        self._require_known(day)
        names = sorted(meter.name for meter in meters if is_stated(meter.name) and JOINS[meter.join].adds_up)
        parts = {name: UsagePart(day, grouping, name, "sum", LIVE) for name in names}
        makers = {name: self._maker(part) for name, part in parts.items()}
        pushed = sum(self._courier.push(part, makers[name], self._live) for name, part in parts.items())
        for name, totals in self._totals(day, grouping, makers):
            self._live.plan_growth(parts[name], totals)
        return pushed + sum(
            self._courier.push(part, makers[name], self._live) for name, part in parts.items()
        )

    def _require_known(self, day: Day) -> None:
        """Raises DeliveryFailed if the database was restored since a day began.

        What was pushed of it meanwhile is lost, and an increment with the same number has its identifier.
        """
        restored_ms = self._record.restored_ms()
        if restored_ms is not None and day.begin_s * 1000 < restored_ms and not self._repeats:
            raise DeliveryFailed(
                f"{day}: the database was restored since it began, so what was pushed of it is not known. "
                f"Compare when it is closed: `gatelock billing report reconcile day {day.date} --from URL "
                "--format FORMAT`; `report send` with --repeat makes it exact by what is known here"
            )

    def _require_alone(self, day: Day, grouping: str) -> None:
        """Raises DeliveryFailed if the usage of the open day is pushed in another way, too."""
        columns, record = deliveries.c, self._record
        with reading(self._engine) as db:
            pushed = stored_deliveries(
                db, columns.kind == LIVE, columns.format == record.format, columns.finished_ms.is_(None)
            )
        for one in pushed:
            is_ours = (one.destination, one.grouping) == (record.destination, grouping)
            is_same_day = (one.zone, one.date) == (day.zone, day.date)
            other_zone = one.zone != day.zone and one.destination == record.destination
            if other_zone or (is_same_day and not is_ours):
                raise DeliveryFailed(
                    f"{one.date} ({one.zone}) is pushed to {one.destination} by {one.grouping}, so its usage "
                    f"would count twice: write this into [billing.live] until the day is handed over"
                )

    def _totals(
        self, day: Day, grouping: str, makers: dict[str, EventMaker]
    ) -> Iterator[tuple[str, list[SeriesTotal]]]:
        """Yields what customers have used of a day so far, some series of each meter at a time."""
        window = Window(day.begin_s, day.end_s)
        query = UsageQuery(grouping, 0, *window, order="name", window=window)
        with slow_reading(self._engine) as db:
            series = groupby(usage_rows_of(db, query), lambda row: (row.key, row.resource))
            while rows := [row for _, same in islice(series, ROWS_AT_ONCE) for row in same]:
                for name, maker in makers.items():
                    if totals := _of_customers(rows, name, maker, day):
                        yield name, totals

    def _maker(self, part: UsagePart) -> EventMaker:
        return self._names.maker(self._secret, part)


def _of_customers(rows: Sequence[UsageRow], meter: str, maker: EventMaker, day: Day) -> list[SeriesTotal]:
    values: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.meter == meter and row.value:
            values[row.key, row.resource] = values.get((row.key, row.resource), 0) + row.value
    return [
        SeriesTotal(key, resource, value)
        for (key, resource), value in values.items()
        if maker.find_customer(UsageAmount(day.date, "", key, resource, value, 0, 0, ()))
    ]
