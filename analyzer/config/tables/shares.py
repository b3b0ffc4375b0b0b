"""Values in the table of a share: parts of a whole, and amounts per time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from types import MappingProxyType
from typing import Literal, NamedTuple

from analyzer.judging.kinds.compared import MILLION
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.groupings import BY_RESOURCE
from analyzer.plan.meter_units import Unit, readings

MULTIPLE_MAX = 100
DEFAULT = "default"  # in a table by resource: resources that it does not name
WholeName = Literal["resource", "everyone"]
PART = "part of a whole"  # in the readings of a limit, in place of a unit
RATE = re.compile(r"(?P<amount>.+?) */ *(?P<unit>[smh])")
RATE_S = {"s": 1, "m": 60, "h": 3600}
RATE_CURE = 'write an amount of the meter per time: "30/s", "500ms/s", "2 MiB/s"'


class LoadRate(NamedTuple):
    """An amount of a meter per time: what it can mean by the unit of the meter, in `per_s` seconds."""

    readings: Mapping[Unit | None, Decimal]
    per_s: int

    def within(self, unit: Unit | None, window_s: int) -> int:
        """Returns the amount of a window, rounded up; of a unit that it is not written in, any."""
        amount = self.readings[unit] if unit in self.readings else next(iter(self.readings.values()))
        return max(1, int((amount * window_s / self.per_s).to_integral_value(ROUND_CEILING)))


def part_of_whole(value: object) -> int:
    """Returns a share in millionths: 0.4, or "0.4" from the environment."""
    try:
        part = Decimal(str(value)) * MILLION if not isinstance(value, bool) else Decimal(0)
    except ArithmeticError:
        part = Decimal(0)
    if not part.is_finite() or not 0 < part < MILLION or part != int(part):
        raise_fault(
            f"must be a share of the whole, more than 0 and less than 1, not {quote(value)}",
            "write 0.4 for 40 %, with at most six digits",
        )
    return int(part)


def load_rate(value: object) -> LoadRate:
    """Returns an amount per time: "30/s", "500ms/s", "2 MiB/m"."""
    match = RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not (means := readings(match["amount"])) or not any(means.values()):
        raise_fault(f"{quote(value)} is not an amount per time", RATE_CURE)
    return LoadRate(means, RATE_S[match["unit"]])


def multiple(value: object) -> int:
    """Returns a multiple in thousandths: 3, 2.5."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 1 < float(str(value)) <= MULTIPLE_MAX:
        raise_fault(
            f"must be a multiple, more than 1 and at most {MULTIPLE_MAX}, not {quote(value)}",
            "write usual = 3",
        )
    return round(float(str(value)) * 1_000)


class Capacity(NamedTuple):
    """The capacity of a resource: of those without a separate one, and by resource."""

    stated: LoadRate | None
    by_resource: Mapping[str, LoadRate] = MappingProxyType({})

    def rates(self) -> list[LoadRate]:
        return [rate for rate in (self.stated, *self.by_resource.values()) if rate is not None]


def capacity_of_resources(value: object) -> Capacity:
    """An amount per time, or a table of them by resource: { "/v1/export" = "50/s", default = "500/s" }."""
    if not isinstance(value, Mapping):
        return Capacity(load_rate(value))
    if not value:
        raise_fault("is empty", 'write capacity = "500/s"')
    by_resource = {str(name): load_rate(rate) for name, rate in value.items() if name != DEFAULT}
    return Capacity(load_rate(value[DEFAULT]) if DEFAULT in value else None, by_resource)


def judged_grouping(per: str, whole: WholeName) -> str:
    """Returns the grouping of the series that are compared with the whole."""
    return per + BY_RESOURCE if whole == "resource" else per
