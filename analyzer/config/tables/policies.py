"""`[[policies]]`: limits of a meter in a window, and what their locks do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.actions import Action, LockAction
from analyzer.config.tables.meters import GroupingName
from analyzer.config.values import Name, Zone, integer_between, one_of, quote, raise_fault, whole_number
from analyzer.core.counting.meter_units import STORED_IN, Unit, readings
from analyzer.core.judging.kinds import KINDS
from analyzer.core.judging.policies import NO_UNIT, Policy, Quota
from analyzer.core.judging.windows import Calendar, CalendarPeriod

LIMIT_MAX = 1 << 62  # totals are 64-bit integers, and a flush adds to them before it compares
if TYPE_CHECKING:
    PolicyKind = str
else:
    PolicyKind = Literal[tuple(KINDS)]
OnStale = Literal["keep", "allow"]


LimitReadings = Mapping[str | None, int]  # what a limit means, by the unit of its meter; None: whole numbers


def _limit(value: object) -> LimitReadings:
    """A whole number, or text with a unit: "1h", "50.00", "2 GiB"."""
    if not isinstance(value, str):
        if isinstance(value, float):
            cure = f'write text if the meter adds up decimals: limit = "{value:.2f}"; or digits: 100_000'
            raise_fault(f"must be a whole number, or text with a unit, not {quote(value)}", cure)
        return {None: whole_number(value, 1, LIMIT_MAX)}
    found = readings(value)
    if not found:
        raise_fault(
            f"must be a whole number, or text with a unit, not {quote(value)}",
            'write 100_000; or a duration "1h30m", a decimal "50.00", a size "2 GiB"',
        )
    for unit, amount in found.items():
        if amount != int(amount):
            raise_fault(f"{quote(value)} is finer than {STORED_IN[unit or 'bytes']}", "write fewer digits")
        whole_number(int(amount), 1, LIMIT_MAX, shown=value)
    return {unit: int(amount) for unit, amount in found.items()}


def _period(value: object) -> object:
    """A calendar period; for a shorter one, the cure is a limiter."""
    if value in ("second", "seconds"):
        raise_fault(
            f"{quote(value)} is too short: a request is counted after it was answered",
            'write per = "minute", and let a limiter in the application, such as SlidingLog, bound seconds',
        )
    return value


class WindowTable(ConfigTable):
    per: Annotated[CalendarPeriod, one_of(CalendarPeriod), BeforeValidator(_period)]
    zone: Zone = "UTC"


class PolicyTable(ConfigTable):
    """A quota: at most `limit` of a meter for each series of `per` in each window."""

    name: Name
    kind: Annotated[PolicyKind, one_of(PolicyKind, planned=("share", "surge"))] = "quota"
    meter: Name = "requests"
    per: GroupingName = "caller"
    limit: Annotated[LimitReadings, BeforeValidator(_limit)]
    window: WindowTable
    action: Action = LockAction()
    status: Annotated[int, integer_between(400, 599)] = 429
    on_stale: Annotated[OnStale, one_of(OnStale)] = "keep"

    def policy(self, unit: Unit | None = None) -> Policy:
        """Returns the policy that is stored and judged; for now every kind is a quota.

        `unit` is that of its meter.
        """
        return Quota(
            name=self.name,
            limit=self.limit[unit] if unit in self.limit else next(iter(self.limit.values())),
            window=Calendar(self.window.per, self.window.zone),
            meter=self.meter,
            per=self.per,
            action=self.action.does,
            status=self.action.status or self.status,
            on_stale=self.on_stale,
            slow=self.action.slow,
            unit=NO_UNIT if unit is None else unit,
        )
