"""Counts of series in stretches of time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from analyzer.counting.usage import UsageRow
from analyzer.kernel.time_texts import format_second
from analyzer.plan.groupings import Grouping
from analyzer.plan.meter_units import STORED_IN, Unit


class UsageAnswer(NamedTuple):
    """Makes objects of rows of counts.

    Attributes:
        grouping: What the rows are counted by.
        width_s: The width of a regular row in seconds; None: calendar windows.
        zone: The time zone of the begin of a row.
        units: The unit of each meter that has one.
        final_until_s: Rows that end after this time may still change.
    """

    grouping: Grouping
    width_s: int | None
    zone: ZoneInfo
    units: Mapping[str, Unit]
    final_until_s: float

    def as_object(self, row: UsageRow) -> dict[str, object]:
        """Returns the object of one meter of a row."""
        unit = self.units.get(row.meter)
        key, *second = self.grouping.columns
        return {
            key: row.key,
            **dict.fromkeys(second or ([] if key == "resource" else ["resource"]), row.resource),
            "meter": row.meter,
            "bucket": self.start(row),
            "value": row.value,
            "denied": row.denied,
            **({} if unit is None else {"unit": STORED_IN[unit]}),
            **({} if row.width_s == self.width_s else {"width_s": row.width_s}),
            "provisional": self.is_provisional(row),
        }

    def start(self, row: UsageRow) -> str:
        """Returns the begin of the row's stretch of time, RFC 3339, in the zone."""
        if self.zone.key == "UTC":
            return format_second(row.bucket_s)
        return datetime.fromtimestamp(row.bucket_s, self.zone).isoformat()

    def is_provisional(self, row: UsageRow) -> bool:
        """Whether records that belong to the row are still accepted."""
        return row.bucket_s + row.width_s > self.final_until_s
