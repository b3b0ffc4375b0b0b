"""Differences of a closed day: what an audit expected, and what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analyzer.billing.days.day_rows import Day

SHOWN_MAX = 10  # differences of each kind


class AuditDifference(NamedTuple):
    """A place where a closed day is not what it must be.

    Attributes:
        kind: "digest", "key", "chain", "given", "delivery", "ledger", "name", "totals", "counts" or
            "grouping".
        what: A sentence about it.
        grouping: Of a delivery, and of the series for the last two kinds.
        name: Of the series; the sum of all of them has none.
        resource: Of the series.
        meter: Whose amounts differ.
    """

    kind: str
    what: str
    grouping: str = ""
    name: str = ""
    resource: str = ""
    meter: str = ""


class AuditedDay(NamedTuple):
    """The outcome of an audit of one closed day.

    Attributes:
        day: As it was stored then.
        differences: At most `SHOWN_MAX` of each kind.
        remarks: What could not be compared, or does not prove what it could, in sentences.
    """

    day: Day
    differences: Sequence[AuditDifference] = ()
    remarks: Sequence[str] = ()

    @property
    def equal(self) -> bool:
        return not self.differences
