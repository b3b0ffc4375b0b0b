"""The brakes of policies in SQL: a row for each policy in force, held by those that set new locks of it.

A transaction that sets no new lock reads nothing here. The row is locked behind those of totals and locks,
and before new rows of `locks` and the feed's version, in the order of the policies' names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging.brakes import (
    BrakeState,
    NewLock,
    apply_brake,
    is_braked_by,
    policy_brake,
    state_text,
    unchanged,
    with_the_same_brake,
)
from analyzer.judging.circumstances import Wait
from analyzer.judging.judge import Judged
from analyzer.judging.locks import lock_feed
from analyzer.judging.sql import postponed
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import insert, reading
from analyzer.kernel.database.row_parameters import LookUp, in_parts, rows_given
from analyzer.kernel.tables.schema import brakes, buckets, offsets, traffic_samples
from analyzer.plan.catalog import Catalog
from analyzer.plan.meters import MINUTE_S, REQUESTS
from analyzer.plan.plan import Plan
from analyzer.plan.policies import SHADOW, Brake, Policy
from gatekeeper.model import Change, Lock, LockKey, Set

ACT = "brake"  # of an entry in the audit log
ANALYZER = "the analyzer"  # who acts then
SAMPLE_EVERY_MS = 60_000
SAMPLES_KEPT_MS = 25 * 3_600_000  # for pages; brakes need twice their longest interval, two hours
STATE = [brakes.c[name] for name in BrakeState._fields]
AT = (buckets.c.bucket_s, buckets.c.key, buckets.c.resource)


def within(db: sa.Connection, plan: Plan, catalog: Catalog, judged: Judged, now_ms: int) -> Judged:
    """Returns what has been judged as the brakes of the policies allow it, and stores what they count.

    Locks that must wait are left out, and their totals are postponed; those of a policy whose brake acts
    become locks in shadow. The transaction holds the totals.
    """
    new = _new_locks(db, plan, judged)
    if not new:
        return judged
    states = _stored(db, sorted(new))
    in_shadow: set[str] = set()
    waiting: dict[LockKey, int] = {}
    alarms = []
    for name in sorted(new):
        policy = plan.policy(name)
        if policy is None:
            continue
        bound, state = policy_brake(policy), states[name]
        total = None
        beginning = [
            NewLock(key, earned.used, earned.limit)
            for key in new[name]
            if (earned := judged.evidence.earned.get(key)) is not None
        ]
        if bound.traffic and state.braked_ms is None:
            beginning, total = _with_requests(db, catalog, policy, bound, beginning, now_ms)
        braking = apply_brake(policy, state, beginning, total, now_ms)
        if braking.in_shadow:
            in_shadow.add(name)
        waiting.update(braking.waiting)
        if braking.state != state:
            _store(db, name, braking.state, is_clearing=braking.state.braked_ms != state.braked_ms)
        if braking.alarm:
            alarms.append(braking.alarm)
            record(db, ANALYZER, ACT, f"policy {name}", braking.alarm)
    _postpone(db, catalog, judged, waiting)
    changes = [_in_shadow(change, in_shadow) for change in judged.changes if change.at not in waiting]
    return judged._replace(changes=changes, alarms=(*judged.alarms, *alarms))


def renew(db: sa.Connection, earlier: Plan, since_ms: int, plan: Plan, now_ms: int) -> None:
    """Has the brakes agree with `plan`, which comes in force here in place of an earlier one.

    That came in force at `since_ms`. A policy that locks other series from now on is young again. One whose
    bound alone has changed keeps its age, and its locks are not in shadow any more.
    """
    old = unchanged(earlier, plan)
    kept = with_the_same_brake(earlier, plan, [policy.name for policy in plan.policies])
    names = sorted(policy.name for policy in plan.policies)
    stored: Mapping[str, BrakeState] = _stored(db, names)
    db.execute(sa.delete(brakes).where(brakes.c.policy.not_in(names)))
    for name in names:
        state = stored.get(name, BrakeState(since_ms))
        if name not in old:
            # Of a source that is read otherwise, all policies are young again; what is in shadow stays so.
            policy, was = plan.policy(name), earlier.policy(name)
            state = state if policy == was else BrakeState(now_ms)
            state = state._replace(since_ms=now_ms, released_ms=None)
        elif name not in kept:
            state = BrakeState(state.since_ms, released_ms=state.released_ms)
        if stored.get(name) != state:
            _store(db, name, state, is_clearing=False)


def release(db: sa.Connection, policy: str) -> BrakeState | None:
    """Ends the shadow of a policy, which counts as one that is older than a day from now on.

    Returns the state before; None if the brake does not hold the policy. The transaction keeps flushes out.
    """
    state = _stored(db, [policy]).get(policy)
    if state is None or state.braked_ms is None:
        return None
    _store(db, policy, BrakeState(state.since_ms, released_ms=clock_ms(db)), is_clearing=False)
    return state


def turn_to_shadow(db: sa.Connection, most: int) -> tuple[list[Change], int]:
    """Returns changes that turn locks of braked policies to shadow, at most `most`, and how many there are.

    The transaction keeps flushes out, and publishes them. Gates drop these locks.
    """
    statement = sa.select(brakes.c.policy).where(brakes.c.is_clearing == 1).order_by(brakes.c.policy).limit(1)
    policy = db.execute(statement).scalar()
    if policy is None:
        return [], 0
    enforced = lock_feed.enforced_locks(db, policy, most)
    if len(enforced) < most:
        db.execute(sa.update(brakes).where(brakes.c.policy == policy).values(is_clearing=0))
    return with_action(db, enforced, SHADOW), max(len(enforced), 1)


def with_action(db: sa.Connection, locks: Sequence[Lock], action: str) -> list[Change]:
    """Returns changes that give locks another action from now on.

    They begin now: a verdict of before is compared with the action of then.
    """
    now = instant(clock_ms(db))
    return [Set(replace(lock, action=action, began=now)) for lock in locks]


def is_clearing(db: sa.Connection) -> bool:
    """Whether locks of a braked policy are still to be turned to shadow."""
    statement = sa.select(brakes.c.policy).where(brakes.c.is_clearing == 1).limit(1)
    return db.execute(statement).first() is not None


def states(db: sa.Connection) -> dict[str, BrakeState]:
    """Returns the state of each brake, by policy."""
    rows = db.execute(sa.select(brakes.c.policy, *STATE).order_by(brakes.c.policy))
    return {name: BrakeState(*state) for name, *state in rows}


def texts(db: sa.Connection) -> dict[str, str]:
    """Returns what brakes do at this time, by policy; those that do nothing are left out."""
    now_ms = clock_ms(db)
    by_name = {name: state_text(state, now_ms) for name, state in states(db).items()}
    return {name: text for name, text in by_name.items() if text}


def in_shadow(db: sa.Connection) -> frozenset[str]:
    """Returns the policies whose locks are in shadow by their brakes."""
    return frozenset(name for name, state in states(db).items() if state.braked_ms is not None)


def is_sample_due(db: sa.Connection, now_ms: int) -> bool:
    """Whether the traffic must be noted, which is done once in SAMPLE_EVERY_MS."""
    newest = db.execute(sa.select(sa.func.max(traffic_samples.c.at_ms))).scalar()
    return newest is None or not 0 <= now_ms - newest < SAMPLE_EVERY_MS


def sample_traffic(db: sa.Connection, now_ms: int) -> None:
    """Stores how many records were counted so far, and deletes old samples."""
    is_old = traffic_samples.c.at_ms < now_ms - SAMPLES_KEPT_MS
    # Those of a clock that was ahead say nothing.
    db.execute(sa.delete(traffic_samples).where(sa.or_(is_old, traffic_samples.c.at_ms >= now_ms)))
    behind = sa.func.coalesce(sa.func.max(offsets.c.behind_ms), 0)
    behind_ms = db.execute(sa.select(behind).where(offsets.c.beat_ms.is_not(None))).scalar_one()
    values = {"at_ms": now_ms, "counted": _counted(db), "behind_ms": behind_ms}
    db.execute(sa.insert(traffic_samples).values(values))


class TrafficSample(NamedTuple):
    """The records counted up to a time, and the lag of the partition furthest behind."""

    at_ms: int
    counted: int
    behind_ms: int


def traffic_samples_since(engine: sa.Engine, since_ms: int) -> list[TrafficSample]:
    """Returns the samples of the last hours since then, the oldest first. Raises StoreAway."""
    columns = traffic_samples.c
    statement = sa.select(columns.at_ms, columns.counted, columns.behind_ms)
    with reading(engine) as db:
        rows = db.execute(statement.where(columns.at_ms >= since_ms).order_by(columns.at_ms))
        return [TrafficSample(*row) for row in rows]


def _new_locks(db: sa.Connection, plan: Plan, judged: Judged) -> dict[str, list[LockKey]]:
    """Returns the locks that begin, and that gates are to get, by policies that have a brake."""
    braked = {policy.name for policy in plan.policies if is_braked_by(policy)}
    keys = [
        change.at
        for change in judged.changes
        if isinstance(change, Set) and change.at.policy in braked and lock_feed.is_enforced(change.lock)
    ]
    present = lock_feed.locked(db, keys) if keys else {}
    new: dict[str, list[LockKey]] = {}
    for key in keys:
        if key not in present or not lock_feed.is_enforced(present[key]):
            new.setdefault(key.policy, []).append(key)
    return new


def _stored(db: sa.Connection, names: Sequence[str]) -> dict[str, BrakeState]:
    """Returns the states of these policies, and blocks other writers of them until commit."""
    statement = sa.select(brakes.c.policy, *STATE).where(brakes.c.policy.in_(names)).order_by(brakes.c.policy)
    rows = db.execute(statement.with_for_update())
    return {name: BrakeState(*state) for name, *state in rows}


def _store(db: sa.Connection, policy: str, state: BrakeState, *, is_clearing: bool) -> None:
    row = {"policy": policy, "is_clearing": int(is_clearing), **state._asdict()}
    if not is_clearing and state.braked_ms is not None:
        del row["is_clearing"]  # as it is
    added = insert(db, brakes).values({"is_clearing": 0, **row})
    changed = {name: value for name, value in row.items() if name != "policy"}
    db.execute(added.on_conflict_do_update(index_elements=brakes.primary_key, set_=changed))


def _in_shadow(change: Change, policies: Collection[str]) -> Change:
    if isinstance(change, Set) and change.at.policy in policies and lock_feed.is_enforced(change.lock):
        return Set(replace(change.lock, action=SHADOW))
    return change


def _postpone(db: sa.Connection, catalog: Catalog, judged: Judged, waiting: Mapping[LockKey, int]) -> None:
    earned = judged.evidence.earned
    # No growth ends it: the heaviest are chosen when the next interval begins.
    totals = {earned[key].total: Wait(until_ms / 1000) for key, until_ms in waiting.items()}
    if totals:
        postponed.store_earlier(db, totals, catalog)


def _with_requests(
    db: sa.Connection,
    catalog: Catalog,
    policy: Policy,
    bound: Brake,
    new: Sequence[NewLock],
    now_ms: int,
) -> tuple[list[NewLock], int | None]:
    """Returns the new locks with the requests of their series in the last interval, and those of all."""
    columns = (traffic_samples.c.at_ms, traffic_samples.c.counted)
    first_ms = now_ms - bound.per_s * 1000
    earlier = sa.select(*columns).where(traffic_samples.c.at_ms <= first_ms)
    sample = db.execute(earlier.order_by(traffic_samples.c.at_ms.desc()).limit(1)).first()
    if sample is None:  # counting has begun since
        later = sa.select(*columns).where(traffic_samples.c.at_ms <= now_ms - SAMPLE_EVERY_MS)
        sample = db.execute(later.order_by(traffic_samples.c.at_ms).limit(1)).first()
    meter = catalog.meters.get(REQUESTS.name)
    if sample is None or meter is None:
        return list(new), None
    at_ms, counted = sample
    from_s = at_ms // 1000 // MINUTE_S * MINUTE_S
    minutes = range(from_s, now_ms // 1000 + 1, MINUTE_S)
    requests: dict[tuple[str, str], int] = {}
    series = sorted({(lock.at.key, lock.at.resource) for lock in new})
    rows = [[minute, *pair] for minute in minutes for pair in series]
    statement = _requests(db.dialect.name, meter.place)
    stored_as = {"grouping": catalog.groupings[policy.per], "page": meter.page}
    for parameters in in_parts(db.dialect.name, AT, rows):
        for key, resource, number in db.execute(statement, parameters | stored_as):
            requests[key, resource] = requests.get((key, resource), 0) + int(number or 0)
    with_requests = [lock._replace(requests=requests.get((lock.at.key, lock.at.resource), 0)) for lock in new]
    return with_requests, max(_counted(db) - counted, 0)


def _counted(db: sa.Connection) -> int:
    return int(db.execute(sa.select(sa.func.sum(offsets.c.counted))).scalar() or 0)


@lru_cache
def _requests(dialect: str, place: int) -> sa.Select[Any]:
    series = rows_given(dialect, AT)
    stored_as = sa.and_(
        buckets.c.grouping == sa.bindparam("grouping"),
        buckets.c.page == sa.bindparam("page"),
        buckets.c.width_s == MINUTE_S,
    )
    match = sa.and_(stored_as, *(column == series.c[column.name] for column in AT))
    counted = sa.select(buckets.c.key, buckets.c.resource, sa.func.sum(buckets.c[f"value_{place}"]))
    return counted.select_from(LookUp(series, buckets, match)).group_by(buckets.c.key, buckets.c.resource)
