"""The locks and their feed: versioned changes, each version with a random mark.

`publish` and `publish_longer` are the only writers of both. Locks with the action "notify" or "shadow" are
rows like any other, which begin, last and end, but the feed has no changes of them: no gate learns of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging import alert_events
from analyzer.judging.judge import BY_HAND, Evidence, Judged
from analyzer.judging.locks import lock_history, notify
from analyzer.kernel import outbox
from analyzer.kernel.database.clock import instant, millis
from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.database.row_parameters import in_parts, insert_given, is_among, rows_given
from analyzer.kernel.tables.schema import feed, feed_versions, lock_changes, locks
from analyzer.plan.policies import SHADOW
from gatekeeper.model import Change, Clear, Cursor, Lock, LockKey, Rate, Set

LAPSED_MAX = 10_000  # locks that end in one transaction
MANUAL = ":manual"  # the policy of locks that are set by hand; configuration allows no such name
NOT_ENFORCED = ("notify", SHADOW)  # actions

KEY = (locks.c.scope, locks.c.key, locks.c.resource, locks.c.policy)
LOCK = tuple(locks.c)
CHANGE = tuple(column for column in lock_changes.c if column.name != "version")
# The columns of a change that clears a lock, beside the lock's key.
CLEARED = {column.name: "" if isinstance(column.type, sa.Text) else 0 for column in LOCK} | {"op": "clear"}


class Published(NamedTuple):
    """The changes that the feed has, in which version, and those of locks in shadow, which it has not."""

    changes: list[Change]
    in_shadow: list[Change]
    at: Cursor | None  # None: it has none


def new_mark() -> str:
    """Returns a random mark for the next version."""
    return secrets.token_hex(4)


def locked(db: sa.Connection, keys: Collection[LockKey]) -> dict[LockKey, Lock]:
    """Returns the locks at `keys`, and blocks other writers of their rows until commit."""
    return _by_key(_execute(db, _locked(db.dialect.name), KEY, sorted(keys)))


def of_policies(
    db: sa.Connection, policies: Collection[str], behind: tuple[str, str, str, str] | None, most: int
) -> dict[LockKey, Lock]:
    """Returns locks of these policies in the order of their keys, and blocks other writers of their rows.

    At most `most`, behind the key `behind`.
    """
    statement = sa.select(locks).where(locks.c.policy.in_(policies)).order_by(*KEY).limit(most)
    if behind is not None:
        statement = statement.where(sa.tuple_(*KEY) > sa.tuple_(*map(sa.literal, behind)))
    return _by_key(db.execute(statement.with_for_update()))


def enforced_locks(db: sa.Connection, policy: str, most: int) -> list[Lock]:
    """Returns locks of a policy that gates have got, at most `most`, and blocks other writers of them."""
    of_policy = locks.c.policy == policy, locks.c.action.not_in(NOT_ENFORCED)
    statement = sa.select(locks).where(*of_policy).order_by(*KEY).limit(most)
    return list(_by_key(db.execute(statement.with_for_update())).values())


def locks_in_shadow(db: sa.Connection, policy: str, most: int) -> list[Lock]:
    """Returns locks in shadow of a policy that have not ended, at most `most`, and blocks other writers."""
    statement = sa.select(locks).where(*are_in_shadow(policy)).order_by(*KEY).limit(most)
    return list(_by_key(db.execute(statement.with_for_update())).values())


def are_in_shadow(policy: str | None = None) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for locks in shadow that have not ended, of a policy or of all."""
    of_policy = [] if policy is None else [locks.c.policy == policy]
    return [*of_policy, locks.c.action == SHADOW, locks.c.until_ms > NowMs()]


def of_series(db: sa.Connection, scope: str, keys: Sequence[str]) -> dict[LockKey, Lock]:
    """Returns the locks of these keys with any policy, and blocks other writers of their rows."""
    statement = sa.select(locks).where(locks.c.scope == scope, is_among(db.dialect.name, locks.c.key, keys))
    return _by_key(db.execute(statement.order_by(*KEY).with_for_update()))


