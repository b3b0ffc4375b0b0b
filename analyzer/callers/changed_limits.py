"""Changes of the directory: written, and judged in the same transaction.

Traffic is not needed: a caller that is above its new limit is locked, one that is below is freed. Flushes
wait for it, because a total that a flush is inserting at this moment has a `next` by the limit of before, and
no other transaction can see or correct it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

import sqlalchemy as sa

from analyzer.judging.activation_steps import (
    ClearStep,
    JudgeStep,
    Step,
    filled_to,
    refuse_steps,
    steps_with,
    widths_s,
)
from analyzer.judging.caller_limits import Limits, Subject, is_refused
from analyzer.judging.judge import BY_HAND, NOTHING, Judged, JudgedRows, judge_changed
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks import lock_feed
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import directory, plans, postponed, refills, stored_notices
from analyzer.judging.sql.activation import Activation, store_steps
from analyzer.judging.sql.slots import with_slots
from analyzer.judging.sql.sql_judge import Judge
from analyzer.judging.sql.totals import StoredTotal, held_of_keys, judge_when_grown, set_next
from analyzer.judging.totals import Standing, TotalKey
from analyzer.kernel.database.clock import clock_ms, instant, millis
from analyzer.kernel.database.engine import slow_reading, writing
from analyzer.kernel.tables.schema import refills as refills_table
from analyzer.plan import catalog
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.plan import Plan
from analyzer.plan.policies import base_name, limits_by_plan
from analyzer.plan.sums import Sum, lock_order
from gatekeeper.model import Change, Lock, Set

CALLERS_MAX = 1_000  # changed in one transaction: flushes wait for a fraction of a second
ROWS_MAX = 20_000  # totals that a change for a tenant or a range reads itself; the warden reads the others


def change(
    db: sa.Connection,
    subjects: Collection[Subject],
    policies: Collection[str],
    write: Callable[[int], None],
    random_mark: Callable[[], str],
    *,
    of_facts: bool = False,
) -> Judged:
    """Calls `write` with the next version of the directory, and judges `subjects`, at most CALLERS_MAX.

    `policies` are those that the change is about; "" stands for all. Facts about a tenant are facts about its
    callers only where these have limits by plan. Raises SchemaBehind.
    """
    plans.block_flushes(db)
    keys = {subject.name for subject in subjects if subject.kind != "address"}
    stored = plans.stored(db)
    plan = Plan() if stored is None else stored.plan
    is_wide = any(subject.kind != "caller" for subject in subjects)
    is_wide &= not of_facts or _has_plans_of_callers(plan)
    old_limits = directory.read_limits(db, plan, directory.newest(db), keys)
    version = directory.add_version(db, random_mark(), is_wide=is_wide)
    write(version.version)
    if stored is None:
        return NOTHING
    numbers = catalog.load(db)
    steps = stored.steps
    filling = filled_to(steps, plan_sums(plan).numbers(numbers.sum_number))
    now = instant(clock_ms(db))
    new_limits = directory.read_limits(db, plan, version, keys)
    judge = Judge(plan, stored.version, numbers, now, 0.0, filling, version, new_limits)
    moved = refills.begin(
        db, plan, numbers, (old_limits, new_limits), subjects, version.version, int(now.timestamp())
    )
    if is_wide:
        names = [
            policy.name for policy in plan.policies if base_name(policy.name) in policies or "" in policies
        ]
        activation = Activation(db, stored, numbers, millis(now), ROWS_MAX)
        may_refuse_all = directory.has_refused(db)
        added = _steps(plan, numbers, filling, names, may_refuse_all=may_refuse_all)
        remaining = activation.run(steps_with(steps, added))
        store_steps(db, stored.version, remaining)
        # No plan has come in force: the limits of its series are others.
        judged = activation.judged
        judged = judged._replace(evidence=judged.evidence._replace(cause_of_end=BY_HAND.cause_of_end))
    else:
        changed = _changed(judge, old_limits, subjects) - moved
        judged = judge_callers(db, judge, _judged_when_filled(db, judge, changed))
    return judge.publish(db, judged, random_mark())


def _has_plans_of_callers(plan: Plan) -> bool:
    """Whether callers have limits by their plan, which may be that of their tenant."""
    return any(
        limits_by_plan(policy) and parse_grouping(policy.per).is_of_callers for policy in plan.policies
    )


def _changed(judge: Judge, old_limits: Limits, subjects: Collection[Subject]) -> set[tuple[str, str]]:
    """Returns the policies that have changed for callers and tenants, as pairs of names.

    One that allows a caller nothing, and did before, has changed too: the caller may not have been known.
    """
    assert judge.limits is not None  # noqa: S101 - set by `change`
    limits = judge.limits
    return {
        (policy.name, key)
        for policy in judge.plan.policies
        for kind, key in subjects
        if parse_grouping(policy.per).scope == kind
        and ((own := limits.of_key(policy, key)) != old_limits.of_key(policy, key) or is_refused(own))
    }


def _judged_when_filled(
    db: sa.Connection, judge: Judge, changed: Collection[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Returns the changed policies without those whose sums are being filled, unless they need no total.

    The totals of these are judged when they grow next, after they are filled: their `next` is by the limit of
    before, and the step that judges a filled sum leaves it as it is.
    """
    assert judge.limits is not None  # noqa: S101 - set by `change`
    remaining = set(changed)
    times = refills.times_ahead(int(judge.now.timestamp()))
    for sum_ in sorted(judge.filling, key=lock_order):
        names = {policy.name for policy in plan_sums(judge.plan).policies_by_sum[sum_]}
        of_sum = {(name, caller) for name, caller in changed if name in names}
        if of_sum:
            callers = {caller for _, caller in of_sum}
            judge_when_grown(db, judge.limits, sum_, times, callers, judge.catalog)
            remaining -= {pair for pair in of_sum if not judge.limits.refuses(sum_, pair[1])}
    return remaining


