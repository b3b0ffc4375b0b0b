"""The outcomes of policies: how many locks they set, enforced or in shadow, and what came meanwhile.

Read from the history of locks and, of locks that last, from the totals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import bounded_sum
from analyzer.judging.caller_limits import Limits
from analyzer.judging.judge import used_at
from analyzer.judging.kinds import policy_kind
from analyzer.judging.sql import plans
from analyzer.judging.sql.directory import newest, read_limits
from analyzer.judging.sql.sql_judge import Judge
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import ROWS_AT_ONCE, reading, slow_reading
from analyzer.kernel.tables.schema import UNKNOWN, lock_history
from analyzer.plan import catalog
from analyzer.plan.plan import Plan
from analyzer.plan.windows import Rolling
from gatekeeper.model import Clear, LockKey

REFUSES = "deny"  # the action that refuses all requests
LOCK = ("scope", "key", "resource", "policy", "began_ms")  # what rows of one lock have in common
CHUNK = 10_000  # locks whose totals are read at once
HISTORY = tuple(
    lock_history.c[name]
    for name in (
        "scope", "key", "resource", "policy", "began_ms", "until_ms",
        "ended_ms", "action", "plan", "detail", "used_began", "used_ended",
    )
)  # fmt: skip


LockedName = tuple[str, str]  # scope and key of locks


class LockOutcome(NamedTuple):
    """One lock, from its begin to its end, or until what was counted gave it another end.

    Attributes:
        at: Its key.
        action: Its action; "shadow" for one that no gate got.
        began_ms: Its begin.
        ended_ms: Its end; None while it is in force.
        plan: The version of the plan that has earned it; 0: set by hand.
        detail: The sentence of its refusals.
        used: What its series used while it lasted, in the unit of the policy's meter; None if not known.
        overshoot: What its series was admitted beyond the limit; None if not known, and of a lock that does
            not refuse all requests, or that no policy of the plan in force has earned.
        admitted_before: What of it was counted before the lock began, as far as it is known.
    """

    at: LockKey
    action: str
    began_ms: int
    ended_ms: int | None
    plan: int
    detail: str
    used: int | None
    overshoot: int | None
    admitted_before: int = 0


class PolicyOutcome(NamedTuple):
    """The locks of one policy with one action."""

    policy: str
    action: str
    locks: int
    series: int
    in_force: int
    used: int  # while they lasted, as far as it is known


def lock_outcomes(
    engine: sa.Engine,
    since_ms: int,
    policies: Collection[str] | None = None,
    names: Collection[LockedName] | None = None,
    in_force_ms: int | None = None,
) -> Iterator[LockOutcome]:
    """Yields the locks that were in force at any time since then, by their key and begin.

    In bounded memory. Of all policies unless some are named, of all series unless some are, and with a time
    `in_force_ms` of locks alone that last beyond it. Raises StoreAway, SchemaBehind.
    """
    columns = lock_history.c
    statement = sa.select(*HISTORY).where(*_since(since_ms, policies))
    if in_force_ms is not None:
        last = lock_history.alias("last")
        is_same = [last.c[name] == columns[name] for name in LOCK]
        lasts = sa.exists().where(*is_same, last.c.ended_ms.is_(None), last.c.until_ms > in_force_ms)
        statement = statement.where(lasts)
    if names is not None:
        statement = statement.where(sa.tuple_(columns.scope, columns.key).in_(sorted(names)))
    with (
        slow_reading(engine) as db,
        db.execute(statement.order_by(*HISTORY), execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        lasting = _Lasting(engine)
        # A lock that was set again with another end has a row for each.
        locks = (_joined(list(of_lock)) for _, of_lock in groupby(rows, lambda row: tuple(row[:5])))
        while chunk := list(islice(locks, CHUNK)):
            yield from lasting.completed(chunk)


def _since(since_ms: int, policies: Collection[str] | None) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for rows of locks that were in force at any time since then."""
    columns = lock_history.c
    conditions = [
        columns.until_ms >= since_ms,
        columns.policy != "",
        sa.func.coalesce(columns.ended_ms, columns.until_ms) >= since_ms,
    ]
    return conditions if policies is None else [*conditions, columns.policy.in_(sorted(policies))]


def outcomes_by_policy(
    engine: sa.Engine, since_ms: int, policies: Collection[str] | None = None
) -> list[PolicyOutcome]:
    """Returns what each policy has done with each action since then, by name.

    The database adds up locks that have ended; only those in force are read. Raises StoreAway, SchemaBehind.
    """
    with reading(engine) as db:
        now_ms = clock_ms(db)
        last = _last_rows(since_ms, policies)
        by_policy = [last.c.policy, last.c.action]
        series = sa.select(*by_policy, last.c.key, last.c.resource).distinct().subquery()
        counted = sa.select(series.c.policy, series.c.action, sa.func.count()).group_by(
            series.c.policy, series.c.action
        )
        number = {(policy, action): count for policy, action, count in db.execute(counted)}
        is_known = sa.and_(last.c.first_used != UNKNOWN, last.c.used_ended != UNKNOWN)
        is_more = sa.and_(is_known, last.c.used_ended > last.c.first_used)
        grown = sa.case((is_more, last.c.used_ended - last.c.first_used), else_=0)
        has_ended = sa.or_(last.c.ended_ms.is_not(None), last.c.until_ms <= now_ms)
        ended = sa.select(*by_policy, sa.func.count(), bounded_sum(grown)).where(has_ended)
        sums = db.execute(ended.group_by(*by_policy)).all()
    outcomes = {
        (row[0], row[1]): PolicyOutcome(row[0], row[1], row[2], 0, 0, int(row[3] or 0)) for row in sums
    }
    lasting = lock_outcomes(engine, since_ms, policies, in_force_ms=now_ms)
    lasting = (outcome for outcome in lasting if outcome.ended_ms is None or outcome.ended_ms > now_ms)
    for of_locks in policy_outcomes(lasting):
        key = of_locks.policy, of_locks.action
        previous = outcomes.get(key, of_locks._replace(locks=0, used=0))
        outcomes[key] = previous._replace(
            locks=previous.locks + of_locks.locks,
            in_force=of_locks.in_force,
            used=previous.used + of_locks.used,
        )
    return [outcomes[key]._replace(series=number.get(key, 0)) for key in sorted(outcomes)]


