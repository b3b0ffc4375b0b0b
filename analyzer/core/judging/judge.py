"""What must change, and the sentence that explains it: one truth for daemon, commands and tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from analyzer.core.counting.caller_budget import OVERFLOW, of_callers
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.policies import Policy
from analyzer.core.judging.windows import Window, window_at
from analyzer.core.model import CountRow
from gatekeeper.model import Change, Clear, Lock, LockKey, Set


class JudgedSeries(NamedTuple):
    """What one policy keeps one running total for."""

    policy: str
    key: str
    resource: str
    window: Window


class Standing(NamedTuple):
    """How a series stands, as the database says after this flush was added."""

    series: JudgedSeries
    used: int


def totals_of(plan: Plan, rows: Iterable[CountRow]) -> dict[JudgedSeries, int]:
    """How much each judged series grows by `rows`, sorted. Denied requests count nowhere here, so that
    they never trigger, nor does the overflow: nobody has this name."""
    counted: dict[tuple[str, str], list[CountRow]] = {}
    for row in rows:
        if row.value and not (row.key == OVERFLOW and of_callers(row.grouping)):
            counted.setdefault((row.grouping, row.meter), []).append(row)
    grown: dict[JudgedSeries, int] = {}
    for policy in plan.policies:
        windows: dict[int, Window] = {}  # of the few buckets that a flush is about
        for row in counted.get((policy.per, policy.meter), ()):
            window = windows.get(row.bucket_s)
            if window is None:
                window = windows[row.bucket_s] = window_at(policy.window, row.bucket_s)
            series = JudgedSeries(policy.name, row.key, row.resource, window)
            grown[series] = grown.get(series, 0) + row.value
    return dict(sorted(grown.items()))  # where rows and policies come in order, it is so already


def changes(
    plan: Plan, standings: Iterable[Standing], locks: Mapping[LockKey, Lock], now: datetime
) -> list[Change]:
    """What must change for the locks to agree with the plan; `locks` holds those of the standings."""
    policies = {policy.name: policy for policy in plan.policies}
    decided = (decide(policies[s.series.policy], s, locks.get(lock_key(s.series)), now) for s in standings)
    return [change for change in decided if change is not None]


def decide(policy: Policy, standing: Standing, lock: Lock | None, now: datetime) -> Change | None:
    """What must change for `lock` to agree with `policy`; None when it already does.

    A window that is over locks nobody, and neither does one that has not begun: late records and
    records of a clock that runs ahead are counted where they belong, that is all.
    """
    window = standing.series.window
    if standing.used < policy.limit or not window.start_s <= now.timestamp() < window.until_s:
        return None
    until = datetime.fromtimestamp(window.until_s, UTC)
    if lock is not None and lock.until >= until:
        return None
    return Set(
        Lock(
            scope="caller",
            key=standing.series.key,
            resource=standing.series.resource,
            policy=policy.name,
            began=now,
            until=until,
            kind="quota",
            action=policy.action,
            status=policy.status,
            reason="quota-exceeded",
            detail=explain(policy, standing.used),
            on_stale=policy.on_stale,
            slow=policy.slow,
        )
    )


def ended(locks: Iterable[Lock], now: datetime) -> list[Change]:
    """The locks whose time is over."""
    return [Clear(lock.at) for lock in locks if lock.until <= now]


def outlived(locks: Iterable[Lock], plan: Plan) -> list[Change]:
    """The locks whose policy the plan does not know any more."""
    known = {policy.name for policy in plan.policies}
    return [Clear(lock.at) for lock in locks if lock.policy not in known]


def explain(policy: Policy, used: int) -> str:
    """One sentence for a person.

    >>> from analyzer.core.judging.policies import Calendar, Quota
    >>> explain(Quota("daily", 100_000, Calendar("day", "Europe/Berlin")), 100_214)
    '100,000 requests per day (Europe/Berlin), 100,214 counted'
    """
    window = policy.window
    return f"{policy.limit:,} {policy.meter} per {window.per} ({window.zone}), {used:,} counted"


def lock_key(series: JudgedSeries) -> LockKey:
    return LockKey("caller", series.key, series.resource, series.policy)
