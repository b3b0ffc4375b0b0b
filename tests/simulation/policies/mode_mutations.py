"""Mutations of modes, of locks by hand and of what ends with a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from analyzer.judging.brakes import BrakeState
from analyzer.judging.kinds import earned_locks
from analyzer.judging.locks import lock_feed, locks_by_hand
from analyzer.judging.sql import brake_rows, hold_offs, plans
from tests.faults.mutations import Patch


def shadow_enforced(patch: Patch) -> None:
    """Locks of policies in shadow refuse requests."""
    patch.setattr(earned_locks, "SHADOW", "deny")


def hold_offs_ignored(patch: Patch) -> None:
    """A judgement knows no hold-off: the next records lock a caller whom an operator has unlocked."""
    patch.setattr(hold_offs, "in_force", lambda *_: {})


def hold_offs_not_stored(patch: Patch) -> None:
    """A lock is cleared, and nothing holds it off."""
    patch.setattr(hold_offs, "store", lambda *_: None)


def held_off_without_end(patch: Patch) -> None:
    """A total whose lock was cleared is not judged when its hold-off ends."""
    patch.setattr(locks_by_hand, "_waits", lambda *_: {})


def notices_outlast_policies(patch: Patch) -> None:
    """A notice of a rolling window lasts after its policy is gone, and is never raised again."""
    patch.setattr(plans, "_end_notices", lambda *_: None)


def brakes_ignored(patch: Patch) -> None:
    """A policy locks any number of series in its first day."""
    patch.setattr(brake_rows, "within", lambda _db, _plan, _catalog, judged, _now_ms: judged)


def braked_locks_stay(patch: Patch) -> None:
    """Gates keep the locks that a policy set before its brake acted."""
    patch.setattr(brake_rows, "turn_to_shadow", lambda *_: ([], 0))


def paced_locks_forgotten(patch: Patch) -> None:
    """Series whose lock must wait for the next interval are not judged again."""
    patch.setattr(brake_rows, "_postpone", lambda *_: None)


def released_locks_stay_in_shadow(patch: Patch) -> None:
    """An operator releases a policy, and gates do not get the locks that it has."""
    patch.setattr(lock_feed, "locks_in_shadow", lambda *_: [])


def released_policies_stay_young(patch: Patch) -> None:
    """A policy that was released is put in shadow again by the next locks."""

    def ended(db: sa.Connection, policy: str) -> BrakeState | None:
        state = brake_rows.states(db).get(policy)
        if state is None or state.braked_ms is None:
            return None
        brake_rows._store(db, policy, BrakeState(state.since_ms), is_clearing=False)
        return state

    patch.setattr(brake_rows, "release", ended)


MODE_MUTATIONS: Sequence[Callable[[Patch], None]] = (
    shadow_enforced,
    hold_offs_ignored,
    hold_offs_not_stored,
    held_off_without_end,
    notices_outlast_policies,
    brakes_ignored,
    braked_locks_stay,
    paced_locks_forgotten,
    released_locks_stay_in_shadow,
    released_policies_stay_young,
)
