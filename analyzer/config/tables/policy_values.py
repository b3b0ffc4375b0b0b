"""Values of `[[policies]]`: limits, windows, thresholds, graces, brakes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Self, get_args

from pydantic import BeforeValidator, Field, model_validator
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
from analyzer.plan.expressions import PatternFault
from analyzer.plan.mapping import Pattern
from analyzer.plan.meter_units import STORED_IN, UNLIMITED, Unit, readings
from analyzer.plan.patterns import compile_pattern
from analyzer.plan.policies import Brake, Grace
from analyzer.plan.windows import (
    ANCHORED,
    DAY_S,
    HOUR_S,
    NOT_BY_CALLER,
    Calendar,
    CallerFact,
    PeriodName,
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


OWN: tuple[str, ...] = ("caller", "tenant")  # as a zone or an anchor: that of each of them
DEFAULT = "default"  # in a table of limits by plan: those of callers without a plan
WITHOUT_LIMIT = "unlimited"
ROLLING_S = (5, 31 * DAY_S)  # shortest and longest rolling window
LOCK_S_MAX = 31 * DAY_S
NOTIFY_MAX = 10
EARLIEST, LATEST = date(1970, 1, 2), date(9998, 12, 31)
WINDOW_CURE = 'write { per = "day" }, { rolling = "10m" } or { from = 2026-01-01, until = 2027-01-01 }'
NOTIFY_CURE = "write notify = [0.5, 0.8, 1.0]"
ANCHOR_CURE = (
    'write anchor = "caller" or "tenant", and state the days by `gatelock callers set CALLER --anchor DATE`'
)
PERCENT = re.compile(r"(\d{1,3}(?:\.\d)?) ?%")


LimitReadings = Mapping[str | None, int]  # what a limit means, by the unit of its meter; None: whole numbers


class PolicyLimit(NamedTuple):
    """The limit of series, and those of callers by their plan, or of series by their resource."""

    stated: LimitReadings = MappingProxyType({})  # empty: the policy does not state one
    by_plan: Mapping[str, LimitReadings] = MappingProxyType({})
    by_route: Mapping[str, LimitReadings] = MappingProxyType({})  # by globs, of which the first that matches
    is_open: bool = False  # whether nothing is stated for those without a plan, who have no limit then


def policy_limit(value: object) -> PolicyLimit:
    """One limit, or a table of limits by the plan of callers or tenants, { free = 100, default = 1_000 }.

    A table by routes has globs that begin with a slash or a star: { "/v1/*" = 5, default = 100 }.

    In a table "unlimited" takes the limit away, and 0 allows nothing. Without `default` those of other plans
    and of none have no limit.
    """
    if not isinstance(value, Mapping):
        return PolicyLimit(limit_readings(value))
    routes = [str(name) for name in value if str(name).startswith(("/", "*"))]
    if routes:
        return _limit_by_route(value, routes)
    misspelt = closest(DEFAULT, map(str, value)) if DEFAULT not in value else None
    if misspelt is not None:
        problem = (
            f"has no limit for callers without a plan, and one for those of a plan called {quote(misspelt)}"
        )
        raise_fault(problem, f"did you mean {quote(DEFAULT)}?")
    if not value.keys() - {DEFAULT} and value.get(DEFAULT) != 0:
        raise_fault("has no limit of a plan", "write { free = 10_000, pro = 1_000_000, default = 1_000 }")
    for name in value:
        if not NAME.fullmatch(str(name)):
            raise_fault(
                f"{quote(name)} is not the name of a plan",
                "use letters, digits, points, hyphens, underscores",
            )
    by_plan = {str(name): plan_readings(limit) for name, limit in value.items() if name != DEFAULT}
    return PolicyLimit(
        plan_readings(value.get(DEFAULT, WITHOUT_LIMIT)), by_plan, is_open=DEFAULT not in value
    )


def _limit_by_route(value: Mapping[str, object], routes: Sequence[str]) -> PolicyLimit:
    for name in value:
        if name != DEFAULT and name not in routes:
            cure = "write plans and routes in two policies"
            raise_fault(f"{quote(name)} is not a route, and {quote(routes[0])} is one", cure)
    for glob in routes:
        try:
            compile_pattern(Pattern("glob", glob))
        except PatternFault as fault:
            raise_fault(f"{quote(glob)} {fault}", fault.cure)
    by_route = {glob: plan_readings(value[glob]) for glob in routes}
    stated = plan_readings(value.get(DEFAULT, WITHOUT_LIMIT))
    return PolicyLimit(stated, by_route=by_route, is_open=DEFAULT not in value)


def limits_of_periods(value: object) -> Mapping[str, PolicyLimit]:
    """A limit, or a table of limits by plan, for each of some calendar periods."""
    cure = "write { minute = 100, hour = 2_000, month = 100_000 }"
    if not isinstance(value, Mapping) or not value:
        raise_fault("must be a table of limits by period", cure)
    for period in value:
        if period not in get_args(PeriodName):
            raise_fault(
                f"{quote(period)} is not a period", suggestion(str(period), get_args(PeriodName), cure)
            )
    return {str(period): policy_limit(limit) for period, limit in value.items()}


def plan_readings(value: object) -> LimitReadings:
    """A limit; "unlimited" for none; 0 where nothing is allowed."""
    if value == WITHOUT_LIMIT:
        return dict.fromkeys((None, *STORED_IN), UNLIMITED)
    if type(value) is int and value == 0:
        return dict.fromkeys((None, *STORED_IN), 0)
    return limit_readings(value)


def in_unit(limit: LimitReadings, unit: Unit | None) -> int:
    """Returns what a limit means for a meter of this unit."""
    return limit[unit] if unit in limit else next(iter(limit.values()))


def readings_from_text(value: object) -> LimitReadings:
    """Returns what the limit of one caller means, outside of a configuration.

    Raises ValueError with the fault.
    """
    try:
        return plan_readings(value)
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


def _zone_or_own(value: object) -> str:
    return str(value) if value in OWN else time_zone(value)


def _anchor(value: object) -> str:
    if value not in OWN:
        raise_fault(f"must be {' or '.join(map(quote, OWN))}, not {quote(value)}", ANCHOR_CURE)
    return str(value)


def _day(value: object) -> date:
    """A date, without a time."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            raise_fault(f"{quote(value)} is not a day", "write 2026-12-31")
    if not isinstance(value, date) or isinstance(value, datetime):
        raise_fault(f"must be a day, not {quote(value)}", "write 2026-12-31")
    if not EARLIEST <= value <= LATEST:
        raise_fault(f"{value} is too far away", f"write a day from {EARLIEST} to {LATEST}")
    return value


