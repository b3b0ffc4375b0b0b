"""Sums of what was handed over: acknowledged, left out and left to send are together what the day has.

No digest contains deliveries. Their sums are compared with the rows of the day, which a digest protects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.billing.hand_over.deliveries import StoredDelivery, stored_deliveries
from analyzer.billing.hand_over.live_usage import live_sums
from analyzer.billing.reports.usage_amounts import SUFFIXES, PartTotal, UsagePart, is_place, part_total
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.sentences import plural
from analyzer.kernel.tables.billing_tables import deleted_days, deliveries


class DeliveredSums(NamedTuple):
    """The sums of one delivery, and those of its day.

    Attributes:
        stored: What a service has acknowledged, and what was left out.
        to_send: What stands behind the place of the delivery; nothing, once that is finished.
        of_day: All amounts; None when the day is not closed, or its rows are deleted.
        difference: What does not add up, in a sentence; "" if all does.
    """

    stored: StoredDelivery
    to_send: PartTotal
    of_day: PartTotal | None
    difference: str


def read_delivered_sums(engine: sa.Engine, days: Sequence[Day]) -> Mapping[int, Sequence[DeliveredSums]]:
    """Returns the sums of each delivery of these days, by the id of the day, the newest last.

    Raises StoreAway.
    """
    with slow_reading(engine) as db:
        without_scans(db)
        return delivered_sums(db, days)


def delivered_sums(db: sa.Connection, days: Sequence[Day]) -> dict[int, list[DeliveredSums]]:
    """Returns the sums of each delivery of these days, by the id of the day, the newest last."""
    by_name = {(day.zone, day.date): day for day in days}
    of_one = [deliveries.c.zone == days[0].zone, deliveries.c.date == days[0].date] if len(days) == 1 else []
    is_deleted = set(db.execute(sa.select(deleted_days.c.day)).scalars())
    sums: dict[int, list[DeliveredSums]] = {day.id: [] for day in days}
    for stored in stored_deliveries(db, *of_one):
        if (day := by_name.get((stored.zone, stored.date))) is not None:
            has_rows = day.state == "closed" and day.id not in is_deleted
            sums[day.id].append(_sums(db, stored, day, has_rows=has_rows))
    return sums


def delivered_without_day(db: sa.Connection, closed: Collection[Day]) -> list[str]:
    """Returns a sentence for each delivery of a day that is not closed, but for live usage."""
    names = {(day.zone, day.date) for day in closed}
    return [
        f"{stored.date} ({stored.zone}): {_not_closed(stored)}"
        for stored in stored_deliveries(db)
        if stored.kind != "live" and (stored.zone, stored.date) not in names
    ]


def _sums(db: sa.Connection, stored: StoredDelivery, day: Day, *, has_rows: bool) -> DeliveredSums:
    delivery = stored.delivery
    nothing = PartTotal(0, 0)
    if stored.kind == "live":
        return _live_sums(db, stored, day, has_rows=has_rows)
    if not has_rows:
        difference = "" if day.state == "closed" else _not_closed(stored)
        return DeliveredSums(stored, nothing, None, difference)
    part = UsagePart(day, stored.grouping, stored.meter, "", stored.kind)
    of_day = part_total(db, part)
    if not is_place(stored.kind, delivery.place):
        sentence = f"{_title(stored)}: its place is one that no amount has"
        return DeliveredSums(stored, nothing, of_day, sentence)
    to_send = part_total(db, part, delivery.place) if delivery.finished_ms is None else nothing
    accounted = PartTotal(
        delivery.events + delivery.left_out + to_send.amounts,
        delivery.amount + delivery.left_out_amount + to_send.value,
    )
    difference = ""
    if accounted != of_day:
        difference = (
            f"{_title(stored)}: {delivery.amount:,} in {plural(delivery.events, 'event')} acknowledged, "
            f"{delivery.left_out_amount:,} in {delivery.left_out:,} left out, {to_send.value:,} in "
            f"{to_send.amounts:,} left to send; the day has {of_day.value:,} in {of_day.amounts:,}"
        )
    return DeliveredSums(stored, to_send, of_day, difference)


def _live_sums(db: sa.Connection, stored: StoredDelivery, day: Day, *, has_rows: bool) -> DeliveredSums:
    """Returns the sums of what was pushed of a day: of each series, and of its delivery."""
    delivery, is_finished = stored.delivery, stored.delivery.finished_ms is not None
    nothing = PartTotal(0, 0)
    if day.state == "closed" and not has_rows:
        return DeliveredSums(stored, nothing, None, "")
    sums = live_sums(db, stored.destination, UsagePart(day, stored.grouping, stored.meter, "", stored.kind))
    difference = ""
    if sums.acknowledged != delivery.amount:
        difference = (
            f"{_title(stored)}: {delivery.amount:,} in {plural(delivery.events, 'event')} acknowledged; its "
            f"{sums.series:,} series have {sums.acknowledged:,}"
        )
    elif is_finished and sums.of_day != delivery.amount:
        difference = (
            f"{_title(stored)}: {delivery.amount:,} acknowledged; the day has {sums.of_day:,} in "
            f"{sums.series:,} series"
        )
    if not has_rows:
        return DeliveredSums(stored, nothing, None, difference)
    of_day = PartTotal(sums.series, sums.of_day)
    return DeliveredSums(stored, PartTotal(0, sums.of_day - sums.acknowledged), of_day, difference)


def _title(stored: StoredDelivery) -> str:
    return f"{stored.meter}{SUFFIXES[stored.kind]} by {stored.grouping} to {stored.destination}"


def _not_closed(stored: StoredDelivery) -> str:
    return f"{_title(stored)} was handed over, and the day is not closed"
