"""Reconciliation: the sums that a billing service has acknowledged and those that it has, by customer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.billing.hand_over.deliveries import Delivery, stored_deliveries
from analyzer.billing.hand_over.live_usage import acknowledged_amounts, pushed_series
from analyzer.billing.hand_over.prepared_events import EventNames
from analyzer.billing.reports.usage_amounts import UsageAmount, UsagePart, usage_amounts
from analyzer.kernel.database.chain import restored_ms
from analyzer.kernel.database.engine import ROWS_AT_ONCE, reading
from analyzer.kernel.tables.billing_tables import days, deliveries
from analyzer.plan.derived_meters import is_stated
from analyzer.plan.windows import Window

CALLER = "caller"  # the grouping


class AcknowledgedUsage(NamedTuple):
    """The sums of a period that a destination has acknowledged.

    Attributes:
        events: The sums of each event by customer, as customers are known now.
        remarks: Deliveries whose customers are not known as they were when they were sent, in sentences.
    """

    events: Mapping[str, Mapping[str, int]]
    remarks: Sequence[str]


class CustomerSums(NamedTuple):
    """The sums of an event for one customer."""

    event: str
    customer: str
    acknowledged: int
    at_service: Decimal

    @property
    def difference(self) -> Decimal:
        return self.at_service - self.acknowledged


def acknowledged_usage(
    engine: sa.Engine, destination: str, period: Window, names: EventNames, secret: bytes
) -> AcknowledgedUsage:
    """Returns what a destination has acknowledged of the days whose middle is in a period, of all zones.

    What was pushed of a day before it was closed is that of its series, also while the day is open. Of a day
    before a restore of which nothing was, the customers have 0: the service may have it. Raises StoreAway.
    """
    overlapping = (days.c.begin_s < period.until_s, days.c.end_s > period.start_s)
    with reading(engine) as db:
        known = stored_days(db, *overlapping)
        stored = stored_deliveries(db, deliveries.c.destination == destination)
        lost_until_ms = restored_ms(db) or 0
    by_name = {(day.zone, day.date): day for day in known if period.start_s <= day.middle_s < period.until_s}
    events: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    remarks = []
    for delivered in stored:
        day = by_name.get((delivered.zone, delivered.date))
        if day is None or (day.state != "closed" and delivered.kind != "live"):
            continue
        part = UsagePart(day, delivered.grouping, delivered.meter, "", delivered.kind)
        delivery, maker = delivered.delivery, names.maker(secret, part)
        attributed = 0
        for amount, is_pushed in _delivered_amounts(engine, destination, part, delivery):
            if customer := maker.find_customer(amount):
                events[maker.name][customer] += 0 if is_pushed else amount.value
                attributed += amount.value
            elif is_pushed:
                attributed += amount.value  # the remark is about its increments
        if attributed != delivery.amount:
            remarks.append(
                f"{part} by {part.grouping}: {delivery.amount:,} acknowledged, and {attributed:,} is of "
                "callers whose customers are known now"
            )
    sent = {(delivered.zone, delivered.date) for delivered in stored}
    lost = [day for key, day in by_name.items() if key not in sent and day.end_s * 1000 <= lost_until_ms]
    for part in (part for day in lost if day.state == "closed" for part in _caller_parts(day)):
        maker = names.maker(secret, part)
        for customer in filter(None, map(maker.find_customer, usage_amounts(engine, part))):
            events[maker.name][customer] += 0
    return AcknowledgedUsage(events, remarks)


def _caller_parts(day: Day) -> Iterator[UsagePart]:
    """Yields what is handed over of a day by default."""
    if CALLER in day.groupings:
        for meter in day.meters:
            if is_stated(meter.name):
                yield UsagePart(day, CALLER, meter.name, meter.join, "frozen")


def _delivered_amounts(
    engine: sa.Engine, destination: str, part: UsagePart, delivery: Delivery
) -> Iterator[tuple[UsageAmount, bool]]:
    """Yields the amounts of a delivery that were acknowledged or left out, and whether each was pushed.

    What was pushed is in the live delivery of the day, and counted there.
    """
    if part.kind == "live":
        yield from ((amount, False) for amount in acknowledged_amounts(engine, destination, part))
        return
    amounts = islice(usage_amounts(engine, part), delivery.events + delivery.left_out)
    while batch := list(islice(amounts, ROWS_AT_ONCE)):
        pushed = pushed_series(engine, destination, part, batch)
        yield from ((amount, (amount.reference, amount.resource) in pushed) for amount in batch)


def customer_sums(
    event: str, acknowledged: Mapping[str, int], at_service: Mapping[str, Decimal]
) -> Iterator[CustomerSums]:
    """Yields the sums of each customer that either side has, by name, without those that are 0 on both."""
    for customer in sorted({*acknowledged, *at_service}):
        sums = acknowledged.get(customer, 0), at_service.get(customer, Decimal(0))
        if any(sums):
            yield CustomerSums(event, customer, *sums)
