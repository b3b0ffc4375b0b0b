"""Usage events: an amount of a closed day with its customer, and an identifier that never changes.

The identifier is an HMAC over what makes an amount one: zone, day, grouping, the caller's reference,
resource, meter, and whether it was frozen, came late, or is a correction. So the same usage has the same
identifier whenever it is handed over, a correction has another one, and none shows the name of a caller.
"""

from __future__ import annotations

import csv
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from analyzer.billing.reports.usage_amounts import UsageAmount, UsagePart
from analyzer.counting.counter.caller_budget import FOLDED, OVERFLOW
from analyzer.counting.records.forgotten_callers import FORGOTTEN, make_pseudonym
from analyzer.plan.groupings import parse_grouping

if TYPE_CHECKING:
    from analyzer.billing.hand_over.live_usage import Increment

IDENTIFIER_DIGITS = 40
COLUMNS = ["caller", "customer"]  # of a file of customers
CUSTOMERS_MAX = 5_000_000
# Kinds of names that no contract can be with: clients that are known by their address, or not at all.
NOT_CUSTOMERS = ("address", "unnamed", FOLDED.rstrip(":"), OVERFLOW.rstrip(":"))


class UsageEvent(NamedTuple):
    """An amount for one customer, as any billing service takes it."""

    identifier: str
    customer: str
    name: str  # of the event: what the service calls the meter
    at_s: int  # the middle of the day that it is booked on
    amount: UsageAmount
    unit: str  # of the value; "" for whole numbers
    second_part: str = ""  # the name of the resource in the grouping: "resource", a named value
    is_provisional: bool = False  # whether it was pushed before its day was closed


class InvalidCustomers(ValueError):
    """A file of customers cannot be used."""


class Customers:
    """The customers of callers, as a billing service knows them.

    Args:
        by_name: The customer of each caller; "" for one that is not billed. None: each caller is a
            customer, by its
            name without the kind in front.
    """

    def __init__(self, by_name: Mapping[str, str] | None = None) -> None:
        self._by_name = by_name

    @classmethod
    def read(cls, file: Path) -> Customers:
        """Reads a CSV file with the columns `caller` and `customer`. Raises InvalidCustomers, OSError."""
        customers: dict[str, str] = {}
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines)
            if next(rows, None) != COLUMNS:
                raise InvalidCustomers(f"{file}: the first line must be {','.join(COLUMNS)}")
            for row in rows:
                if not row:
                    continue
                if len(row) != len(COLUMNS) or row[0] in customers or len(customers) == CUSTOMERS_MAX:
                    raise InvalidCustomers(
                        f"{file}:{rows.line_num}: write each caller once, with its customer"
                    )
                customers[row[0]] = row[1].strip()
        return cls(customers)

    def of(self, name: str, *, is_caller: bool) -> str | None:
        """Returns the customer of a key; "" for one that is not billed, None if the customer is unknown."""
        if self._by_name is not None and (customer := self._by_name.get(name)) is not None:
            return customer
        kind, colon, key = name.partition(":")
        if not is_caller:
            kind, key = "", name
        elif not colon or kind in NOT_CUSTOMERS:
            return ""
        elif kind == FORGOTTEN:
            return None
        if not key:
            return ""
        return key if self._by_name is None else None


class EventMaker:
    """Makes the events of a part.

    Args:
        secret: The installation's key of references.
        part: Whose amounts become events.
        customers: By the keys of its grouping.
        name: Of the events.
        unit: In which the meter is stored; "" for whole numbers.
    """

    def __init__(self, secret: bytes, part: UsagePart, customers: Customers, name: str, unit: str) -> None:
        self._secret = secret
        self._part = part
        self._customers = customers
        self.name = name
        self._unit = unit
        grouping = parse_grouping(part.grouping)
        self._is_of_callers = grouping.is_of_callers
        self._second_part = "".join(grouping.columns[1:])
        self.at_s = part.day.middle_s

    def find_customer(self, amount: UsageAmount) -> str | None:
        """Returns the customer of an amount, as `Customers.of` does."""
        name = make_pseudonym(amount.reference) if amount.name is None else amount.name
        return self._customers.of(name, is_caller=self._is_of_callers)

    def customer_digest(self, customer: str) -> str:
        """Returns what stands for a customer and the name of its events where no name may be."""
        fields = json.dumps(["customer", customer, self.name])
        return hmac.new(self._secret, fields.encode(), sha256).hexdigest()[:IDENTIFIER_DIGITS]

    def event(self, amount: UsageAmount, customer: str) -> UsageEvent:
        """Returns the event of an amount; equal amounts have equal events."""
        of_day = self.name, self.at_s
        return UsageEvent(self._identifier(amount), customer, *of_day, amount, self._unit, self._second_part)

    def increment(self, increment: Increment, customer: str) -> UsageEvent:
        """Returns the event of an increment of a live part."""
        event = self.event(increment.amount, customer)
        return event._replace(at_s=increment.at_s, is_provisional=not increment.is_last)

    def _identifier(self, amount: UsageAmount) -> str:
        part = self._part
        fields = [
            *("usage", part.kind, part.day.zone, amount.day, part.day.date, part.grouping),
            *(amount.reference, amount.resource, part.meter, amount.number),
        ]
        digest = hmac.new(self._secret, json.dumps(fields).encode(), sha256).hexdigest()
        return digest[:IDENTIFIER_DIGITS]


def rfc3339(at_s: int) -> str:
    """Returns a moment as text.

    >>> rfc3339(1_795_176_000)
    '2026-11-20T12:00:00Z'
    """
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
