"""The locks of the database whose time is not over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.locks.lock_feed import NOT_ENFORCED, are_in_shadow, lock_from_row
from analyzer.kernel.database.engine import ROWS_AT_ONCE, NowMs, reading, slow_reading
from analyzer.kernel.tables.schema import feed_versions, lock_changes, locks
from analyzer.plan.policies import SHADOW
from gatekeeper.model import Lock, LockKey


def in_force() -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for locks that gates enforce at this time."""
    return [locks.c.until_ms > NowMs(), locks.c.action.not_in(NOT_ENFORCED)]


class LockSearch(NamedTuple):
    """Which locks are wanted; "" for all.

    Attributes:
        key: The whole key.
        text: A part of the key, in small or capital letters.
        policy: A policy, with its periods and its candidate.
        resource: A part of the resource.
        in_shadow: Those of policies in shadow, instead of those that gates enforce.
    """

    key: str | None = None
    text: str = ""
    policy: str | None = None
    resource: str = ""
    in_shadow: bool = False

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Returns the conditions for rows of `locks`."""
        columns = locks.c
        found = [columns.until_ms > NowMs(), columns.action == SHADOW] if self.in_shadow else in_force()
        found += [columns.key == self.key] if self.key is not None else []
        found += [contains(columns.key, self.text)] if self.text else []
        found += [contains(columns.resource, self.resource)] if self.resource else []
        if self.policy is not None:
            is_of_family = columns.policy.startswith(f"{self.policy}/", autoescape=True)
            found.append(sa.or_(columns.policy == self.policy, is_of_family))
        return found


LockPlace = tuple[int, str, str, str, str]  # end, negative; policy, scope, key and resource


def contains(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    """Returns the condition that a column has a text in it, in small or capital letters."""
    return sa.func.lower(column).contains(text.lower(), autoescape=True)


def locks_in_force(
    engine: sa.Engine,
    key: str | None = None,
    policy: str | None = None,
    *,
    in_shadow: bool = False,
    search: LockSearch | None = None,
    behind: LockPlace | None = None,
) -> Iterator[Lock]:
    """Yields the locks whose time is not over by the database's clock, the latest end first.

    Those that gates enforce, or with `in_shadow` those of policies in this mode; of a policy also those of
    its periods and of its candidate. With `search` those that it wants, with `behind` those behind a place.
    In constant memory. Raises StoreAway.
    """
    conditions = (search or LockSearch(key, policy=policy, in_shadow=in_shadow)).conditions()
    if behind is not None:
        conditions.append(_is_behind(behind))
    order = (locks.c.until_ms.desc(), locks.c.policy, locks.c.scope, locks.c.key, locks.c.resource)
    with slow_reading(engine) as db:
        statement = sa.select(locks).where(*conditions).order_by(*order)
        with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
            yield from map(lock_from_row, rows)


def _is_behind(place: LockPlace) -> sa.ColumnElement[bool]:
    """Returns the condition for locks behind a place, of which the index serves the end."""
    until_ms, names = -place[0], (locks.c.policy, locks.c.scope, locks.c.key, locks.c.resource)
    follows = sa.tuple_(*names) > sa.tuple_(*map(sa.literal, place[1:]))
    return sa.and_(locks.c.until_ms <= until_ms, sa.or_(locks.c.until_ms < until_ms, follows))


def locked_keys(engine: sa.Engine, most: int) -> dict[str, str]:
    """Returns the policy of each key with a lock that gates enforce, of `most` locks: the last one's.

    Raises StoreAway.
    """
    enforced = sa.select(locks.c.key, locks.c.policy).where(*LockSearch().conditions())
    with slow_reading(engine) as db:
        rows = db.execute(enforced.order_by(locks.c.until_ms.desc()).limit(most)).all()
    return {row.key: row.policy for row in reversed(rows)}


def count_locks(engine: sa.Engine, search: LockSearch) -> int:
    """Returns how many locks there are. Raises StoreAway."""
    with slow_reading(engine) as db:
        return int(db.execute(sa.select(sa.func.count()).where(*search.conditions())).scalar_one())


def count_by_policy(engine: sa.Engine) -> dict[str, tuple[int, int]]:
    """Returns how many locks each policy has, enforced ones and those in shadow. Raises StoreAway."""
    columns = locks.c
    shadow = sa.func.sum(sa.case((columns.action == SHADOW, 1), else_=0))
    enforced = sa.func.sum(sa.case((columns.action.not_in(NOT_ENFORCED), 1), else_=0))
    statement = sa.select(columns.policy, enforced, shadow).where(columns.until_ms > NowMs())
    with slow_reading(engine) as db:
        rows = db.execute(statement.group_by(columns.policy)).all()
    return {policy: (int(held), int(in_shadow)) for policy, held, in_shadow in rows}


CHANGES_READ = 500  # of the feed, for the newest events


class LockEvent(NamedTuple):
    """A lock that was set or cleared, as gates got it."""

    at_ms: int
    is_set: bool
    lock: LockKey
    detail: str
    until_ms: int


def newest_changes(engine: sa.Engine, most: int) -> list[LockEvent]:
    """Returns the newest begins and ends of locks, the latest first, of the newest `CHANGES_READ` changes.

    A lock that was only prolonged has not begun again. Raises StoreAway.
    """
    changes = lock_changes.c
    names = (changes.scope, changes.key, changes.resource, changes.policy)
    statement = (
        sa.select(feed_versions.c.at_ms, changes.op, changes.detail, changes.until_ms, *names)
        .join(feed_versions, feed_versions.c.version == changes.version)
        .order_by(changes.version.desc(), changes.number)
        .limit(CHANGES_READ)
    )
    with reading(engine) as db:
        changes_read = [
            LockEvent(at_ms, op == "set", LockKey(*name), detail, until_ms)
            for at_ms, op, detail, until_ms, *name in db.execute(statement)
        ]
    is_set: dict[LockKey, bool] = {}
    begun_or_ended = []
    for event in reversed(changes_read):
        if is_set.get(event.lock) != event.is_set:
            begun_or_ended.append(event)
        is_set[event.lock] = event.is_set
    return begun_or_ended[::-1][:most]


def shadow_locks(engine: sa.Engine, policy: str) -> int:
    """Returns how many locks in shadow a policy has at this time. Raises StoreAway."""
    with slow_reading(engine) as db:
        of_policy = sa.select(sa.func.count()).where(*are_in_shadow(policy))
        return int(db.execute(of_policy).scalar_one())
