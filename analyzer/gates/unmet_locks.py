"""Locks that no gate has met although requests of their callers are still counted.

Gates and the log name callers independently: a lock under a name that no gate is asked for denies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from math import ceil
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.gates.gate_health import living_gates, met_locks
from analyzer.gates.gate_reports import reporting_gates
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.judging.locks.suspension import suspended_until
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import reading
from analyzer.kernel.sentences import plural, verb
from analyzer.plan.groupings import BY_RESOURCE
from analyzer.plan.meters import REQUESTS, WIDTHS_S
from gatekeeper.model import Lock, LockKey

BUCKET_S = min(WIDTHS_S)
DELAY_S = 60  # since the lock began: until gates know it, and until they have reported that they met it
RECENT_S = 3_600  # requests of this time are read
LOCKS_READ_MAX = 100


class UnmetLock(NamedTuple):
    """A lock that no gate has met, and the requests that it should have denied.

    Attributes:
        lock: The lock.
        requests: Requests of its caller that were admitted and counted, at least DELAY_S after it began.
    """

    lock: Lock
    requests: int

    @property
    def sentence(self) -> str:
        """The lock and its requests in words."""
        return (
            f"{self.lock.key}: no gate has met its lock by {self.lock.policy}, and "
            f"{plural(self.requests, 'request')} {verb(self.requests)} counted since: `gatelock doctor`"
        )


def unmet_locks(
    engine: sa.Engine, met: Set[LockKey] | None, *, key: str | None = None, policy: str | None = None
) -> list[UnmetLock]:
    """Returns locks on callers that are not in `met`, and whose callers are still counted.

    Examines the LOCKS_READ_MAX of these locks that end last. Empty while all locks are suspended. Raises
    StoreAway.

    Args:
        engine: The database.
        met: The locks that gates have met. None: not known, and the result is empty.
        key: Only locks on this caller.
        policy: Only locks of this policy.
    """
    if met is None or suspended_until(engine) is not None:
        return []
    with reading(engine) as db:
        now_s = clock_ms(db) / 1000
    candidates = list(_candidates(locks_in_force(engine, key, policy), met, now_s))
    counted = (UnmetLock(lock, _counted_since(engine, lock, now_s)) for lock in candidates)
    return [unmet for unmet in counted if unmet.requests]


def number_of_unmet_locks(engine: sa.Engine) -> int | None:
    """Returns how many locks no gate has met, of the gates that report; None if that is not known.

    Raises StoreAway.
    """
    met = met_locks(living_gates(reporting_gates(engine)))
    return None if met is None else len(unmet_locks(engine, met))


def _candidates(locks: Iterator[Lock], met: Set[LockKey], now_s: float) -> Iterator[Lock]:
    number = 0
    for lock in locks:
        if lock.scope == "caller" and lock.at not in met and _first_bucket_s(lock) < now_s:
            yield lock
            number += 1
            if number == LOCKS_READ_MAX:
                return


def _first_bucket_s(lock: Lock) -> int:
    """Returns the begin of the first bucket in which a gate should have denied every request."""
    return ceil((lock.began.timestamp() + DELAY_S) / BUCKET_S) * BUCKET_S


def _counted_since(engine: sa.Engine, lock: Lock, now_s: float) -> int:
    query = UsageQuery(
        f"caller{BY_RESOURCE}" if lock.resource else "caller",
        BUCKET_S,
        from_s=max(_first_bucket_s(lock), int(now_s - RECENT_S)),
        key=lock.key,
        meter=REQUESTS.name,
    )
    return sum(row.value for row in usage_rows(engine, query) if row.resource == lock.resource)
