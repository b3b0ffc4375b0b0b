"""The policy kind `surge`: too much in a short rolling window, and locks that escalate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import ceil

from analyzer.core.counting.groupings import BY_RESOURCE, grouping_of
from analyzer.core.counting.meter_units import with_noun
from analyzer.core.counting.meters import DISTINCT
from analyzer.core.judging.circumstances import Circumstances, Needs, Wait
from analyzer.core.judging.kinds.earned_locks import (
    by_plan,
    counted_text,
    duration_text,
    effect,
    is_of_all_clients,
    lock_key,
    lock_of,
)
from analyzer.core.judging.kinds.quota import phrase_of
from analyzer.core.judging.policies import Surge
from analyzer.core.judging.rolling import begins_s, below_s, largest_sum, present_sum
from analyzer.core.judging.totals import Standing
from gatekeeper.model import Lock

BEHIND_PAUSE_S = 1.0  # until a judgement that waits for a backlog is tried again


def thresholds(policy: Surge) -> tuple[int, ...]:
    """Values of the sum at which the policy must be judged."""
    return (policy.limit,)


def needs(policy: Surge) -> Needs:
    """A duration that escalates depends on earlier locks, a lock on a network on each of its addresses."""
    is_of_network = grouping_of(policy.per).scope == "range" and not policy.per.endswith(BY_RESOURCE)
    return Needs(
        ended_locks_s=policy.forget_after_s if len(policy.lock_for_s) > 1 else 0,
        addresses=is_of_network and policy.meter_join != DISTINCT,
    )


def judge_surge(
    policy: Surge, standing: Standing, present: Lock | None, at: Circumstances
) -> Lock | Wait | None:
    """Returns the lock that a rolling sum earns; None below the limit.

    A lock that is in force stays as it is: what comes during it is judged when it ends. It lasts until
    what has earned it has left the window, at least: otherwise the same requests would earn the next one. An
    analyzer that is behind by more than the window raises no lock: it counts what happened then, not what
    happens now.
    """
    rolling, now_s = policy.window, at.now_s
    if present is not None and present.until > at.now:
        return present
    if largest_sum(standing.slots, rolling, now_s) < policy.limit:
        return None
    if at.behind_s > rolling.period_s:
        return Wait(at.now.timestamp() + BEHIND_PAUSE_S, is_behind=True)
    used = present_sum(standing.slots, rolling, now_s)
    if used < policy.limit:
        return Wait(begins_s(standing.slots, rolling, policy.limit, now_s))
    addresses = standing.addresses
    if addresses is not None and 2 * (used - addresses.largest) < policy.limit:
        # One address alone: the rest of the network must not suffer for it.
        return Wait(at.now.timestamp() + rolling.slot_s)
    offence = at.offences.get(lock_key(policy, standing.total), 0) + 1
    left = datetime.fromtimestamp(below_s(standing.slots, rolling, policy.limit, now_s), UTC)
    until = max(left, at.now + timedelta(seconds=duration_s(policy, offence)))
    return lock_of(
        policy,
        standing.total,
        kind=policy.kind,
        reason="abnormal-usage-detected",
        detail=explain(
            policy, used, offence, ceil((until - at.now).total_seconds()), addresses and addresses.number
        ),
        began=at.now,
        until=until,
    )


def duration_s(policy: Surge, offence: int) -> int:
    """Returns how long the lock of an offence lasts; the first one is 1."""
    return policy.lock_for_s[min(offence, len(policy.lock_for_s)) - 1]


def explain(
    policy: Surge, used: int, offence: int = 1, lasts_s: int | None = None, addresses: int | None = None
) -> str:
    """Returns the sentence that a refusal shows.

    `lasts_s` is for a lock that lasts longer than configured, `addresses` how many of a network took part.

    >>> from analyzer.core.judging.windows import Rolling
    >>> flood = Surge("flood", 600, Rolling(60), lock_for_s=(600, 3600))
    >>> explain(flood, 655)
    '600 requests in any 1m, 655 counted; locked for 10m'
    >>> explain(flood, 640, 2)
    '600 requests in any 1m, 640 counted; offence 2 within 7d, locked for 1h'
    >>> explain(flood, 640, addresses=14)
    '600 requests in any 1m, 640 counted from 14 addresses; locked for 10m'
    """
    unit = policy.meter_unit
    text = f"{with_noun(policy.limit, unit, policy.meter)} {phrase_of(policy.window)}"
    if not is_of_all_clients(policy):
        text += f", {counted_text(policy, used)}"
        text += f" from {addresses:,} addresses" if addresses else ""
    if policy.action == "notify":
        return text
    again = f"offence {offence} within {duration_text(policy.forget_after_s)}, " if offence > 1 else ""
    return f"{text}; {again}locked for {duration_text(lasts_s or duration_s(policy, offence))}"


def describe(policy: Surge) -> str:
    """Returns the sentence that `gatelock check` shows.

    >>> from analyzer.core.judging.windows import Rolling
    >>> describe(Surge("flood", 600, Rolling(60), per="address/24", lock_for_s=(600, 3600)))
    'flood: at most 600 requests for each IPv4 /24 network in any 1m, then 429 for 10m, 1h, ...'
    """
    phrase = grouping_of(policy.per).phrase
    limit = with_noun(policy.limit, policy.meter_unit, policy.meter) + by_plan(policy)
    durations = ", ".join(map(duration_text, policy.lock_for_s))
    ends = f"for {durations}" if len(policy.lock_for_s) == 1 else f"for {durations}, ..."
    return (
        f"{policy.name}: at most {limit} for {phrase} {phrase_of(policy.window)}, then {effect(policy, ends)}"
    )
