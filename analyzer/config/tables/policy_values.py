"""Values of `[[policies]]`: limits, windows, thresholds, graces, brakes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, model_validator
from pydantic_core import PydanticCustomError

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.shares import PART, part_of_whole
from analyzer.config.values import (
    NAME,
    Zone,
    closest,
    format_duration,
    known_words,
    suggestion,
    time_zone,
    whole_number,
    whole_seconds,
)
from analyzer.judging.caller_limits import LIMIT_MAX
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.meter_units import STORED_IN, Unit, readings
from analyzer.plan.policies import Brake, Grace
from analyzer.plan.windows import (
    ANCHORED,
    DAY_S,
    HOUR_S,
    NOT_BY_CALLER,
    Calendar,
    CalendarPeriod,
    CallerFact,
    Rolling,
    Windows,
)

BRAKE_KEYS = ("callers", "traffic", "per")
BRAKE_PER_S = (60, HOUR_S)
BRAKE_CALLERS_MAX = 1_000_000
NO_BRAKE = Brake()
BRAKE_CURE = 'write { callers = 100, traffic = 0.05, per = "5m" }, or "off"'


def brake_of_table(value: object) -> Brake:
    """A table of bounds, of which one is needed; or "off"."""
    if value == "off":
        return NO_BRAKE
    if not isinstance(value, Mapping):
        return raise_fault(f'must be a table or "off", not {quote(value)}', BRAKE_CURE)
    for name in value:
        if name not in BRAKE_KEYS:
            raise_fault(f"{quote(name)} is not a bound", suggestion(name, BRAKE_KEYS, BRAKE_CURE))
    if "callers" not in value and "traffic" not in value:
        raise_fault("has no bound", BRAKE_CURE)
    return Brake(
        callers=whole_number(value["callers"], 1, BRAKE_CALLERS_MAX) if "callers" in value else 0,
        traffic=part_of_whole(value["traffic"]) if "traffic" in value else 0,
        per_s=whole_seconds(value["per"], *BRAKE_PER_S) if "per" in value else Brake().per_s,
    )


CALLER = "caller"  # as a zone or an anchor: that of each caller
DEFAULT = "default"  # in a table of limits by plan: those of callers without a plan
ROLLING_S = (5, 31 * DAY_S)  # shortest and longest rolling window
LOCK_S_MAX = 31 * DAY_S
NOTIFY_MAX = 10
NOTIFY_CURE = "write notify = [0.5, 0.8, 1.0]"
ANCHOR_CURE = 'write anchor = "caller", and state the days by `gatelock callers set CALLER --anchor DATE`'
PERCENT = re.compile(r"(\d{1,3}(?:\.\d)?) ?%")


LimitReadings = Mapping[str | None, int]  # what a limit means, by the unit of its meter; None: whole numbers


class PolicyLimit(NamedTuple):
    """The limit of callers, and those of callers by their plan."""

    stated: LimitReadings = MappingProxyType({})  # empty: the policy does not state one
    by_plan: Mapping[str, LimitReadings] = MappingProxyType({})


def policy_limit(value: object) -> PolicyLimit:
    """One limit, or a table of limits by the callers' plan: { free = 100, default = 1_000 }."""
    if not isinstance(value, Mapping):
        return PolicyLimit(limit_readings(value))
    if DEFAULT not in value:
        misspelt = closest(DEFAULT, map(str, value))
        raise_fault(
            "has no limit for callers without a plan"
            + ("" if misspelt is None else f", and one for those of a plan called {quote(misspelt)}"),
            "write { free = 10_000, pro = 1_000_000, default = 1_000 }"
            if misspelt is None
            else f"did you mean {quote(DEFAULT)}?",
        )
    for name in value:
        if not NAME.fullmatch(str(name)):
            raise_fault(
                f"{quote(name)} is not the name of a plan",
                "use letters, digits, points, hyphens, underscores",
            )
    by_plan = {str(name): limit_readings(limit) for name, limit in value.items() if name != DEFAULT}
    return PolicyLimit(limit_readings(value[DEFAULT]), by_plan)


def in_unit(limit: LimitReadings, unit: Unit | None) -> int:
    """Returns what a limit means for a meter of this unit."""
    return limit[unit] if unit in limit else next(iter(limit.values()))


def readings_from_text(value: object) -> LimitReadings:
    """Returns what a limit means, outside of a configuration. Raises ValueError with the fault."""
    try:
        return limit_readings(value)
    except PydanticCustomError as fault:
        raise ValueError(fault.message()) from fault


def limit_readings(value: object) -> LimitReadings:
    """A whole number, or text with a unit: "1h", "50.00", "2 GiB"."""
    if not isinstance(value, str):
        if isinstance(value, float):
            cure = f'write text if the meter adds up decimals: limit = "{value:.2f}"; or digits: 100_000'
            raise_fault(f"must be a whole number, or text with a unit, not {quote(value)}", cure)
        return {None: whole_number(value, 1, LIMIT_MAX)}
    amounts = readings(value)
    if not amounts:
        raise_fault(
            f"must be a whole number, or text with a unit, not {quote(value)}",
            'write 100_000; or a duration "1h30m", a decimal "50.00", a size "2 GiB"',
        )
    storable = _storable(amounts)
    for unit, amount in storable.items():
        if amount != int(amount):
            raise_fault(f"{quote(value)} is finer than {STORED_IN[unit or 'bytes']}", "write fewer digits")
        whole_number(int(amount), 1, LIMIT_MAX, shown=value)
    return {unit: int(amount) for unit, amount in storable.items()}


