"""Judgement done slowly: all counts are added up again for each flush."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from analyzer.kernel.model import CountRow
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Window, window_at


class Flush(NamedTuple):
    """Rows that one analyzer stored at one moment of the database's clock."""

    now_s: int
    rows: Sequence[CountRow]


class Crossing(NamedTuple):
    """A limit that was reached: number of the flush, policy, series, end of the lock, and the total."""

    flush: int
    policy: str
    key: str
    resource: str
    until: datetime
    used: int


class Reached(NamedTuple):
    """A threshold that was reached, in thousandths: in which flush, by which series, and by what total."""

    flush: int
    policy: str
    key: str
    resource: str
    window_s: int
    threshold: int
    used: int


def reached(plan: Plan, flushes: Sequence[Flush]) -> list[Reached]:
    """Returns each (policy, series, window, threshold) that was reached, once.

    A threshold, in thousandths of the limit, is reached as a limit of this amount would be.
    """
    found: list[Reached] = []
    for policy in plan.policies:
        if isinstance(policy, Quota) and not isinstance(policy.notify, UnsetType):
            for threshold in policy.notify:
                amount = Fraction(policy.limit * threshold, 1_000)
                limited = replace(policy, limit=amount, notify=UNSET)
                for crossing in crossings(Plan(meters=plan.meters, policies=(limited,)), flushes):
                    window = window_at(policy.window, flushes[crossing.flush].now_s)
                    at = crossing.flush, policy.name, crossing.key, crossing.resource, window.start_s
                    found.append(Reached(*at, threshold, crossing.used))
    return sorted(found)


def crossings(
    plan: Plan, flushes: Sequence[Flush], own: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> list[Crossing]:
    """Returns each (policy, series, window) that reached its limit, at most once.

    `own` has the limits of series that have another one than the policy, by policy and key.

    `flush` is the first one that adds to the series during the window while the limit is reached.
    """
    found: dict[tuple[str, str, str, Window], Crossing] = {}
    for number, flush in enumerate(flushes):
        for policy in plan.policies:
            window = window_at(policy.window, flush.now_s)
            [join] = [meter.join for meter in plan.meters if meter.name == policy.meter]
            joined: Callable[..., int] = partial(max, default=0) if join == "max" else sum
            for key, resource in sorted({(row.key, row.resource) for row in flush.rows if row.value}):
                touched, used = (
                    joined(
                        row.value
                        for row in rows
                        if (row.grouping, row.meter) == (policy.per, policy.meter)
                        and (row.key, row.resource) == (key, resource)
                        and window.start_s <= row.bucket_s < window.until_s
                    )
                    for rows in (
                        flush.rows,
                        [row for earlier in flushes[: number + 1] for row in earlier.rows],
                    )
                )
                until = datetime.fromtimestamp(window.until_s, UTC)
                if touched and used >= own.get((policy.name, key), policy.limit):
                    at = (policy.name, key, resource, window)
                    found.setdefault(at, Crossing(number, policy.name, key, resource, until, used))
    return sorted(found.values())
