"""The policy kind `quota`: a lock from the limit on until the calendar window ends."""

from __future__ import annotations

from datetime import UTC, datetime

from analyzer.core.counting.groupings import grouping_of
from analyzer.core.counting.meter_units import amount_text, with_noun
from analyzer.core.judging.policies import Quota
from analyzer.core.judging.totals import Standing, Sum, TotalKey
from gatekeeper.model import Lock, LockKey

SHARED_SCOPES = ("resource", "everyone")  # of locks on requests of any client


def sum_of(policy: Quota) -> Sum:
    """The running total that a quota is judged by."""
    return Sum(policy.per, policy.meter, policy.window)


def shortest_window_s(policy: Quota) -> int:
    """Seconds of the shortest window."""
    return policy.window.shortest_s


def thresholds(policy: Quota) -> tuple[int, ...]:
    """Values of the total at which the policy must be judged."""
    return (policy.limit,)


def lock_key(policy: Quota, total: TotalKey) -> LockKey:
    return LockKey(grouping_of(policy.per).scope, total.key, total.resource, policy.name)


def wanted_lock(policy: Quota, standing: Standing, now: datetime) -> Lock | None:
    """Returns the lock that `standing` earns, beginning now; None below the limit.

    A window that is over or has not begun earns none: late records, and records of a clock that runs ahead,
    are counted where they belong and lock nothing.
    """
    window = standing.total.window
    if standing.used < policy.limit or not window.start_s <= now.timestamp() < window.until_s:
        return None
    return Lock(
        **lock_key(policy, standing.total)._asdict(),
        began=now,
        until=datetime.fromtimestamp(window.until_s, UTC),
        kind=policy.kind,
        action=policy.action,
        status=policy.status,
        reason="quota-exceeded",
        detail=explain(policy, standing.used),
        on_stale=policy.on_stale,
        slow=policy.slow,
    )


def explain(policy: Quota, used: int) -> str:
    """Returns the sentence that a refusal shows.

    >>> from analyzer.core.judging.windows import Calendar
    >>> explain(Quota("daily", 100_000, Calendar("day", "Europe/Berlin")), 100_214)
    '100,000 requests per day (Europe/Berlin), 100,214 counted'
    >>> explain(Quota("busy", 3_600_000_000, Calendar("day"), "busy", unit="duration"), 3_601_250_000)
    '1h of busy per day (UTC), 1h1.25s counted'

    The count of a resource or of everyone is that of all clients together, which no client learns.

    >>> explain(Quota("all", 100_000, Calendar("day", "UTC"), per="everyone"), 100_214)
    '100,000 requests per day (UTC)'
    """
    window, unit = policy.window, policy.meter_unit
    limit = f"{with_noun(policy.limit, unit, policy.meter)} per {window.per} ({window.zone})"
    if grouping_of(policy.per).scope in SHARED_SCOPES:
        return limit
    return f"{limit}, {amount_text(used, unit)} counted"


def describe(policy: Quota) -> str:
    """Returns the sentence that `gatelock check` shows.

    >>> from analyzer.core.judging.windows import Calendar
    >>> describe(Quota("daily", 100_000, Calendar("day", "Europe/Berlin")))
    'daily: at most 100,000 requests for each caller per day (Europe/Berlin), then 429 until it ends'
    """
    actions = {"deny": f"{policy.status} until it ends", "tag": "the application is notified until it ends"}
    if policy.slow is not None:
        rate = f"{policy.slow.limit:,} in {policy.slow.period:g} s"
        actions["slow"] = f"{rate} through each process, and {policy.status} for the rest, until it ends"
    window, phrase = policy.window, grouping_of(policy.per).phrase
    limit = with_noun(policy.limit, policy.meter_unit, policy.meter)
    return (
        f"{policy.name}: at most {limit} for {phrase} per {window.per} "
        f"({window.zone}), then {actions[policy.action]}"
    )
