"""Policies whose brake acts: the warden turns their locks to shadow, and an operator releases them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.brakes import BrakeState
from analyzer.judging.judge import NOTHING, Judged, JudgedRows
from analyzer.judging.locks import lock_feed
from analyzer.judging.sql import brake_rows, plans
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import reading, writing

AT_ONCE = 1_000  # locks of one transaction
RELEASED = "policies enforce"  # act in the audit log


def turn_to_shadow(engine: sa.Engine, random_mark: Callable[[], str]) -> JudgedRows:
    """Turns locks of policies to shadow whose brake acts, up to a bound, and notes the traffic.

    Gates drop these locks. Raises StoreAway.
    """
    with reading(engine) as db:
        has_work, is_due = brake_rows.is_clearing(db), brake_rows.is_sample_due(db, clock_ms(db))
    if is_due:
        with writing(engine) as db:
            brake_rows.sample_traffic(db, clock_ms(db))
    if not has_work:
        return JudgedRows(0)
    with writing(engine) as db:
        plans.block_flushes(db)
        changes, rows = brake_rows.turn_to_shadow(db, AT_ONCE)
        judged = lock_feed.publish_judged(db, Judged(changes), random_mark())
        return JudgedRows(rows, judged, "brake")


def brake_texts(engine: sa.Engine) -> dict[str, str]:
    """Returns what the brakes of policies do at this time, by policy; those that do nothing are left out.

    Raises StoreAway.
    """
    with reading(engine) as db:
        return brake_rows.texts(db)


class Release(NamedTuple):
    """A policy that was released.

    Attributes:
        state: Of its brake, before.
        locks: Locks in shadow that gates get from now on.
    """

    state: BrakeState
    locks: int
    judged: Judged = NOTHING


def brake_states(engine: sa.Engine) -> dict[str, BrakeState]:
    """Returns the state of the brake of each policy, by its name. Raises StoreAway."""
    with reading(engine) as db:
        return brake_rows.states(db)


def release_policy(
    engine: sa.Engine, policy: str, who: str, reason: str, random_mark: Callable[[], str]
) -> Release | None:
    """Enforces a policy again that its brake holds; None if it does not hold it.

    Gates get the locks that it has in shadow. It counts as older than a day. Raises StoreAway, SchemaBehind.
    """
    release: Release | None = None
    while True:
        with writing(engine) as db:
            plans.block_flushes(db)
            if release is None:
                state = brake_rows.release(db, policy)
                if state is None:
                    return None
                record(db, who, RELEASED, f"policy {policy}", reason)
                release = Release(state, 0)
            in_force = plans.stored(db)
            judged_by = None if in_force is None else in_force.plan.policy(policy)
            if judged_by is None or judged_by.is_shadow:
                return release  # another plan is in force since
            locks = lock_feed.locks_in_shadow(db, policy, AT_ONCE)
            changes = brake_rows.with_action(db, locks, judged_by.action)
            judged = lock_feed.publish_judged(db, Judged(changes), random_mark())
            release = Release(release.state, release.locks + len(locks), release.judged.joined(judged))
        if len(locks) < AT_ONCE:
            return release