def _storable(amounts: Mapping[Unit | None, Decimal]) -> Mapping[Unit | None, Decimal]:
    """Returns what digits without a unit can mean as a limit; all of it if that is nothing.

    Left out are a decimal that is finer than a millionth, where the digits may be money, and money beyond
    LIMIT_MAX, where they may be a whole number.
    """
    fitting = {
        unit: amount for unit, amount in amounts.items() if amount == int(amount) and amount <= LIMIT_MAX
    }
    return fitting or amounts


def part_limit(value: object) -> PolicyLimit:
    """A share of the whole."""
    return PolicyLimit({PART: part_of_whole(value)})


def _period(value: object) -> object:
    """A calendar period; for a shorter one, the cure is a limiter."""
    if value in ("second", "seconds"):
        raise_fault(
            f"{quote(value)} is too short: a request is counted after it was answered",
            'write per = "minute", and let a limiter in the application, such as SlidingLog, bound seconds',
        )
    return value


def durations(value: object) -> tuple[int, ...]:
    """One duration or several, in whole seconds."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not items:
        raise_fault("must not be empty", 'write one duration or several: lock_for = ["10m", "1h", "24h"]')
    return tuple(whole_seconds(item, 1, LOCK_S_MAX) for item in items)


def thresholds_of_limit(value: object) -> tuple[int, ...]:
    """Fractions of the limit, in thousandths, ascending."""
    if not isinstance(value, (list, tuple)) or not value:
        raise_fault(f"must be a list of fractions of the limit, not {quote(value)}", NOTIFY_CURE)
    thresholds = []
    for item in value:
        is_number = isinstance(item, (int, float)) and not isinstance(item, bool)
        if not is_number or not 0.001 <= item <= NOTIFY_MAX or round(item * 1_000, 6) % 1:
            problem = f"{quote(item)} is not a fraction of the limit from 0.001 to {NOTIFY_MAX}"
            raise_fault(f"{problem}, with three digits at most", NOTIFY_CURE)
        thresholds.append(round(item * 1_000))
    if len(set(thresholds)) < len(thresholds):
        raise_fault("has a fraction twice", "remove one of them")
    return tuple(sorted(thresholds))


def grace_of_limit(value: object) -> Grace:
    """A percentage of the limit, an amount, or a time after the limit was reached."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Grace(amount=whole_number(value, 1, LIMIT_MAX))
    if isinstance(value, str) and (match := PERCENT.fullmatch(value)):
        if thousandths := round(float(match[1]) * 10):
            return Grace(thousandths=thousandths)
        raise_fault(f"{quote(value)} is nothing", 'write grace = "10%", or remove it')
    if isinstance(value, str) and value[:1].isdigit():
        return Grace(time_s=whole_seconds(value, 1, 31 * DAY_S))
    return raise_fault(
        f"must be a percentage, a whole number or a duration, not {quote(value)}",
        'write grace = "10%", grace = 500 or grace = "15m"',
    )


def _zone_or_caller(value: object) -> str:
    return CALLER if value == CALLER else time_zone(value)


def _anchor(value: object) -> str:
    if value != CALLER:
        raise_fault(f"must be {quote(CALLER)}, not {quote(value)}", ANCHOR_CURE)
    return CALLER


class WindowTable(ConfigTable):
    """A calendar period, or a rolling window."""

    per: Annotated[CalendarPeriod, known_words(CalendarPeriod), BeforeValidator(_period)] | None = None
    zone: Annotated[str, BeforeValidator(_zone_or_caller)] = "UTC"
    default_zone: Zone = "UTC"
    anchor: Annotated[Literal["caller"], BeforeValidator(_anchor)] | None = None
    rolling: Annotated[int, BeforeValidator(lambda value: whole_seconds(value, *ROLLING_S))] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.per is None) == (self.rolling is None):
            raise_fault("needs either per or rolling", 'write { per = "day" } or { rolling = "10m" }')
        if self.rolling is not None and "zone" in self.model_fields_set:
            raise_fault(
                "a rolling window has no zone", f'write {{ rolling = "{format_duration(self.rolling)}" }}'
            )
        if self.rolling is not None and self.anchor is not None:
            raise_fault("a rolling window has no anchor", "remove anchor")
        if self.anchor is not None and self.per not in ANCHORED:
            raise_fault(
                f"an anchor is the day on which years, months or weeks begin, and the period is a {self.per}",
                'remove it, or write per = "year", "month" or "week"',
            )
        if self.zone != CALLER and "default_zone" in self.model_fields_set:
            raise_fault('default_zone stands beside zone = "caller"', "remove it, or write it as zone")
        if self.rolling is not None and self.rolling > HOUR_S and self.rolling % 60:
            raise_fault("a rolling window of more than an hour must be whole minutes", "round it to minutes")
        return self

    @property
    def windows(self) -> Windows:
        if self.rolling is not None:
            return Rolling(self.rolling)
        assert self.per is not None  # noqa: S101 - one of the two is there
        facts: list[CallerFact] = ["anchor"] if self.anchor is not None else []
        if self.zone == CALLER:
            return Calendar(self.per, self.default_zone, (*facts, "zone"))
        return Calendar(self.per, self.zone, tuple(facts) or NOT_BY_CALLER)

    @property
    def is_by_caller(self) -> bool:
        """Whether each caller has its own windows."""
        return self.anchor is not None or self.zone == CALLER

    @property
    def phrase(self) -> str:
        """The window in a sentence."""
        return f"of one {self.per}" if self.rolling is None else f"of {format_duration(self.rolling)}"