class WindowTable(ConfigTable):
    """A calendar period, a rolling window, or the days of a contract."""

    per: Annotated[PeriodName, known_words(PeriodName), BeforeValidator(_period)] | None = None
    zone: Annotated[str, BeforeValidator(_zone_or_own)] = "UTC"
    default_zone: Zone = "UTC"
    anchor: Annotated[Literal["caller", "tenant"], BeforeValidator(_anchor)] | None = None
    rolling: Annotated[int, BeforeValidator(lambda value: whole_seconds(value, *ROLLING_S))] | None = None
    from_: Annotated[date | None, Field(alias="from"), BeforeValidator(_day)] = None
    until: Annotated[date | None, BeforeValidator(_day)] = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        for problem, cure in self._problems():
            raise_fault(problem, cure)
        return self

    def _problems(self) -> Iterator[tuple[str, str]]:
        """Yields what is wrong between keys, and the cure."""
        rolling, days = self.rolling, (self.from_, self.until)
        if [self.per, rolling, self.from_ or self.until].count(None) != 2 or days.count(None) == 1:
            yield "needs either per or rolling, or from and until", WINDOW_CURE
        if self.from_ is not None and self.until is not None and self.from_ >= self.until:
            yield "until is not later than from", "write the day after its last one"
        if rolling is not None and "zone" in self.model_fields_set:
            yield "a rolling window has no zone", f'write {{ rolling = "{format_duration(rolling)}" }}'
        if rolling is not None and self.anchor is not None:
            yield "a rolling window has no anchor", "remove anchor"
        if rolling is not None and rolling > HOUR_S and rolling % 60:
            yield "a rolling window of more than an hour must be whole minutes", "round it to minutes"
        yield from self._calendar_problems()

    def _calendar_problems(self) -> Iterator[tuple[str, str]]:
        if self.per == "lifetime" and "zone" in self.model_fields_set:
            yield "a lifetime has no zone", 'write { per = "lifetime" }'
        if self.zone in OWN and self.from_ is not None:
            yield f"the days of a contract are the same for each {self.zone}", "write the name of one zone"
        if self.anchor is not None and self.per not in ANCHORED:
            yield (
                "an anchor is the day on which years, months or weeks begin, and the period is a "
                f"{self.per or 'contract'}",
                'remove it, or write per = "year", "month" or "week"',
            )
        if self.zone not in OWN and "default_zone" in self.model_fields_set:
            yield (
                'default_zone stands beside zone = "caller" or "tenant"',
                "remove it, or write it as zone",
            )
        if len(self.whose) > 1:
            yield f"zone is that of a {self.zone}, and anchor of a {self.anchor}", "name one of them"

    @property
    def windows(self) -> Windows:
        if self.rolling is not None:
            return Rolling(self.rolling)
        if self.from_ is not None and self.until is not None:
            return Calendar("contract", self.zone, days=(self.from_.isoformat(), self.until.isoformat()))
        assert self.per is not None  # noqa: S101 - one of the three is there
        facts: list[CallerFact] = ["anchor"] if self.anchor is not None else []
        if self.zone in OWN:
            return Calendar(self.per, self.default_zone, (*facts, "zone"))
        return Calendar(self.per, self.zone, tuple(facts) or NOT_BY_CALLER)

    @property
    def whose(self) -> Collection[str]:
        """The kinds of names with separate windows: "caller", "tenant", or neither."""
        return {name for name in (self.zone, self.anchor) if name in OWN}

    @property
    def phrase(self) -> str:
        """The window in a sentence."""
        if self.from_ is not None:
            return f"from {self.from_} until {self.until}"
        return f"of one {self.per}" if self.rolling is None else f"of {format_duration(self.rolling)}"