def count_locks(db: sa.Connection, scope: str, key: str) -> int:
    """Returns how many locks a caller or another series has, and locks no row."""
    of_key = sa.and_(locks.c.scope == scope, locks.c.key == key)
    return int(db.scalars(sa.select(sa.func.count()).select_from(locks).where(of_key)).one())


def due(db: sa.Connection, now_ms: int) -> list[Lock]:
    """Returns the locks whose time is over, the oldest first, up to a bound, and blocks other writers of
    them.

    Rows that a flush holds at the moment are left for the next call.
    """
    # A clock function inside the statement would be evaluated per row, and no index could be used.
    statement = sa.select(locks).where(locks.c.until_ms <= now_ms)
    statement = statement.order_by(locks.c.until_ms, *KEY).limit(LAPSED_MAX)
    return list(_by_key(db.execute(statement.with_for_update(skip_locked=True))).values())


def ending(db: sa.Connection, until_ms: int) -> list[Lock]:
    """Returns the locks that end before this time, the first ones first, up to a bound."""
    statement = sa.select(locks).where(locks.c.until_ms <= until_ms)
    rows = db.execute(statement.order_by(locks.c.until_ms, *KEY).limit(LAPSED_MAX))
    return list(_by_key(rows).values())


def is_enforced(lock: Lock) -> bool:
    """Whether gates get the lock."""
    return lock.action not in NOT_ENFORCED


def enforced_by(db: sa.Connection, policies: Collection[str]) -> int:
    """Returns how many locks of these policies gates enforce at this time."""
    number = sa.select(sa.func.count()).select_from(locks)
    is_of = locks.c.policy.in_(sorted(policies)), locks.c.action.not_in(NOT_ENFORCED)
    return int(db.execute(number.where(locks.c.until_ms > NowMs(), *is_of)).scalar_one())


def publish(
    db: sa.Connection, changes: Sequence[Change], mark: str, evidence: Evidence = BY_HAND
) -> list[Change]:
    """Applies `changes` (each key once) to the locks; returns those that the feed has, in a new version.

    `evidence` goes into the history. Must be the last statement of its transaction.
    """
    return _publish(db, _upsert(db.dialect.name), changes, mark, evidence).changes


def publish_longer(
    db: sa.Connection, changes: Sequence[Change], mark: str, evidence: Evidence = BY_HAND
) -> list[Change]:
    """Publishes changes as `publish` does, except locks where one that lasts as long is there.

    When a window ends, a flush that was judged by the old window may come behind one that was judged by the
    new window: they have different totals, so neither waits for the other before this. The lock of the new
    window stays. Must be the last statement of its transaction.
    """
    return _publish(db, _upsert_longer(db.dialect.name), changes, mark, evidence).changes


def publish_judged(db: sa.Connection, judged: Judged, mark: str, *, only_longer: bool = False) -> Judged:
    """Publishes what a transaction has judged, if anything; returns it with the changes that the feed has.

    With `only_longer` as `publish_longer` does. Must be the last statement of its transaction. Brakes are
    applied before, by `Judge.publish`.
    """
    if not judged.changes:
        return judged
    upsert = _upsert_longer if only_longer else _upsert
    published = _publish(db, upsert(db.dialect.name), judged.changes, mark, judged.evidence)
    return judged._replace(**published._asdict())