def judge_callers(
    db: sa.Connection,
    judge: Judge,
    changed: Collection[tuple[str, str]],
    changed_at: datetime | None = None,
) -> Judged:
    """Judges the totals of callers by policies that have changed for them: pairs of a policy and a caller.

    `judge` has their limits, which flushes have judged by since `changed_at`; None: by none of them.
    """
    assert judge.limits is not None  # noqa: S101 - as promised
    limits, now_s = judge.limits, int(judge.now.timestamp())
    series: dict[Sum, set[str]] = {}
    for sum_, policies in plan_sums(judge.plan).policies_by_sum.items():
        names = {policy.name for policy in policies}
        keys = {caller for name, caller in changed if name in names}
        if keys:
            series[sum_] = keys
    times = refills.times_ahead(now_s)
    stored = [
        total
        for sum_ in sorted(series, key=lock_order)
        for total in held_of_keys(db, limits, sum_, times, series[sum_], judge.catalog)
    ]
    standings = with_slots(db, [total.standing for total in stored], judge.catalog, now_s)
    read = [total._replace(standing=standing) for total, standing in zip(stored, standings, strict=True)]
    standings += _without_total(judge, series, stored)
    scopes = {policy.name: parse_grouping(policy.per).lock_scope for policy in judge.plan.policies}
    keys_by_scope: dict[str, set[str]] = {}
    for name, key in changed:
        keys_by_scope.setdefault(scopes[name], set()).add(key)
    present = {
        lock_key: lock
        for scope, keys in sorted(keys_by_scope.items())
        for lock_key, lock in lock_feed.of_series(db, scope, sorted(keys)).items()
    }
    locks = {
        lock_key: lock for lock_key, lock in present.items() if (lock_key.policy, lock_key.key) in changed
    }
    context = judge.circumstances(db, standings, limits)
    judged = judge_changed(judge.plan, changed, standings, locks, context)
    set_next(db, limits, judge.directory.judged_by(judge.version), read, judge.now.timestamp(), judge.catalog)
    postponed.store(db, judged.waiting, judge.catalog)
    changes = [change for change in judged.changes if not _is_known(change, locks.get(change.at), changed_at)]
    notices = stored_notices.store(db, judged.notices, millis(judge.now))
    return Judged(changes, notices, judge.evidence(standings, changes, context))


def _without_total(
    judge: Judge, series: Mapping[Sum, Collection[str]], stored: Collection[StoredTotal]
) -> list[Standing]:
    """Returns the series that may have nothing, and have no total in their present window."""
    assert judge.limits is not None  # noqa: S101 - as of its caller
    counted = {total.standing.total for total in stored}
    windows = (
        TotalKey(sum_, key, "", judge.limits.series_window(sum_, key, int(judge.now.timestamp())))
        for sum_, keys in series.items()
        for key in sorted(keys)
        if judge.limits.refuses(sum_, key)
    )
    return [Standing(total, 0) for total in windows if total not in counted]


def _is_known(change: Change, present: Lock | None, changed_at: datetime | None) -> bool:
    """Whether a flush has set this lock already, by the limits and windows of today.

    Nothing but the count in its sentence differs then. A lock of the same millisecond may be older.
    """
    if changed_at is None or present is None or not isinstance(change, Set):
        return False
    return present.began > changed_at and present.until == change.lock.until


