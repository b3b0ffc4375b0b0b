"""The second count of a day before it is signed: how the closing has it made, and what the day says of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day

log = logging.getLogger(__name__)

TURN_S = 0.05  # of the second counter, which then waits for as long: counting in this process comes first
KEPT_EVERY_S = 20.0  # the lease of the day
TOLD_EVERY_S = 60.0
LONGEST_S = 4 * 3_600.0  # then the day is signed without


class TooLong(Exception):
    """The log of a day is not counted again in LONGEST_S."""


class CountedAgain(NamedTuple):
    """The outcome of a second count.

    Attributes:
        records: Of the day, that were read again.
        series: That were compared.
        why_not: Why the log was not counted again; "" if it was.
        differences: The first amounts that the log does not give, in sentences.
        assumed: What the second counter took as given, in sentences.
    """

    records: int = 0
    series: int = 0
    why_not: str = ""
    differences: Sequence[str] = ()
    assumed: Sequence[str] = ()

    def fields(self) -> dict[str, Any]:
        """Returns what the day, and its manifest, say of it."""
        if self.why_not:
            return {"counted_again": False, "why_not": self.why_not}
        return {
            "counted_again": True,
            "records": self.records,
            "series": self.series,
            "assumed": list(self.assumed),
        }


NEVER = CountedAgain(why_not='[billing] recount is "never"')


class CountAgain(Protocol):
    """Counts the log of a day again, and compares it with its frozen rows."""

    def __call__(self, engine: sa.Engine, day: Day, advanced: Callable[[int], None]) -> CountedAgain:
        """Returns the outcome; calls `advanced` with the number of records read since the last call.

        Raises StoreAway, LogsUnknown while Kafka does not answer, and what `advanced` raises.
        """


class Turns:
    """Has a second count take turns with the rest of the process, keep its lease, and say how far it is.

    Args:
        day: That is counted again.
        keep: Keeps the lease of the day.
        monotonic: The clock.
        sleep: Waits.
    """

    def __init__(
        self,
        day: Day,
        keep: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._day = day
        self._keep = keep
        self._monotonic = monotonic
        self._sleep = sleep
        self._began_s = self._turn_s = self._kept_s = self._told_s = monotonic()
        self._records = 0

    def advanced(self, records: int) -> None:
        """Notes that so many more records were read. Raises TooLong, and what keeping the lease raises."""
        self._records += records
        now_s = self._monotonic()
        if now_s - self._began_s > LONGEST_S:
            raise TooLong(f"its log was not read again within {LONGEST_S / 3_600:g} hours")
        if now_s - self._kept_s > KEPT_EVERY_S:
            self._kept_s = now_s
            self._keep()
        if now_s - self._told_s > TOLD_EVERY_S:
            self._told_s = now_s
            log.info("%s: %d records of its log counted again so far", self._day, self._records)
        if now_s - self._turn_s > TURN_S:
            self._sleep(now_s - self._turn_s)
            self._turn_s = self._monotonic()