def _last_rows(since_ms: int, policies: Collection[str] | None) -> sa.Subquery:
    """Returns the last row of each lock, with what its series had used when it began."""
    columns = lock_history.c
    lock = [columns[name] for name in LOCK]
    known_first = sa.case((columns.used_began == UNKNOWN, 1), else_=0)
    place = sa.func.row_number().over(partition_by=lock, order_by=columns.until_ms.desc())
    first_used = sa.func.first_value(columns.used_began).over(
        partition_by=lock, order_by=[known_first, columns.until_ms]
    )
    rows = sa.select(*HISTORY, place.label("place"), first_used.label("first_used"))
    numbered = rows.where(*_since(since_ms, policies)).subquery()
    return sa.select(numbered).where(numbered.c.place == 1).subquery()


def policy_outcomes(outcomes: Iterable[LockOutcome]) -> list[PolicyOutcome]:
    """Returns what each policy has done with each action, by name."""
    by_policy: dict[tuple[str, str], PolicyOutcome] = {}
    series: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for outcome in outcomes:
        key = outcome.at.policy, outcome.action
        series.setdefault(key, set()).add((outcome.at.key, outcome.at.resource))
        previous = by_policy.get(key, PolicyOutcome(*key, 0, 0, 0, 0))
        by_policy[key] = previous._replace(
            locks=previous.locks + 1,
            in_force=previous.in_force + (outcome.ended_ms is None),
            used=previous.used + (outcome.used or 0),
        )
    return [by_policy[key]._replace(series=len(series[key])) for key in sorted(by_policy)]


class _Stored(NamedTuple):
    """A lock by the history."""

    at: LockKey
    began_ms: int
    used_began: int
    last: sa.Row[Any]


def _joined(rows: Sequence[sa.Row[Any]]) -> _Stored:
    """Returns one lock by its rows, in the order of their ends."""
    first, last = rows[0], rows[-1]
    key = LockKey(first.scope, first.key, first.resource, first.policy)
    begins = (row.used_began for row in rows if row.used_began != UNKNOWN)
    return _Stored(key, first.began_ms, next(begins, UNKNOWN), last)


class _Lasting:
    """The totals of locks that are in force."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        with reading(engine) as db:
            self._now_ms = clock_ms(db)
            version, plan = plans.active(db) if plans.exists(db) else (0, Plan())
            numbers, self._directory = catalog.load(db), newest(db)
            now = instant(self._now_ms)
            self._judge = Judge(plan, version, numbers, now, directory=self._directory)

    def completed(self, chunk: Sequence[_Stored]) -> Iterator[LockOutcome]:
        """Yields the outcomes of locks."""
        ends_ms = [self._ended_ms(stored.last) for stored in chunk]
        began_s = {
            stored.at: stored.began_ms // 1000
            for stored, end in zip(chunk, ends_ms, strict=True)
            if end is None
        }
        with reading(self._engine) as db:
            standings = self._judge.lock_standings(db, began_s)
            limits = read_limits(db, self._judge.plan, self._directory, {stored.at.key for stored in chunk})
        changes = [Clear(key) for key in began_s]
        used_now = used_at(self._judge.plan, standings, changes)
        for stored, ended_ms in zip(chunk, ends_ms, strict=True):
            last = stored.last
            used_ended = last.used_ended if ended_ms is not None else used_now.get(stored.at, UNKNOWN)
            is_known = UNKNOWN not in (stored.used_began, used_ended)
            used = max(0, used_ended - stored.used_began) if is_known else None
            overshoot = (
                None if used is None or last.action != REFUSES else self._overshoot(stored, used, limits)
            )
            yield LockOutcome(
                stored.at, last.action, stored.began_ms, ended_ms, last.plan, last.detail, used, overshoot,
                max(0, (overshoot or 0) - (used or 0)),
            )  # fmt: skip

    def _overshoot(self, stored: _Stored, used: int, limits: Limits) -> int | None:
        """Returns what the series was admitted beyond its limit, of which `used` while the lock lasted."""
        policy = self._judge.plan.policy(stored.at.policy)
        if policy is None or stored.last.plan != self._judge.version:
            return None
        if isinstance(policy_kind(policy).judged_sum(policy).window, Rolling):
            return used  # the total of a rolling sum says nothing about its window at the begin
        own = limits.policy_for(policy, stored.at.key, stored.at.resource)
        return None if own is None else used + max(0, stored.used_began - own.limit)

    def _ended_ms(self, last: sa.Row[Any]) -> int | None:
        if last.ended_ms is not None:
            return min(int(last.ended_ms), int(last.until_ms))
        return int(last.until_ms) if last.until_ms <= self._now_ms else None
