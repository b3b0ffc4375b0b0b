"""Changes of the directory: written, and judged in the same transaction.

Traffic is not needed: a caller that is above its new limit is locked, one that is below is freed. Flushes
wait for it, because a total that a flush is inserting at this moment has a `next` by the limit of before, and
no other transaction can see or correct it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import sqlalchemy as sa

from analyzer.core.counting.groupings import grouping_of
from analyzer.core.counting.meters import MINUTE_S
from analyzer.core.judging.activation_steps import ClearStep, JudgeStep, Step, filled_to, steps_of
from analyzer.core.judging.caller_limits import Limits, Subject
from analyzer.core.judging.judge import judge_changed
from analyzer.core.judging.kinds import kind_of
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.totals import Sum, lock_order
from analyzer.core.judging.windows import window_at
from analyzer.store.database.clock import clock_ms, instant, millis
from analyzer.store.database.schema import plans as plans_table
from analyzer.store.transaction import catalog, lock_feed, plans
from analyzer.store.transaction.judgement import directory, postponed, stored_notices
from analyzer.store.transaction.judgement.activation import Activation, StoredPlan, store_steps
from analyzer.store.transaction.judgement.slots import with_slots
from analyzer.store.transaction.judgement.sql_judge import Judge
from analyzer.store.transaction.judgement.stored_values import AHEAD_S
from analyzer.store.transaction.judgement.totals import held_of_keys, set_next
from gatekeeper.model import Change

CALLERS_MAX = 1_000  # changed in one transaction: flushes wait for a fraction of a second
ROWS_MAX = 20_000  # totals that a change for a tenant or a range reads itself; the warden reads the others


def change(
    db: sa.Connection,
    subjects: Collection[Subject],
    policies: Collection[str],
    write: Callable[[int], None],
    random_mark: Callable[[], str],
) -> Sequence[Change]:
    """Calls `write` with the next version of the directory, and judges `subjects`, at most CALLERS_MAX.

    `policies` are those that the change is about; "" stands for all. Returns the locks that were set and
    cleared. Raises SchemaBehind.
    """
    plans.block_flushes(db)
    keys = {subject.name for subject in subjects if subject.kind == "caller"}
    is_wide = len(keys) < len(subjects)
    row = db.execute(sa.select(plans_table).where(plans_table.c.active == 1)).first()
    plan = plans.active(db)[1] if row is not None else Plan()
    before = directory.limits_of(db, plan, directory.newest(db), keys)
    version = directory.add_version(db, random_mark(), is_wide=is_wide)
    write(version.version)
    if row is None:
        return []
    numbers = catalog.load(db)
    steps = steps_of(row.pending)
    filling = filled_to(steps, numbers.sum_numbers(plan))
    now = instant(clock_ms(db))
    after = directory.limits_of(db, plan, version, keys)
    judge = Judge(plan, row.version, numbers, now, 0.0, filling, version, after)
    if is_wide:
        named = [one.name for one in plan.policies if one.name in policies or "" in policies]
        activation = Activation(db, StoredPlan(plan, row.version, row.at_ms), numbers, clock_ms(db), ROWS_MAX)
        store_steps(db, row.version, activation.run([*steps, *_steps(plan, numbers, filling, named)]))
        changes = activation.changes
    else:
        changes = _judge_callers(db, judge, before, keys)
    return lock_feed.publish(db, changes, random_mark()) if changes else []


def _judge_callers(db: sa.Connection, judge: Judge, before: Limits, callers: Collection[str]) -> list[Change]:
    """Judges the totals of callers by policies whose limits have changed for them."""
    assert judge.limits is not None  # noqa: S101 - set by `change`
    after, now_s = judge.limits, int(judge.now.timestamp())
    changed = {
        (policy.name, caller)
        for policy in judge.plan.policies
        if grouping_of(policy.per).is_of_callers and kind_of(policy).sum_of(policy) not in judge.filling
        for caller in callers
        if before.policy_for(policy, caller) != after.policy_for(policy, caller)
    }
    series: dict[Sum, set[str]] = {}
    for sum_, policies in judge.plan.policies_of.items():
        keys = {caller for policy in policies for caller in callers if (policy.name, caller) in changed}
        if keys:
            series[sum_] = keys
    stored = [
        one
        for sum_ in sorted(series, key=lock_order)
        for one in held_of_keys(db, sum_, _windows_s(sum_, now_s), series[sum_], judge.catalog)
    ]
    standings = with_slots(db, [one.standing for one in stored], judge.catalog, now_s)
    read = [one._replace(standing=standing) for one, standing in zip(stored, standings, strict=True)]
    present = lock_feed.of_series(db, "caller", sorted({key for _, key in changed}))
    locks = {at: lock for at, lock in present.items() if (at.policy, at.key) in changed}
    judged = judge_changed(judge.plan, changed, standings, locks, judge.circumstances(db, standings, after))
    set_next(db, after, judge.directory.judged_by(judge.version), read, judge.now.timestamp(), judge.catalog)
    postponed.store(db, judged.waiting, judge.catalog)
    stored_notices.store(db, judged.notices, millis(judge.now))
    return list(judged.changes)


def _windows_s(sum_: Sum, now_s: int) -> list[int]:
    """Returns the starts of the windows that hold the present, or what a clock that is ahead has logged."""
    return sorted({window_at(sum_.window, at_s).start_s for at_s in range(now_s, now_s + AHEAD_S, MINUTE_S)})


def _steps(
    plan: Plan, numbers: catalog.Catalog, filling: Collection[Sum], names: Collection[str]
) -> list[Step]:
    """Returns the steps after which the locks of these policies agree with the totals of open windows.

    Exempt series come first. Locks that last for their time are not judged again.
    """
    judged = [policy for policy in plan.policies if policy.name in names and not kind_of(policy).locks_last]
    by_sum: dict[Sum, list[str]] = {}
    for policy in judged:
        by_sum.setdefault(kind_of(policy).sum_of(policy), []).append(policy.name)
    filled = {sum_: of_sum for sum_, of_sum in by_sum.items() if sum_ not in filling}
    steps: list[Step] = [
        JudgeStep(numbers.sum_number(sum_), tuple(of_sum)) for sum_, of_sum in filled.items()
    ]
    cleared = sorted(name for of_sum in filled.values() for name in of_sum)
    steps += [ClearStep(tuple(cleared))] if cleared else []
    return [ClearStep(tuple(sorted(names)), exempt=True), *steps] if names else []
