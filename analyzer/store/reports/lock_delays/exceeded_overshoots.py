"""Late locks: their series was admitted more beyond its limit than `gatelock check` says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.core.delays.delay_parts import PolicyOvershoot, delay_parts
from analyzer.core.judging.plan import Plan
from analyzer.store.database.clock import clock_ms
from analyzer.store.database.engine import reading
from analyzer.store.reports.explained.lock_outcomes import LockOutcome, lock_outcomes
from analyzer.store.reports.lock_delays.living_delays import living_delays
from analyzer.store.transaction.analyzers import plan_in_force

RECENT_MS = 3_600_000
LOCKS_MAX = 10_000


class ExceededOvershoot(NamedTuple):
    """A lock, and the overshoot that `gatelock check` estimates for its policy."""

    lock: LockOutcome
    estimated: PolicyOvershoot

    def __str__(self) -> str:
        at = self.lock.at
        on = " ".join(part for part in (at.scope, at.key, at.resource) if part)
        return (
            f"the lock of {on} by {at.policy} came late: {self.lock.overshoot:,} admitted beyond the limit; "
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


def recent_overshoots(engine: sa.Engine, flush_s: float) -> list[ExceededOvershoot]:
    """Returns the locks that began in the last hour and came late. Raises StoreAway, SchemaBehind.

    Of at most `LOCKS_MAX` locks, so that a flood of them costs no more.
    """
    with reading(engine) as db:
        since_ms = clock_ms(db) - RECENT_MS
    began = (lock for lock in lock_outcomes(engine, since_ms) if lock.began_ms >= since_ms)
    return list(exceeded(islice(began, LOCKS_MAX), estimated_overshoots(engine, flush_s)))


def late_locks(engine: sa.Engine, flush_s: float) -> dict[str, str]:
    """Returns a sentence for each of `recent_overshoots`, by a text that names the lock and its begin."""
    found = recent_overshoots(engine, flush_s)
    return {f"{late.lock.at} {late.lock.began_ms}": str(late) for late in found}