def _publish(
    db: sa.Connection, upsert: Any, changes: Sequence[Change], mark: str, evidence: Evidence
) -> Published:
    set_ = [change.lock for change in changes if isinstance(change, Set)]
    cleared = sorted(change.at for change in changes if isinstance(change, Clear))
    # A policy whose locks are not enforced any more takes the place of its lock, which gates must drop.
    ended = _enforced(db, [lock.at for lock in set_ if not is_enforced(lock)])
    rows = _in_order(LOCK, map(_lock_columns, set_))
    written = {LockKey(*row) for row in _execute(db, upsert, LOCK, rows)}
    deleted = _execute(db, _delete(db.dialect.name), KEY, cleared)
    unknown = {LockKey(*key): action for *key, action in deleted if action in NOT_ENFORCED}
    published: list[Change] = []
    in_shadow: list[Change] = []
    stored = [change for change in changes if isinstance(change, Clear) or change.at in written]
    earlier = lock_history.note(db, stored, evidence)
    for change in stored:
        if isinstance(change, Clear):
            published += [change] if change.at not in unknown else []
            in_shadow += [change] if unknown.get(change.at) == SHADOW else []
        elif is_enforced(change.lock):
            published.append(change)
        else:
            in_shadow += [change] if change.lock.action == SHADOW else []
            published += [Clear(change.at)] if change.at in ended else []
    was_enforced = {key for key, action in earlier.items() if action not in NOT_ENFORCED}
    was_enforced |= {LockKey(*key) for *key, action in deleted if action not in NOT_ENFORCED}
    outbox.put(db, alert_events.of_changes(published, was_enforced, evidence))
    cursor = Cursor(_add_version(db, published, mark), mark) if published else None
    return Published(published, in_shadow, cursor)


def _enforced(db: sa.Connection, keys: Collection[LockKey]) -> set[LockKey]:
    """Returns the keys at which there is a lock that gates have got."""
    return {key for key, lock in locked(db, keys).items() if is_enforced(lock)} if keys else set()


def _add_version(db: sa.Connection, changes: Sequence[Change], mark: str) -> int:
    # The row stays locked until commit, so versions become visible in the order of their numbers. From a
    # sequence, 8 could commit before 7: a gate that has seen 8 asks for `version > 8` and would never see 7.
    # Last, because other writers wait for it, and with the rows at hand for the same reason.
    dialect = db.dialect.name
    rows = [{"number": number} | _columns(change) for number, change in enumerate(changes)]
    parts = list(in_parts(dialect, CHANGE, _in_order(CHANGE, rows)))
    version = db.execute(
        sa.update(feed).values(version=feed.c.version + 1, mark=mark).returning(feed.c.version)
    ).scalar_one()
    db.execute(sa.insert(feed_versions).values(version=version, mark=mark, at_ms=NowMs()))
    for parameters in parts:
        db.execute(_insert_changes(dialect), parameters | {"given_version": version})
    notify.feed_changed(db)
    return int(version)


def _execute(
    db: sa.Connection,
    statement: sa.Executable,
    columns: Sequence[sa.Column[Any]],
    rows: Sequence[Sequence[object]],
) -> list[Any]:
    """Executes a statement about given rows of `columns`; returns the rows that it returns.

    One statement for many rows takes a third of the time of one for each.
    """
    returned: list[Any] = []
    for parameters in in_parts(db.dialect.name, columns, rows):
        result = db.execute(statement, parameters)
        returned += result if result.returns_rows else ()
    return returned


def _in_order(columns: Sequence[sa.Column[Any]], rows: Iterable[Mapping[str, object]]) -> list[list[object]]:
    """Returns the values of each row in the order of the columns."""
    return [[row[column.name] for column in columns] for row in rows]


@lru_cache
def _locked(dialect: str) -> sa.Select[Any]:
    keys = rows_given(dialect, KEY)
    match = sa.and_(*(column == keys.c[column.name] for column in KEY))
    return sa.select(locks).join(keys, match).order_by(*KEY).with_for_update(of=locks)


@lru_cache
def _upsert(dialect: str) -> Any:
    added = insert_given(dialect, locks, locks.c.keys())
    return added.on_conflict_do_update(index_elements=list(KEY), set_=_all_but_key(added)).returning(*KEY)


