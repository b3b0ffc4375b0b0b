"""The one place that decides about locks, for daemon, activation, retry, commands and tests alike.

Pure: what a judgement needs comes in as arguments, what must change comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from analyzer.judging.circumstances import Blamed, Circumstances, Hold, OwnPolicies, Wait
from analyzer.judging.earned_notices import WHOLE, Notice, notice_key
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy, for_resource
from gatekeeper.model import Change, Clear, Cursor, Lock, LockKey, Set


class Judgement(NamedTuple):
    """The changes after which locks agree with totals, and what follows besides."""

    changes: Sequence[Change]
    waiting: Mapping[TotalKey, Wait] = {}  # totals that must be judged again, and when at the latest
    notices: Sequence[Notice] = ()  # of all thresholds that are reached, those raised before among them
    holds: Mapping[LockKey, Hold] = {}  # of series that are over a mark, and not locked yet


class Earned(NamedTuple):
    """The total by which a series has earned a lock, and what it has, of the amount that earns one."""

    total: TotalKey
    used: int
    limit: int


class Evidence(NamedTuple):
    """The grounds of changes of locks: the plan that judged, and what the series of each had used."""

    plan: int = 0  # its version; 0: no plan, they are made by hand
    used: Mapping[LockKey, int] = {}
    earned: Mapping[LockKey, Earned] = {}  # of locks that are set
    cause_of_end: str = "cleared"  # of locks that are cleared, or BY_PLAN


BY_HAND = Evidence()
BY_PLAN = "plan"  # the cause of the end of a lock that a new plan does not keep


class Judged(NamedTuple):
    """Changes of locks that a transaction publishes, their grounds, and notices that are new."""

    changes: Sequence[Change] = ()
    notices: Sequence[Notice] = ()
    evidence: Evidence = BY_HAND
    alarms: Sequence[str] = ()  # of brakes that have begun to act
    in_shadow: Sequence[Change] = ()  # stored, and not in the feed: locks of policies in shadow
    at: Cursor | None = None  # the version of the feed that has the changes; None: no version

    def joined(self, later: Judged) -> Judged:
        """Returns what two transactions have stored."""
        changes, notices = (*self.changes, *later.changes), (*self.notices, *later.notices)
        alarms, in_shadow = (*self.alarms, *later.alarms), (*self.in_shadow, *later.in_shadow)
        return Judged(changes, notices, alarms=alarms, in_shadow=in_shadow)


NOTHING = Judged()


class JudgedRows(NamedTuple):
    """The result of a step of work that is called again until it finds nothing."""

    rows: int  # judged or read; 0: nothing is left, or it must wait
    judged: Judged = NOTHING
    cause: str = ""  # what made it judge, such as "plan 3"; "" if that is the time

    def __bool__(self) -> bool:
        """Whether it found anything."""
        return self.rows > 0


def judge(
    plan: Plan, standings: Iterable[Standing], locks: Mapping[LockKey, Lock], context: Circumstances
) -> Judgement:
    """Returns the locks that totals have earned and do not have, and the totals that have to wait.

    `locks` holds the present locks at `lock_keys(plan, standings)`. Of sums that are judged together, the
    warden gives the totals of all series above their floor. A total that earns no lock clears none: a
    lock ends by its time, or by `lapsed`. Only a share that has fallen clears its lock.
    """
    changes: list[Change] = []
    waiting: dict[TotalKey, Wait] = {}
    notices: list[Notice] = []
    holds: dict[LockKey, Hold] = {}
    pairs = list(_pairs(plan, standings, context.limits))
    context = context._replace(overloads=_overloads(pairs, locks, context))
    for policy, standing in pairs:
        kind, key = policy_kind(policy), lock_key(policy, standing.total)
        present = locks.get(key)
        notices += kind.notices(policy, standing, context)
        answer = _answer(policy, standing, present, context)
        earned = lock_in(answer)
        if earned is not None and (present is None or present.until < earned.until):
            changes.append(Set(earned))
            notices += _lock_notices(policy, standing, earned, present, context)
        if isinstance(answer, Wait):
            waiting[standing.total] = _first(answer, waiting.get(standing.total, answer))
            if answer.clears and present is not None:
                changes.append(Clear(key))
            if answer.over_since_s is not None:
                holds[key] = Hold(answer.over_since_s, context.now.timestamp())
            elif answer.is_behind and key in context.holds:
                holds[key] = context.holds[key]  # nothing was seen
    return Judgement(changes, waiting, notices, holds)


def _answer(
    policy: Policy, standing: Standing, present: Lock | None, context: Circumstances
) -> Lock | Wait | None:
    """Returns the answer of the policy's kind; a lock that is held off waits until the hold-off ends.

    No growth ends a hold-off. What the kind waits for besides, such as the end of a notice, comes when it
    is due; only a comparison with a whole begins again after it, and its hold with it.
    """
    kind = policy_kind(policy)
    answer = kind.judge(policy, standing, present, context)
    until_s = context.held_off.get(lock_key(policy, standing.total), 0.0)
    if lock_in(answer) is None or until_s <= context.now.timestamp():
        return answer
    if isinstance(answer, Wait) and kind.whole_sum is None:
        return Wait(min(until_s, answer.until_s))
    return Wait(until_s)


def _lock_notices(
    policy: Policy, standing: Standing, lock: Lock, present: Lock | None, context: Circumstances
) -> Iterator[Notice]:
    """Yields the notice of a lock that begins and that no gate gets."""
    if policy.action != "notify" or (present is not None and present.until > context.now):
        return
    used, limit = policy_kind(policy).amounts(policy, standing, context)
    key = notice_key(policy.name, standing.total, WHOLE)._replace(window_s=int(lock.began.timestamp()))
    yield Notice(key, lock.scope, used, limit, int(lock.until.timestamp()), lock.detail)


def _overloads(
    pairs: Iterable[tuple[Policy, Standing]], locks: Mapping[LockKey, Lock], context: Circumstances
) -> dict[tuple[str, str], Blamed]:
    """Returns what series that are judged together say, by policy and resource."""
    standings_by_policy: dict[Policy, list[Standing]] = {}
    for policy, standing in pairs if context.is_warden else ():
        if policy_kind(policy).overloads is not None:
            standings_by_policy.setdefault(policy, []).append(standing)
    return {
        (policy.name, resource): overload
        for policy, standings in standings_by_policy.items()
        if (overloads := policy_kind(policy).overloads) is not None
        for resource, overload in overloads(policy, standings, locks, context).items()
    }


def lock_in(answer: Lock | Wait | None) -> Lock | None:
    """Returns the lock that a series must have by the answer of a kind."""
    return answer.lock if isinstance(answer, Wait) else answer


def _first(first: Wait, second: Wait) -> Wait:
    """Returns when a total must be judged again that two policies wait for."""
    return Wait(min(first.until_s, second.until_s), first.is_behind or second.is_behind)


def judge_policies(
    plan: Plan, policies: Collection[str], standings: Iterable[Standing], context: Circumstances
) -> list[Set]:
    """Returns the locks that totals have earned by `policies`, those that are there already among them.

    For policies that a plan has changed: each of their locks is written again, because it carries the
    policy's settings.
    """
    return [
        Set(lock)
        for policy, standing in _pairs(plan, standings, context.limits)
        if policy.name in policies and (lock := lock_in(_answer(policy, standing, None, context))) is not None
    ]


def judge_changed(
    plan: Plan,
    changed: Collection[tuple[str, str]],
    standings: Sequence[Standing],
    locks: Mapping[LockKey, Lock],
    context: Circumstances,
) -> Judgement:
    """Returns what must change after the limits of some series have changed, up or down.

    `changed` has pairs of a policy and a key, `standings` all totals of these, `locks` all their locks. A
    lock that stays earned begins when it began, and names the new limit. Locks of surges last for their time;
    they are cleared for a series that is exempt from now on.
    """
    changes: list[Change] = []
    waiting: dict[TotalKey, Wait] = {}
    notices: list[Notice] = []
    stay = {key for key in locks if _stays(plan, key, context.limits)}
    context = context._replace(is_warden=False)  # what is compared with a whole waits for its next look
    for policy, standing in _pairs(plan, standings, context.limits):
        key = lock_key(policy, standing.total)
        notices += policy_kind(policy).notices(policy, standing, context)
        if (policy.name, key.key) not in changed or key in stay:
            continue
        answer = _answer(policy, standing, None, context)
        if (earned := lock_in(answer)) is not None:
            stay.add(key)
            present = locks.get(key)
            changes.append(Set(replace(earned, began=earned.began if present is None else present.began)))
            notices += _lock_notices(policy, standing, earned, present, context)
        if isinstance(answer, Wait):
            waiting[standing.total] = _first(answer, waiting.get(standing.total, answer))
    cleared: list[Change] = [Clear(key) for key in sorted(locks) if key not in stay]
    return Judgement(cleared + changes, waiting, notices)


def _stays(plan: Plan, key: LockKey, limits: OwnPolicies | None) -> bool:
    """Whether a lock lasts for its time, because of its kind, and its series is not exempt."""
    policy = plan.policy(key.policy)
    if policy is None or not policy_kind(policy).locks_last:
        return False
    return limits is None or limits.policy_for(policy, key.key, key.resource) is not None


def lapsed(locks: Iterable[Lock], now: datetime) -> list[Change]:
    """Returns the changes that clear the locks whose time is over."""
    return [Clear(lock.at) for lock in locks if lock.until <= now]


def lock_keys(plan: Plan, standings: Iterable[Standing]) -> list[LockKey]:
    """Returns the keys of all locks that these totals may have earned."""
    return [lock_key(policy, standing.total) for policy, standing in _pairs(plan, standings)]


def used_at(plan: Plan, standings: Iterable[Standing], changes: Iterable[Change]) -> dict[LockKey, int]:
    """Returns what the series of these changes had used, by the key of the lock that begins or ends."""
    keys = {change.at for change in changes}
    pairs = _pairs(plan, standings) if keys else ()
    used = ((lock_key(policy, standing.total), standing.used) for policy, standing in pairs)
    return {key: amount for key, amount in used if key in keys}


def earned_at(
    plan: Plan, standings: Iterable[Standing], changes: Iterable[Change], context: Circumstances
) -> dict[LockKey, Earned]:
    """Returns by which total each lock that is set was earned, and by how much, by the key of the lock."""
    keys = {change.at for change in changes if isinstance(change, Set)}
    pairs = _pairs(plan, standings, context.limits) if keys else ()
    return {
        key: Earned(standing.total, *policy_kind(policy).amounts(policy, standing, context))
        for policy, standing in pairs
        if (key := lock_key(policy, standing.total)) in keys
    }


def _pairs(
    plan: Plan, standings: Iterable[Standing], limits: OwnPolicies | None = None
) -> Iterator[tuple[Policy, Standing]]:
    """Yields each total with the policies that judge it, as they apply to its series."""
    for standing in standings:
        total = standing.total
        for policy in plan_sums(plan).policies_by_sum.get(total.sum, ()):
            if limits is None:
                own: Policy | None = for_resource(policy, total.resource)
            else:
                own = limits.policy_for(policy, total.key, total.resource)
            if own is not None:
                yield own, standing
