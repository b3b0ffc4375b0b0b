"""The brake of a policy: how many series it may begin to lock in an interval, and what happens beyond that.

Pure: `analyzer.judging.sql.brake_rows` holds the row of the policy, so that of transactions
which set locks by one policy each sees what the others have set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

import msgspec

from analyzer.judging.kinds.earned_locks import duration_text
from analyzer.plan.meters import DAY_S
from analyzer.plan.plan import Plan, meaning
from analyzer.plan.policies import DEFAULT_BRAKE, Brake, Policy
from gatekeeper.model import LockKey

YOUNG_MS = DAY_S * 1000
MILLION = 1_000_000
# Settings that change nothing about which series are locked.
WITHOUT_EFFECT = ("brake", "mode", "notify", "on_stale", "status")


class BrakeState(NamedTuple):
    """The stored state of the brake of one policy. Times in milliseconds since 1970.

    Attributes:
        since_ms: Since when the policy is in force as it is.
        interval_ms: The begin of the interval.
        locks: Locks that began in it.
        requests: Requests that their series had made in one interval before.
        braked_ms: Since when its locks are in shadow; None: they are not.
        released_ms: When an operator released it; None: never.
        paced_until_ms: Until when locks wait for their interval, or have waited for it; 0: never.
        why: The alarm of the brake, while it is in shadow.
    """

    since_ms: int
    interval_ms: int = 0
    locks: int = 0
    requests: int = 0
    braked_ms: int | None = None
    released_ms: int | None = None
    paced_until_ms: int = 0
    why: str = ""


class NewLock(NamedTuple):
    """A lock that begins, and that gates are to get."""

    at: LockKey
    used: int
    limit: int
    requests: int = 0  # that its series has made in the last interval


class Braking(NamedTuple):
    """The decision about new locks of a policy.

    Attributes:
        state: What must be stored.
        in_shadow: Whether all of them are set in shadow.
        waiting: The locks that are not set, with the time at which they are judged again.
        alarm: A sentence, if the brake has begun to act; "" otherwise.
    """

    state: BrakeState
    in_shadow: bool = False
    waiting: Mapping[LockKey, int] = {}
    alarm: str = ""


def policy_brake(policy: Policy) -> Brake:
    """Returns the bound of a policy, the default one included."""
    return DEFAULT_BRAKE if isinstance(policy.brake, msgspec.UnsetType) else policy.brake


def is_braked_by(policy: Policy) -> bool:
    """Whether a brake can act on the policy: gates get its locks, and it has a bound."""
    bound = policy_brake(policy)
    enforced = not policy.is_shadow and policy.action != "notify"
    return enforced and bool(bound.callers or bound.traffic)


def is_young(state: BrakeState, now_ms: int) -> bool:
    """Whether a policy that exceeds its bound is presumed to be wrong."""
    return state.released_ms is None and now_ms - state.since_ms < YOUNG_MS


def apply_brake(
    policy: Policy, state: BrakeState, new: Sequence[NewLock], total: int | None, now_ms: int
) -> Braking:
    """Returns which of the locks that begin are set, and how.

    `total` are the requests of all callers in the last interval; None: not known, and the part of the
    traffic is not compared. A young policy beyond its bound sets its locks in shadow from then on. An older
    one sets the heaviest, by use over limit, until its bound is reached, at least one in each interval.
    """
    if state.braked_ms is not None:
        return Braking(state, in_shadow=True)
    bound = policy_brake(policy)
    state = _in_interval(state, bound, now_ms)
    if is_young(state, now_ms):
        next_state = _with(state, new)
        if not (reason := _beyond(bound, next_state, total)):
            return Braking(next_state)
        alarm = f"the brake holds {policy.name}: {reason}; its locks are in shadow from now on"
        return Braking(state._replace(braked_ms=now_ms, why=alarm), in_shadow=True, alarm=alarm)
    if isinstance(policy.brake, msgspec.UnsetType):
        return Braking(_with(state, new))
    waiting: dict[LockKey, int] = {}
    next_ms = state.interval_ms + bound.per_s * 1000
    for lock in sorted(new, key=lambda lock: (-_weight(lock), lock.at)):
        if _is_reached(bound, state, total):
            waiting[lock.at] = next_ms + _rank_ms(lock)
        else:
            state = _with(state, [lock])
    if not waiting:
        return Braking(state)
    was_paced = state.paced_until_ms > now_ms
    state = state._replace(paced_until_ms=next_ms + bound.per_s * 1000)
    text = (
        f"the brake slows {policy.name}: {len(waiting):,} new locks and more wait, the heaviest are first; "
    )
    text += f"at most {bound_text(bound)}"
    return Braking(state, waiting=waiting, alarm="" if was_paced else text)


def first_exceeded_s(policy: Policy, begins_s: Iterable[int]) -> int | None:
    """Returns when the brake of a policy in its first day would have put it in shadow; None if never.

    `begins_s` are the begins of its locks, in seconds and in their order. Only their number is compared, not
    their part of the traffic. A policy that is in shadow is taken as if it were enforced.

    >>> from analyzer.plan.policies import Surge
    >>> from analyzer.plan.windows import Rolling
    >>> flood = Surge("flood", 300, Rolling(60), (600,), brake=Brake(callers=2, per_s=300))
    >>> first_exceeded_s(flood, [0, 10, 310, 320, 330]), first_exceeded_s(flood, [0, 10, 310])
    (330, None)
    """
    bound = policy_brake(policy)
    if policy.action == "notify" or not bound.callers:
        return None
    state = BrakeState(0)
    for begin_s in begins_s:
        state = _in_interval(state, bound, begin_s * 1000)
        state = state._replace(locks=state.locks + 1)
        if _beyond(bound, state, None):
            return begin_s
    return None


def exceeded_sentence(policy: Policy, at_s: int) -> str:
    """Returns what the brake would have done at the time that `first_exceeded_s` has returned."""
    time = datetime.fromtimestamp(at_s, UTC)
    bound = bound_text(Brake(callers=policy_brake(policy).callers, per_s=policy_brake(policy).per_s))
    return (
        f"the brake would have put {policy.name} in shadow at {time:%Y-%m-%dT%H:%M:%SZ}, if that was in its "
        f"first day: more than {bound}"
    )


def bound_text(bound: Brake) -> str:
    """Returns a bound in words.

    >>> bound_text(Brake(callers=100, traffic=50_000, per_s=300))
    '100 new locks or 5% of the traffic in 5m'
    """
    parts = [f"{bound.callers:,} new lock{'s' * (bound.callers != 1)}"] * bool(bound.callers)
    parts += [f"{bound.traffic / 10_000:g}% of the traffic"] * bool(bound.traffic)
    return f"{' or '.join(parts)} in {duration_text(bound.per_s)}"


def describe_brake(policy: Policy) -> str:
    """Returns the brake of a policy in words, for `policies list`."""
    if not is_braked_by(policy):
        return "it has no brake"
    bound = policy_brake(policy)
    young = f"its brake in the first day: {bound_text(bound)}, then its locks are in shadow"
    if isinstance(policy.brake, msgspec.UnsetType):
        return f"{young}; none later"
    return f"{young}; later so many at most, the heaviest first"


def state_text(state: BrakeState, now_ms: int) -> str:
    """Returns what a brake does at this time: "in shadow since ...", or "" if it does nothing."""
    if state.braked_ms is not None:
        since = datetime.fromtimestamp(state.braked_ms / 1000, UTC)
        return f"in shadow since {since:%Y-%m-%d %H:%M:%SZ}"
    return "new locks wait for their interval" if state.paced_until_ms > now_ms else ""


def unchanged(earlier: Plan, later: Plan) -> frozenset[str]:
    """Returns the policies of `later` that lock the same series as in `earlier`, and are not younger."""
    if any(meaning(later.sources.get(name)) != meaning(source) for name, source in earlier.sources.items()):
        return frozenset()
    return frozenset(
        policy.name
        for policy in later.policies
        if (previous := earlier.policy(policy.name)) is not None
        and previous.kind == policy.kind
        and previous.is_shadow == policy.is_shadow
        and _effective(previous) == _effective(policy)
        and _meter_meanings(earlier, previous) == _meter_meanings(later, policy)
    )


def with_the_same_brake(earlier: Plan, later: Plan, names: Collection[str]) -> frozenset[str]:
    """Returns those of these policies whose bound is the same in both plans."""
    pairs = ((name, earlier.policy(name), later.policy(name)) for name in names)
    return frozenset(name for name, old, new in pairs if old and new and old.brake == new.brake)


def _effective(policy: Policy) -> Mapping[str, object]:
    return {name: value for name, value in meaning(policy).items() if name not in WITHOUT_EFFECT}


def _meter_meanings(plan: Plan, policy: Policy) -> list[object]:
    names = (policy.meter, getattr(policy, "base", None))
    return [meaning(meter) for meter in plan.meters if meter.name in names]


def _in_interval(state: BrakeState, bound: Brake, now_ms: int) -> BrakeState:
    """Returns the state in the interval of this time, which begins with the first lock.

    A transaction that has waited for another one may have begun before the interval did. A begin that is
    farther ahead is that of a clock which was ahead.
    """
    if abs(now_ms - state.interval_ms) < bound.per_s * 1000:
        return state
    return state._replace(interval_ms=now_ms, locks=0, requests=0)


def _with(state: BrakeState, new: Sequence[NewLock]) -> BrakeState:
    requests = state.requests + sum(lock.requests for lock in new)
    return state._replace(locks=state.locks + len(new), requests=requests)


def _beyond(bound: Brake, state: BrakeState, total: int | None) -> str:
    """Returns in words by how much a state is beyond the bound of a young policy; "" if it is not."""
    time = duration_text(bound.per_s)
    if bound.callers and state.locks > bound.callers:
        return f"it locks {state.locks:,} in {time}, and {bound.callers:,} are allowed"
    if bound.traffic and total and state.requests * MILLION > bound.traffic * total:
        part = min(100.0, state.requests * 100 / total)
        return f"it locks {part:.1f}% of the traffic in {time}, and {bound.traffic / 10_000:g}% are allowed"
    return ""


def _is_reached(bound: Brake, state: BrakeState, total: int | None) -> bool:
    """Whether an older policy sets no more locks in this interval."""
    if bound.callers and state.locks >= bound.callers:
        return True
    # Never before the first lock, which brings the first requests.
    return bool(bound.traffic and total and state.requests * MILLION >= bound.traffic * total)


def _weight(lock: NewLock) -> Fraction:
    return Fraction(lock.used, max(lock.limit, 1))


def _rank_ms(lock: NewLock) -> int:
    """Returns by how much later than others a lock is judged again: the heaviest first, within a second."""
    return min(999, lock.limit * 1000 // max(lock.used, 1))
