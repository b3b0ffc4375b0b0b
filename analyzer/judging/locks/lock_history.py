"""The history of locks: written where locks are published, read for verdicts, offences and reports.

A verdict in the log is believed for a lock that refuses requests: no gate denies one because of a tag, or of
a lock in shadow. A lock is in force from `began_ms` to the earlier one of `until_ms` and `ended_ms`, by the
database's clock. The row whose key is empty says since when there is a history. It has no end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging.judge import BY_HAND, BY_PLAN, Evidence
from analyzer.kernel.database.clock import millis
from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.database.row_parameters import in_parts, insert_given, rows_given
from analyzer.kernel.tables.schema import UNKNOWN, lock_history
from analyzer.plan.meters import DAY_S
from analyzer.plan.policies import SHADOW
from gatekeeper.model import Change, Lock, LockKey, Set

HISTORY_KEPT_MS = 40 * DAY_S * 1000  # longer than a record may be late

KEY = [lock_history.c[name] for name in ("scope", "key", "resource", "policy")]
NAMES = KEY[:2]
ENDED = [*KEY, lock_history.c.used_ended]
REFUSING = ("deny", "slow")  # actions
NEW = ("scope", "key", "resource", "policy", "until_ms", "began_ms", "action", "detail", "plan", "used_began")


class Span(NamedTuple):
    """A stretch of time in which a lock was in force, in milliseconds since 1970."""

    at: LockKey
    began_ms: int
    ended_ms: int


def note(db: sa.Connection, changes: Sequence[Change], evidence: Evidence = BY_HAND) -> dict[LockKey, str]:
    """Adds changes of locks, whose rows in `locks` the transaction holds.

    A lock that is set again ends and begins: it may have another end. Returns the actions of the locks that
    were in force until now, by their keys.
    """
    was_in_force: dict[LockKey, str] = {}
    dialect = db.dialect.name
    # Gates lose a lock that a new plan has in shadow, so it is not replaced by that one.
    is_lost = {
        change.at: not isinstance(change, Set)
        or (change.lock.action == SHADOW and evidence.cause_of_end == BY_PLAN)
        for change in changes
    }
    replaced = sorted(key for key in is_lost if not is_lost[key])
    cleared = sorted(key for key in is_lost if is_lost[key])
    for keys, cause in ((replaced, "replaced"), (cleared, evidence.cause_of_end)):
        ended = [[*key, evidence.used.get(key, UNKNOWN)] for key in keys]
        for parameters in in_parts(dialect, ENDED, ended):
            for *key, action, is_over in db.execute(_end(dialect), parameters | {"cause_of_end": cause}):
                if not is_over:
                    was_in_force[LockKey(*key)] = action
    begun = [change.lock for change in changes if isinstance(change, Set)]
    rows = sorted(_row(lock, evidence) for lock in begun)
    columns = [lock_history.c[name] for name in NEW]
    for parameters in in_parts(dialect, columns, rows):
        db.execute(_begin(dialect), parameters)
    return was_in_force


def known_since_ms(db: sa.Connection) -> int | None:
    """Returns since when the history is complete; None: there is none."""
    first = sa.select(lock_history.c.began_ms, NowMs() - HISTORY_KEPT_MS)
    row = db.execute(first.where(*(column == "" for column in KEY))).first()
    return None if row is None else max(row)


def spans(db: sa.Connection, names: Collection[tuple[str, str]], from_ms: int, to_ms: int) -> list[Span]:
    """Returns when locks on `names` (scope and key) were in force, of any resource and policy.

    Those that touch the time from `from_ms` to `to_ms`, at least.
    """
    dialect = db.dialect.name
    touching = []
    for parameters in in_parts(dialect, NAMES, sorted(names)):
        rows = db.execute(_spans(dialect), parameters | {"from_ms": from_ms, "to_ms": to_ms})
        for scope, key, resource, policy, began_ms, ended_ms in rows:
            touching.append(Span(LockKey(scope, key, resource, policy), began_ms, ended_ms))
    return touching


def policy_spans(db: sa.Connection, policy: str, from_ms: int, *, in_shadow: bool = False) -> list[Span]:
    """Returns when locks of a policy were in force since `from_ms`, those that end later among them; sorted.

    Those that gates got, or with `in_shadow` those that none got. A lock that was extended has a span for
    each of its ends.
    """
    columns = lock_history.c
    statement = sa.select(*KEY, columns.began_ms, _end_ms())
    is_wanted = columns.action == SHADOW if in_shadow else columns.action != SHADOW
    statement = statement.where(columns.until_ms >= from_ms, columns.policy == policy, is_wanted)
    candidates = [
        Span(LockKey(*key), began_ms, ended_ms) for *key, began_ms, ended_ms in db.execute(statement)
    ]
    return sorted(span for span in candidates if span.ended_ms >= from_ms)


def ended_locks(
    db: sa.Connection, keys: Collection[LockKey], since_s: int, *, in_shadow: bool = False
) -> dict[LockKey, int]:
    """Returns how many locks of each key have run to their end in the last `since_s` seconds.

    Those that were cleared before, or replaced by another lock in force, do not count. `in_shadow`: those of
    a policy in this mode alone; False: only others.
    """
    dialect = db.dialect.name
    numbers = {}
    since = {"since_ms": since_s * 1000}
    for parameters in in_parts(dialect, KEY, sorted(keys)):
        for *key, number in db.execute(_ended_locks(dialect, in_shadow=in_shadow), parameters | since):
            numbers[LockKey(*key)] = number
    return numbers


def _row(lock: Lock, evidence: Evidence) -> list[str | int]:
    judged = (lock.action, lock.detail, evidence.plan, evidence.used.get(lock.at, UNKNOWN))
    return [*lock.at, millis(lock.until), millis(lock.began), *judged]


@lru_cache
def _end(dialect: str) -> Any:
    rows = rows_given(dialect, ENDED)
    is_given = sa.and_(*(column == rows.c[column.name] for column in KEY))
    has_lapsed = lock_history.c.until_ms <= NowMs()
    cause = sa.case((has_lapsed, "lapsed"), else_=sa.bindparam("cause_of_end", type_=sa.Text))
    ended = sa.update(lock_history).where(is_given, lock_history.c.ended_ms.is_(None))
    ended = ended.values(ended_ms=NowMs(), cause=cause, used_ended=rows.c.used_ended)
    return ended.returning(*KEY, lock_history.c.action, has_lapsed)


@lru_cache
def _begin(dialect: str) -> sa.Executable:
    added = insert_given(dialect, lock_history, NEW)
    # The same lock again: it was cleared and set within a millisecond, or restored.
    judged = {name: added.excluded[name] for name in NEW if not lock_history.c[name].primary_key}
    again: sa.Executable = added.on_conflict_do_update(
        index_elements=lock_history.primary_key, set_={"ended_ms": None, "cause": "", **judged}
    )
    return again


@lru_cache
def _ended_locks(dialect: str, *, in_shadow: bool) -> sa.Select[Any]:
    keys = rows_given(dialect, KEY)
    columns, now = lock_history.c, sa.select(NowMs()).scalar_subquery()
    has_ended = sa.or_(columns.ended_ms >= columns.until_ms, columns.ended_ms.is_(None))
    return (
        sa.select(*KEY, sa.func.count())
        .join_from(keys, lock_history, sa.and_(*(column == keys.c[column.name] for column in KEY)))
        .where(
            columns.until_ms > now - sa.bindparam("since_ms", type_=sa.BigInteger),
            columns.until_ms <= now,
            has_ended,
            columns.action == SHADOW if in_shadow else columns.action != SHADOW,
        )
        .group_by(*KEY)
    )


@lru_cache
def _spans(dialect: str) -> sa.Select[Any]:
    names = rows_given(dialect, NAMES)
    columns = lock_history.c
    # A join, so that each name is looked up in the primary key with the time behind it.
    is_named = sa.and_(*(column == names.c[column.name] for column in NAMES))
    return (
        sa.select(*KEY, columns.began_ms, _end_ms())
        .join_from(names, lock_history, is_named)
        .where(
            columns.until_ms >= sa.bindparam("from_ms", type_=sa.BigInteger),
            columns.began_ms <= sa.bindparam("to_ms", type_=sa.BigInteger),
            columns.action.in_(REFUSING),
        )
    )


def _end_ms() -> sa.ColumnElement[int]:
    """Returns when a lock was in force no more."""
    columns = lock_history.c
    was_cut = columns.ended_ms < columns.until_ms
    return sa.case((was_cut, columns.ended_ms), else_=columns.until_ms).label("end_ms")
