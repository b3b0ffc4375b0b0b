"""Usage that is not handed over yet, and that the billing service takes for some more days only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.billing.hand_over.billing_services import DAY_S, SERVICES
from analyzer.billing.hand_over.deliveries import Delivery, StoredDelivery, stored_deliveries
from analyzer.billing.hand_over.usage_events import rfc3339
from analyzer.billing.reports.usage_amounts import (
    BOOKED,
    SUFFIXES,
    AmountKind,
    UsagePart,
    is_place,
    part_total,
)
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.tables.billing_tables import days

WARNED_S = 5 * DAY_S  # before the service ceases to take it
PAST_MAX_S = max(service.past_s or 0 for service in SERVICES.values())


class DeliveredSeries(NamedTuple):
    """A kind of amounts that is handed over to a destination, day by day."""

    destination: str
    zone: str
    grouping: str
    kind: AmountKind
    meter: str


class ExpiringUsage(NamedTuple):
    """Amounts of a closed day that a destination has not, although it has those of other days."""

    series: DeliveredSeries
    day: Day
    value: int
    until_s: int  # when the service ceases to take them

    def __str__(self) -> str:
        series = self.series
        amount = f"{self.value:,} {series.meter}{SUFFIXES[series.kind]} by {series.grouping}"
        return (
            f"{self.day}: {amount} not handed over to {series.destination}, which takes events of this day "
            f"until {rfc3339(self.until_s)}"
        )

    @property
    def command(self) -> str:
        """Returns the command that hands it over."""
        what = "corrections" if self.series.kind in BOOKED else "day"
        return (
            f"gatelock billing report send {what} {self.day.date} --zone {self.day.zone} "
            f"--by {self.series.grouping} --to URL --format FORMAT"
        )


def expiring_usage(engine: sa.Engine) -> list[ExpiringUsage]:
    """Returns what destinations take for the next WARNED_S only, the most urgent first.

    Compared are the meters and kinds of which a destination has other days. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        without_scans(db)
        return sorted(_expiring(db), key=lambda usage: (usage.until_s, usage.series))


def _expiring(db: sa.Connection) -> Iterator[ExpiringUsage]:
    now_s = clock_ms(db) // 1000
    stored = stored_deliveries(db)
    delivered = {(_series(delivery), delivery.date): delivery.delivery for delivery in stored}
    closed = stored_days(db, days.c.state == "closed", days.c.begin_s > now_s - PAST_MAX_S - 2 * DAY_S)
    for series, format_ in {_series(delivery): delivery.format for delivery in stored}.items():
        service = SERVICES.get(format_)
        if service is None or service.past_s is None or series.kind == "live":
            continue
        for day in closed:
            until_s = day.middle_s + service.past_s
            delivery = delivered.get((series, day.date), Delivery())
            is_soon = day.zone == series.zone and now_s < until_s <= now_s + WARNED_S
            if not is_soon or delivery.finished_ms is not None or not is_place(series.kind, delivery.place):
                continue
            part = UsagePart(day, series.grouping, series.meter, "", series.kind)
            if (left := part_total(db, part, delivery.place)).amounts:
                yield ExpiringUsage(series, day, left.value, until_s)


def _series(stored: StoredDelivery) -> DeliveredSeries:
    return DeliveredSeries(stored.destination, stored.zone, stored.grouping, stored.kind, stored.meter)
