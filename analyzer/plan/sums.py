"""Sums: a meter, added up for policies. Policies with equal sums share their totals."""

from __future__ import annotations

from typing import NamedTuple

from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import JOINS, Join
from analyzer.plan.windows import Windows

# As the `next` of a total: no policy has anything more to judge in this window. No total is larger.
NEVER = 2**63 - 1


class Sum(NamedTuple):
    """A meter of a grouping, joined over windows. Policies with equal sums share their totals."""

    grouping: str
    meter: str
    window: Windows
    # That of the meter: the total of a maximum is the largest value of the window. The total of distinct
    # values is their number; that of a rolling sum adds up the numbers of all slots, so it grows by at least
    # as much as any window.
    join: str = "sum"
    # Sums of different roles share nothing. "share": of series that are compared with a "whole", of which
    # there are slots and no totals. A whole that began later than its parts would make them too large.
    # "outcome": of the outcomes of the requests of a whole, as slots, too.
    # "address": of the addresses of networks, of which there are slots and no totals either. "base": of the
    # series of a surge by share, as slots, too; "part of requests": of what is compared with that base.
    role: str = ""

    @property
    def joined(self) -> Join:
        """Returns the rule by which its amounts are joined."""
        return JOINS[self.join]


# In place of the blanks in the name of a derived meter, because blanks stand between the parts of a sum's
# name. These sort before all that is in a part, so that sums and their names have one order.
BLANK_IN_NAME = "\u00a0"


def total_key(sum_: Sum) -> tuple[str, str, str]:
    """Returns the grouping, the meter and the window of a sum, none of which has a blank but the last."""
    meter = sum_.meter.replace(" ", BLANK_IN_NAME)
    return sum_.grouping, meter, f"{sum_.window} {sum_.role}" if sum_.role else str(sum_.window)


def lock_order(sum_: Sum) -> tuple[bool, str, str, str]:
    """Returns the place of a sum in the order in which every transaction locks the rows of totals.

    Those that many callers share come last, because all analyzers add to them: a flush holds them from there
    to its commit only.
    """
    return parse_grouping(sum_.grouping).is_shared, *total_key(sum_)


def sum_text(sum_: Sum) -> str:
    """Returns the name of a sum: "caller requests day UTC"."""
    return " ".join(total_key(sum_))