def refill(
    engine: sa.Engine, random_mark: Callable[[], str], callers: Collection[str] | None = None
) -> JudgedRows:
    """Adds to totals what the buckets have from before their callers' windows changed, and judges them.

    Up to a bound, of all callers or of these: call it again until no row is left. Raises StoreAway,
    SchemaBehind.
    """
    with slow_reading(engine) as db:
        work = _missing(db, callers)
    if work is None:
        return JudgedRows(0)
    with writing(engine) as db:
        plans.block_flushes(db)
        version, missing, unneeded = work
        stored = plans.stored(db)
        if stored is None or stored.version != version:
            return JudgedRows(1)  # another plan is in force: read again
        for condition in unneeded:
            db.execute(sa.delete(refills_table).where(condition))
        plan, numbers = stored.plan, catalog.load(db)
        state, now = directory.newest(db), instant(clock_ms(db))
        limits = directory.read_limits(db, plan, state, {entry.refill.key for entry in missing})
        filling = filled_to(stored.steps, plan_sums(plan).numbers(numbers.sum_number))
        judge = Judge(plan, version, numbers, now, 0.0, filling, state, limits)
        added = list(refills.add(db, numbers, limits, state.judged_by(version), missing))
        changed = {
            (policy.name, entry.key)
            for entry in added
            if entry.sum not in filling
            for policy in plan_sums(plan).policies_by_sum[entry.sum]
        }
        changed_at = directory.written_at(db, max((entry.version for entry in added), default=0))
        judged = judge_callers(db, judge, changed, changed_at)
        return JudgedRows(len(missing) + len(unneeded), judge.publish(db, judged, random_mark()))


def _missing(
    db: sa.Connection, callers: Collection[str] | None
) -> tuple[int, list[refills.Missing], list[sa.ColumnElement[bool]]] | None:
    """Returns the version of the plan, what totals lack, and conditions for rows that nothing needs.

    None while there is nothing to do.
    """
    rows = refills.waiting(db, callers)
    stored = plans.stored(db) if rows else None
    if stored is None:
        return None
    plan = stored.plan
    numbers, now_s = catalog.load(db), clock_ms(db) // 1000
    numbered = plan_sums(plan).numbers(numbers.sum_number)
    positions = filled_to(stored.steps, numbered)
    sums = {number: sum_ for sum_, number in numbered.items()}
    limits = directory.read_limits(db, plan, directory.newest(db), {row.key for row in rows})
    missing: list[refills.Missing] = []
    unneeded: list[sa.ColumnElement[bool]] = []
    minutes = 0
    for row in rows:
        sum_ = sums.get(row.sum)
        if sum_ is None:
            unneeded.append(sa.and_(refills_table.c.key == row.key, refills_table.c.sum == row.sum))
            continue
        if sum_ in positions and len(widths_s(sum_)) > 1:
            continue  # it is filled from buckets of two widths: later
        needed = refills.Refill(sum_, row.key, limits.series_window(sum_, row.key, row.window_s), row.version)
        minutes += refills.minutes(needed, now_s)
        if missing and minutes > refills.MINUTES_MAX:
            break
        missing.append(refills.missing(db, numbers, needed, positions.get(sum_), now_s))
    return stored.version, missing, unneeded


def _steps(
    plan: Plan,
    numbers: catalog.Catalog,
    filling: Collection[Sum],
    names: Collection[str],
    *,
    may_refuse_all: bool,
) -> list[Step]:
    """Returns the steps after which the locks of these policies agree with the totals of open windows.

    Exempt series come first. Locks that last for their time are not judged again.
    """
    judged = [
        policy for policy in plan.policies if policy.name in names and not policy_kind(policy).locks_last
    ]
    by_sum: dict[Sum, list[str]] = {}
    for policy in judged:
        by_sum.setdefault(policy_kind(policy).judged_sum(policy), []).append(policy.name)
    filled = {sum_: of_sum for sum_, of_sum in by_sum.items() if sum_ not in filling}
    steps: list[Step] = [
        JudgeStep(numbers.sum_number(sum_), tuple(of_sum)) for sum_, of_sum in filled.items()
    ]
    cleared = sorted(name for of_sum in filled.values() for name in of_sum)
    steps += refuse_steps(plan, cleared, may_refuse_all=may_refuse_all)
    steps += [ClearStep(tuple(cleared))] if cleared else []
    return [ClearStep(tuple(sorted(names)), exempt=True), *steps] if names else []