@lru_cache
def _upsert_longer(dialect: str) -> Any:
    added = insert_given(dialect, locks, locks.c.keys())
    is_longer = locks.c.until_ms < added.excluded.until_ms
    upsert = added.on_conflict_do_update(index_elements=list(KEY), set_=_all_but_key(added), where=is_longer)
    return upsert.returning(*KEY)


@lru_cache
def _delete(dialect: str) -> Any:
    keys = rows_given(dialect, KEY)
    # Not `exists`: SQLite would read the whole table, and `keys` for each of its rows.
    return sa.delete(locks).where(sa.tuple_(*KEY).in_(sa.select(*keys.c))).returning(*KEY, locks.c.action)


@lru_cache
def _insert_changes(dialect: str) -> Any:
    return insert_given(dialect, lock_changes, lock_changes.c.keys(), constants=["version"])


def _all_but_key(added: Any) -> dict[str, Any]:
    return {c.name: added.excluded[c.name] for c in locks.c if not c.primary_key}


def prune(db: sa.Connection, before_ms: int, most: int) -> int:
    """Deletes changes from before `before_ms`, whole versions up to about `most` changes; returns their
    number.

    A gate that still asks for them gets a snapshot. The feed's present version stays, because gates hold its
    mark.
    """
    old = sa.select(sa.func.max(feed_versions.c.version)).where(
        feed_versions.c.at_ms < before_ms,
        feed_versions.c.version < sa.select(feed.c.version).scalar_subquery(),
    )
    bound = sa.select(lock_changes.c.version).order_by(*lock_changes.primary_key).offset(most - 1).limit(1)
    if (oldest := db.execute(old).scalar()) is None:
        return 0
    pruned_to = min(oldest, db.execute(bound).scalar() or oldest)
    # Never back: a second warden may have pruned more since the lines above.
    db.execute(sa.update(feed).where(feed.c.pruned_to < pruned_to).values(pruned_to=pruned_to))
    db.execute(sa.delete(feed_versions).where(feed_versions.c.version <= pruned_to))
    return db.execute(sa.delete(lock_changes).where(lock_changes.c.version <= pruned_to)).rowcount


def forget_changes(db: sa.Connection) -> None:
    """Deletes all changes; a gate without the present version gets a snapshot."""
    version = sa.select(feed.c.version).scalar_subquery()
    db.execute(sa.update(feed).values(pruned_to=feed.c.version))
    db.execute(sa.delete(feed_versions).where(feed_versions.c.version < version))
    db.execute(sa.delete(lock_changes))


def _columns(change: Change) -> dict[str, Any]:
    if isinstance(change, Set):
        return {"op": "set"} | _lock_columns(change.lock)
    return CLEARED | change.at._asdict()


def _lock_columns(lock: Lock) -> dict[str, str | int]:
    return {
        "scope": lock.scope,
        "key": lock.key,
        "resource": lock.resource,
        "policy": lock.policy,
        "kind": lock.kind,
        "action": lock.action,
        "status": lock.status,
        "reason": lock.reason,
        "detail": lock.detail,
        "began_ms": millis(lock.began),
        "until_ms": millis(lock.until),
        "on_stale": lock.on_stale,
        "slow_limit": 0 if lock.slow is None else lock.slow.limit,
        "slow_ms": 0 if lock.slow is None else round(lock.slow.period * 1000),
    }


def lock_from_row(row: sa.Row[tuple[object, ...]]) -> Lock:
    """Returns the lock in a row of `locks`."""
    columns = dict(row._mapping)
    limit, period_ms = columns.pop("slow_limit"), columns.pop("slow_ms")
    return Lock(
        began=instant(columns.pop("began_ms")),
        until=instant(columns.pop("until_ms")),
        slow=Rate(limit, period_ms / 1000) if limit else None,
        **columns,
    )


def _by_key(rows: Iterable[sa.Row[tuple[object, ...]]]) -> dict[LockKey, Lock]:
    return {lock.at: lock for lock in map(lock_from_row, rows)}
