"""The steps that make totals and locks agree with a new plan, in SQL; see `activation_steps`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import bounded_join
from analyzer.judging.activation_steps import (
    ClearStep,
    FillStep,
    JudgeStep,
    RefuseStep,
    Step,
    first_start_s,
    stored_text,
)
from analyzer.judging.caller_limits import is_refused, subject_named
from analyzer.judging.earned_notices import Notice
from analyzer.judging.judge import (
    BY_PLAN,
    Earned,
    Evidence,
    Judged,
    earned_at,
    judge,
    judge_policies,
    lock_keys,
    used_at,
)
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks import lock_feed
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import postponed, stored_notices
from analyzer.judging.sql.directory import NO_DIRECTORY, known_names, newest, read_limits
from analyzer.judging.sql.slots import with_addresses, with_bases, with_slots
from analyzer.judging.sql.sql_judge import Judge
from analyzer.judging.sql.totals import join_used, judged_series
from analyzer.judging.totals import BucketPosition, Standing, TotalKey, is_by_caller, is_judged
from analyzer.kernel.database.clock import instant, millis
from analyzer.kernel.database.engine import insert, without_scans
from analyzer.kernel.database.row_parameters import upsert_columns
from analyzer.kernel.tables.schema import TOTAL_MAX, buckets, plans, totals
from analyzer.plan.catalog import Catalog
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.plan import Plan
from analyzer.plan.sums import NEVER, Sum
from analyzer.plan.windows import ALWAYS, Rolling, window_at
from gatekeeper.model import Change, Clear, Lock, LockKey, Set

STEP_ROWS = 5_000  # read in one step: flushes wait for a fraction of a second
LOCKS_AT_ONCE = 1_000

POSITION = (buckets.c.bucket_s, buckets.c.key, buckets.c.resource)


class StoredPlan(NamedTuple):
    """A plan in force."""

    plan: Plan
    version: int
    at_ms: int  # when it came in force
    steps: tuple[Step, ...] = ()  # that are left


class Activation:
    """The steps of the plan in force, in a transaction that keeps flushes out."""

    def __init__(
        self, db: sa.Connection, stored: StoredPlan, catalog: Catalog, now_ms: int, rows_max: int
    ) -> None:
        plan = stored.plan
        self._db = db
        self._plan = plan
        self._version = stored.version
        self._directory = newest(db)
        self._catalog = catalog
        self._in_force_since = instant(stored.at_ms)
        self._now = instant(now_ms)
        self._now_s = now_ms // 1000
        self._rows_left = rows_max
        self._sums = {catalog.sum_number(sum_): sum_ for sum_ in plan_sums(plan).policies_by_sum}
        self.changes: list[Change] = []
        self.notices: list[Notice] = []  # raised for the first time
        self.rows = 0
        self._used: dict[LockKey, int] = {}
        self._earned: dict[LockKey, Earned] = {}

    def run(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Does what is allowed by the number of rows; returns what is left."""
        without_scans(self._db)
        remaining = list(steps)
        while remaining and self._rows_left > 0:
            step, *following = remaining
            match step:
                case FillStep():
                    unfinished: Step | None = self._fill(step)
                case JudgeStep():
                    unfinished = self._judge(step)
                case ClearStep():
                    unfinished = self._clear(step)
                case RefuseStep():
                    unfinished = self._refuse(step)
            remaining = following if unfinished is None else [unfinished, *following]
        return tuple(remaining)

    @property
    def judged(self) -> Judged:
        """Locks and notices of all steps; the changes must be published."""
        evidence = Evidence(self._version, self._used, self._earned, BY_PLAN)
        return Judged(self.changes, self.notices, evidence)

    def publish(self, mark: str) -> Judged:
        """Publishes them; must be the last statement of its transaction."""
        return self._judge_of_plan.publish(self._db, self.judged, mark)

    @property
    def _judge_of_plan(self) -> Judge:
        return Judge(self._plan, self._version, self._catalog, self._now, directory=self._directory)

    def _take(self) -> int:
        """Returns the number of rows that the step may read."""
        return min(self._rows_left, STEP_ROWS)

    def _count(self, rows: int) -> None:
        self.rows += rows
        self._rows_left -= max(rows, 1)

    def _fill(self, step: FillStep) -> FillStep | None:
        sum_ = self._sums[step.sum]
        meter = self._catalog.meters[sum_.meter]
        condition = sa.and_(
            buckets.c.grouping == self._catalog.groupings[sum_.grouping],
            buckets.c.page == meter.page,
            buckets.c.width_s == step.width_s,
            sa.tuple_(*POSITION) >= sa.tuple_(*map(sa.literal, step.filled_to)),
        )
        rows = sa.select(*POSITION).where(condition).order_by(*POSITION)
        first = self._db.execute(rows.limit(1)).first()
        if first is None:
            return None
        most = self._take()
        bound = self._db.execute(rows.offset(most).limit(1)).first()
        if is_by_caller(sum_):
            return self._fill_windows_of_callers(step, rows, bound)
        window = window_at(sum_.window, first.bucket_s)
        end = (window.until_s, "", "") if bound is None else min(tuple(bound), (window.until_s, "", ""))
        stretch = rows.add_columns(buckets.c[f"value_{meter.place}"].label("value"))
        stretch = stretch.where(buckets.c.bucket_s < window.until_s).limit(most)
        added = self._add_to_totals(sum_, stretch, window.start_s, step.sum)
        self._count(added if bound is None else most)
        is_last = bound is None and self._db.execute(rows.where(_from(end)).limit(1)).first() is None
        return None if is_last else FillStep(step.sum, end, step.width_s)

    def _fill_windows_of_callers(self, step: FillStep, rows: sa.Select[Any], bound: Any) -> FillStep | None:
        """Adds a stretch of buckets, each to the window of its caller; those that are over are left out."""
        sum_ = self._sums[step.sum]
        meter = self._catalog.meters[sum_.meter]
        stretch = rows.add_columns(buckets.c[f"value_{meter.place}"].label("value"))
        if bound is not None:
            stretch = stretch.where(sa.tuple_(*POSITION) < sa.tuple_(*map(sa.literal, bound)))
        counted = self._db.execute(stretch).all()
        limits = read_limits(self._db, self._plan, self._directory, {row.key for row in counted})
        grouping, merge = parse_grouping(sum_.grouping), sum_.joined.merge
        grown: dict[tuple[int, str, str], int] = {}
        for bucket_s, key, resource, value in counted:
            window = limits.series_window(sum_, key, bucket_s)
            if value and window.until_s > self._now_s and is_judged(grouping, key, resource):
                series = window.start_s, key, resource
                grown[series] = merge(grown.get(series, 0), value)
        if grown:
            in_order = sorted(grown)
            keys = [key for _, key, _ in in_order]
            upsert_columns(
                self._db,
                totals,
                {
                    "sum": step.sum,
                    "window_s": [window_s for window_s, _, _ in in_order],
                    "key": keys,
                    "resource": [resource for _, _, resource in in_order],
                    "used": [min(grown[series], TOTAL_MAX) for series in in_order],
                    "next": limits.first_judgements(sum_, keys),
                    "plan": self._directory.judged_by(self._version),
                },
                join_used(sum_.join),
            )
        self._count(len(counted))
        end = None if bound is None else (bound.bucket_s, bound.key, bound.resource)
        return None if end is None else FillStep(step.sum, end, step.width_s)

    def _add_to_totals(self, sum_: Sum, stretch: sa.Select[Any], window_s: int, number: int) -> int:
        """Adds a stretch of buckets, in one window; returns the number of totals that grew."""
        # The limit of the subquery makes PostgreSQL read just this stretch of the index.
        counted = stretch.subquery().c
        conditions = judged_series(parse_grouping(sum_.grouping), counted.key, counted.resource)
        fixed = {"sum": number, "window_s": window_s}
        # Where callers may have other limits, each total is judged when it grows next.
        version = self._version if self._directory == NO_DIRECTORY else 0
        judged = {"next": plan_sums(self._plan).first_judgement(sum_), "plan": version}
        grown = (
            sa.select(
                *(sa.literal(value, totals.c[name].type) for name, value in fixed.items()),
                counted.key,
                counted.resource,
                bounded_join(sum_.join, counted.value),
                *(sa.literal(value, sa.BigInteger) for value in judged.values()),
            )
            .where(counted.value > 0, *conditions)
            .group_by(counted.key, counted.resource)
            .order_by(counted.key, counted.resource)
        )
        added = insert(self._db, totals)
        added = added.from_select([*fixed, "key", "resource", "used", *judged], grown)
        joined = join_used(sum_.join)(self._db.dialect.name, totals, added.excluded)
        return self._db.execute(
            added.on_conflict_do_update(index_elements=totals.primary_key, set_=joined)
        ).rowcount

    def _judge(self, step: JudgeStep) -> JudgeStep | None:
        sum_ = self._sums[step.sum]
        most = self._take()
        rows = self._db.execute(_select_totals(step, sum_, self._now_s).limit(most)).all()
        if rows and isinstance(sum_.window, Rolling):
            self._judge_growth(step, (rows[-1].key, rows[-1].resource))
        limits = read_limits(self._db, self._plan, self._directory, {row.key for row in rows})
        standings = [
            Standing(TotalKey(sum_, key, resource, window), used)
            for window_s, key, resource, used in rows
            if used >= next(iter(limits.series_thresholds(sum_, key)), NEVER)
            # Others are of windows that are over, or that the caller does not have any more.
            if (window := limits.series_window(sum_, key, self._now_s)).start_s == window_s
        ]
        self._set_earned(step.policies, standings)
        self._count(len(rows))
        if len(rows) < most:
            return None
        last = rows[-1]
        return JudgeStep(step.sum, step.policies, (last.key, last.resource), last.window_s)

    def _set_earned(self, policies: Collection[str], standings: Sequence[Standing]) -> None:
        """Sets the locks that these totals have earned, without those that a flush has set since."""
        earned = self._earned_changes(policies, standings)
        present = lock_feed.locked(self._db, [change.at for change in earned])
        self.changes += [
            change
            for change in earned
            if change.at not in present or not self._is_by_this_plan(present[change.at])
        ]

    def _refuse(self, step: RefuseStep) -> RefuseStep | None:
        most = self._take()
        names = known_names(self._db, step.behind, most)
        limits = read_limits(
            self._db, self._plan, self._directory, {subject_named(name).name for name in names}
        )
        policies = [policy for name in step.policies if (policy := self._plan.policy(name)) is not None]
        standings = []
        for policy in policies:
            sum_, scope = policy_kind(policy).judged_sum(policy), parse_grouping(policy.per).scope
            subjects = [subject for name in names if (subject := subject_named(name)).kind == scope]
            standings += [
                Standing(TotalKey(sum_, key, "", limits.series_window(sum_, key, self._now_s)), 0)
                for _, key in subjects
                if is_refused(limits.policy_for(policy, key))
            ]
        if standings:
            self._set_earned(step.policies, standings)
        self._count(len(names))
        return None if len(names) < most else RefuseStep(step.policies, names[-1])

    def _judge_growth(self, step: JudgeStep, last: tuple[str, str]) -> None:
        """Has the next growth of rolling totals judged, up to `last`.

        Their `next` is by the slots that a clock has seen which may have been ahead.
        """
        position = sa.tuple_(totals.c.key, totals.c.resource)
        conditions = [position <= sa.tuple_(*map(sa.literal, last))]
        if step.behind is not None:
            conditions.append(position > sa.tuple_(*map(sa.literal, step.behind)))
        judged_by = self._directory.judged_by(self._version)
        of_sum = totals.c.sum == step.sum, totals.c.window_s == ALWAYS.start_s, totals.c.plan == judged_by
        self._db.execute(sa.update(totals).where(*of_sum, *conditions).values(plan=0))

    def _earned_changes(self, policies: Collection[str], standings: Sequence[Standing]) -> list[Set]:
        """Returns the locks of these policies that the totals have earned; stores notices and what waits."""
        judges = self._judge_of_plan
        standings = with_slots(self._db, standings, self._catalog, self._now_s)
        standings = with_addresses(self._db, self._plan, standings, self._catalog, self._now_s)
        standings = with_bases(self._db, self._plan, standings, self._catalog, self._now_s)
        context = judges.circumstances(self._db, standings, judges.series_limits(self._db, standings))
        judged = judge(self._plan, standings, self._present(standings), context)
        postponed.store(self._db, judged.waiting, self._catalog)
        self.notices += stored_notices.store(self._db, judged.notices, millis(self._now))
        earned = judge_policies(self._plan, policies, standings, context)
        self._used |= used_at(self._plan, standings, earned)
        self._earned |= earned_at(self._plan, standings, earned, context)
        return earned

    def _present(self, standings: Sequence[Standing]) -> Mapping[LockKey, Lock]:
        return lock_feed.locked(self._db, lock_keys(self._plan, standings))

    def _is_by_this_plan(self, lock: Lock) -> bool:
        """Whether a flush has set the lock since the plan is in force.

        A lock of the same millisecond may still be the old plan's.
        """
        return lock.began > self._in_force_since

    def _clear(self, step: ClearStep) -> ClearStep | None:
        present = lock_feed.of_policies(self._db, step.policies, step.behind, LOCKS_AT_ONCE)
        self._count(len(present))
        if step.exempt:
            self._clear_exempt(present)
        else:
            self._clear_unearned(
                {key: lock for key, lock in present.items() if not self._is_compared(key.policy)}, step
            )
        if len(present) < LOCKS_AT_ONCE:
            return None
        return step.continued(max(present))

    def _clear_exempt(self, present: Mapping[LockKey, Lock]) -> None:
        limits = read_limits(self._db, self._plan, self._directory, {key.key for key in present})
        policies = {policy.name: policy for policy in self._plan.policies}
        self.changes += [
            Clear(key)
            for key in present
            if limits.policy_for(policies[key.policy], key.key, key.resource) is None
        ]

    def _clear_unearned(self, present: Mapping[LockKey, Lock], step: ClearStep) -> None:
        standings = self._judge_of_plan.lock_standings(self._db, dict.fromkeys(present, self._now_s))
        changes = self._earned_changes(step.policies, standings)
        earned = {change.at for change in changes}
        written = {change.at for change in self.changes}
        # A lock that this plan has set is earned. No time is compared: the clock may have been set back.
        cleared: list[Change] = [Clear(key) for key in present if key not in earned and key not in written]
        self._used |= used_at(self._plan, standings, cleared)
        self.changes += cleared
        # A total may have reached its limit after the judge step: the flush found a lock of the old plan and
        # left it, with the old action.
        self.changes += [
            change
            for change in changes
            if change.at in present
            and change.at not in written
            and not self._is_by_this_plan(present[change.at])
        ]

    def _is_compared(self, name: str) -> bool:
        """Whether the warden alone knows which locks a policy earns: it ends them, or writes them again."""
        policy = self._plan.policy(name)
        return policy is not None and policy_kind(policy).whole_sum is not None


