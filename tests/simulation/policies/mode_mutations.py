"""Mutations of modes, of locks by hand and of what ends with a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from analyzer.core.judging.kinds import earned_locks
from analyzer.store.operations import locks_by_hand
from analyzer.store.transaction import plans
from analyzer.store.transaction.judgement import hold_offs
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


MODE_MUTATIONS: Sequence[Callable[[Patch], None]] = (
    shadow_enforced,
    hold_offs_ignored,
    hold_offs_not_stored,
    held_off_without_end,
    notices_outlast_policies,
)
