"""What is counted: meters, and the plan that says for which series and how finely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analyzer.core.records.mapping import Condition

MINUTE_S = 60
QUARTER_S = 900  # every zone's midnight falls on a quarter of an hour
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Meter:
    """A number kept per series and bucket. Without a field it counts requests."""

    name: str
    field: str | None = None
    join: Literal["sum", "max"] = "sum"  # how two values of one bucket become one
    where: tuple[Condition, ...] = ()  # all must hold, or the record does not count here
    width_s: int = MINUTE_S


REQUESTS = Meter("requests")


def bucket_start_s(event_s: int, width_s: int) -> int:
    """Start of the bucket [start, start + width) that holds `event_s`, UTC.

    >>> bucket_start_s(119, MINUTE_S), bucket_start_s(120, MINUTE_S), bucket_start_s(-1, MINUTE_S)
    (60, 120, -60)
    """
    return event_s - event_s % width_s