def _select_totals(step: JudgeStep, sum_: Sum, now_s: int) -> sa.Select[Any]:
    """Returns a query of the totals of open windows that the step has not judged yet."""
    columns = totals.c
    statement = sa.select(columns.window_s, columns.key, columns.resource, columns.used)
    statement = statement.where(columns.sum == step.sum)
    if is_by_caller(sum_):
        statement = statement.where(columns.window_s.between(first_start_s(sum_, now_s), now_s))
    else:
        statement = statement.where(columns.window_s == window_at(sum_.window, now_s).start_s)
    if step.behind is not None:
        position: tuple[Any, ...] = (columns.key, columns.resource)
        behind: tuple[Any, ...] = step.behind
        if is_by_caller(sum_):
            position, behind = (columns.window_s, *position), (step.behind_s, *behind)
        statement = statement.where(sa.tuple_(*position) > sa.tuple_(*map(sa.literal, behind)))
    return statement.order_by(columns.window_s, columns.key, columns.resource)


def _from(position: BucketPosition) -> sa.ColumnElement[bool]:
    return sa.tuple_(*POSITION) >= sa.tuple_(*map(sa.literal, position))


def judge_later_windows_again(db: sa.Connection, numbers: Mapping[Sum, int], now_s: int) -> None:
    """Has the next growth of totals judged whose windows have not begun yet.

    The growth of rolling sums is judged again by the steps that judge them.
    """
    for sum_, number in numbers.items():
        if isinstance(sum_.window, Rolling):
            continue
        later = sa.and_(totals.c.sum == number, totals.c.window_s > now_s)
        db.execute(sa.update(totals).where(later).values(plan=0))


def store_steps(db: sa.Connection, version: int, steps: Sequence[Step]) -> None:
    db.execute(sa.update(plans).where(plans.c.version == version).values(pending=stored_text(steps)))
