"""Late locks: their series was admitted more beyond its limit than `gatelock check` says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.delays.delay_parts import PolicyOvershoot, delay_parts
from analyzer.delays.living_delays import living_delays
from analyzer.delays.standstills import Standstill, standstills
from analyzer.judging.locks.lock_outcomes import LockOutcome, lock_outcomes
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import reading
from analyzer.plan.plan import Plan

RECENT_MS = 3_600_000
COUNTED_LATE = "records were counted late: the database was away, or an analyzer was stopped or behind"
LOCKS_MAX = 10_000


class ExceededOvershoot(NamedTuple):
    """A lock, and the overshoot that `gatelock check` estimates for its policy."""

    lock: LockOutcome
    estimated: PolicyOvershoot

    def __str__(self) -> str:
        key = self.lock.at
        on = " ".join(part for part in (key.scope, key.key, key.resource) if part)
        return (
            f"the lock of {on} by {key.policy} came late: {self.lock.overshoot:,} admitted beyond the limit; "
            f"`gatelock check` says {self.estimated}"
        )


def estimated_overshoots(engine: sa.Engine, flush_s: float) -> dict[str, PolicyOvershoot]:
    """Returns the overshoot of each policy in force as `gatelock check` says it without a limiter.

    `flush_s` is the configured time between two flushes. Raises StoreAway, SchemaBehind.
    """
    plan = plan_in_force(engine) or Plan()
    living = living_delays(engine, [(policy.per, policy.meter) for policy in plan.policies])
    delay_s = delay_parts(flush_s, living.measured, living.view_ages_s).delay.total_s
    return {
        policy.name: PolicyOvershoot(policy.name, delay_s, rate=living.rates.get((policy.per, policy.meter)))
        for policy in plan.policies
    }


def exceeded(
    locks: Iterable[LockOutcome], estimated: Mapping[str, PolicyOvershoot]
) -> Iterator[ExceededOvershoot]:
    """Yields the locks whose overshoot is known, and is more than `gatelock check` says."""
    for lock in locks:
        of_policy = estimated.get(lock.at.policy)
        most = None if of_policy is None else of_policy.most
        if of_policy is not None and most is not None and (lock.overshoot or 0) > most:
            yield ExceededOvershoot(lock, of_policy)


class LateLocks(NamedTuple):
    """Locks of the last hour that came late for one cause.

    Attributes:
        cause: A sentence: that nothing was counted, or that it was counted late; "" where the gates are late.
        worst: The one that let most through.
        number: How many there are.
    """

    cause: str
    worst: ExceededOvershoot
    number: int

    def __str__(self) -> str:
        more = f", and {self.number - 1:,} more locks of the last hour" if self.number > 1 else ""
        return f"{self.cause}; {self.worst}{more}" if self.cause else f"{self.worst}{more}"


def recent_overshoots(engine: sa.Engine, flush_s: float) -> list[LateLocks]:
    """Returns the locks that began in the last hour and came late, by their cause: those of gates come last.

    Of at most `LOCKS_MAX` locks, so that a flood of them costs no more. Raises StoreAway, SchemaBehind.
    """
    with reading(engine) as db:
        since_ms = clock_ms(db) - RECENT_MS
        still = standstills(db, since_ms)
    began = (lock for lock in lock_outcomes(engine, since_ms) if lock.began_ms >= since_ms)
    by_cause: dict[str, LateLocks] = {}
    for late in exceeded(islice(began, LOCKS_MAX), estimated_overshoots(engine, flush_s)):
        cause = late_cause(late.lock, still)
        previous = by_cause.get(cause, LateLocks(cause, late, 0))
        worst = max(previous.worst, late, key=lambda overshoot: overshoot.lock.overshoot or 0)
        by_cause[cause] = LateLocks(cause, worst, previous.number + 1)
    return [by_cause[cause] for cause in sorted(by_cause, reverse=True)]


def late_cause(lock: LockOutcome, still: Sequence[Standstill]) -> str:
    """Returns why a lock came late, as far as counting is the cause; otherwise ""."""
    for standstill in still:
        if standstill.explains(lock.began_ms):
            return str(standstill)
    return COUNTED_LATE if 2 * lock.admitted_before > (lock.overshoot or 0) else ""
