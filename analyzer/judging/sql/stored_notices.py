"""Notices in SQL: a row for each, written in the transaction that judges, so that it is raised once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from analyzer.judging import alert_events
from analyzer.judging.earned_notices import LASTS_S, LastNotice, Notice, NoticeKey
from analyzer.kernel import outbox
from analyzer.kernel.database.row_parameters import in_parts, insert_given, rows_given
from analyzer.kernel.tables.schema import notices
from analyzer.plan.meters import DAY_S
from analyzer.plan.windows import ALWAYS

KEY = [notices.c[name] for name in NoticeKey._fields]
STATE = [notices.c[name] for name in ("window_s", "until_s", "at_ms")]
# A total of a past window is never judged, so nothing is raised again after this.
KEPT_MS = 71 * DAY_S * 1000
OVER_MS = 40 * DAY_S * 1000  # after the end of their window
LASTING_MS = 400 * DAY_S * 1000
COLUMNS = [*KEY, *(notices.c[name] for name in ("scope", "used", "limit", "until_s", "detail"))]


def store(db: sa.Connection, reached: Collection[Notice], now_ms: int) -> list[Notice]:
    """Stores the notices that were not raised before, and returns these; stores the changed ends of others.

    The transaction holds the totals of their series, so no other one raises them.
    """
    raised: set[NoticeKey] = set()
    for was_raised, statement in ((False, _store), (True, _set_end)):
        rows = sorted(
            (*notice.at, notice.scope, notice.used, notice.limit, notice.until_s, notice.detail)
            for notice in reached
            if notice.was_raised == was_raised
        )
        for parameters in in_parts(db.dialect.name, COLUMNS, rows):
            result = db.execute(statement(db.dialect.name), parameters | {"given_at_ms": now_ms})
            raised |= set() if was_raised else {NoticeKey(*row) for row in result}
    new = [notice for notice in reached if notice.at in raised]
    outbox.put(db, alert_events.of_notices(new))
    return new


def last(db: sa.Connection, keys: Sequence[NoticeKey]) -> dict[NoticeKey, LastNotice]:
    """Returns the notices with these keys; those that were not raised are left out.

    A key of a rolling sum has no time: the last notice of its threshold is returned.
    """
    by_key: dict[NoticeKey, LastNotice] = {}
    of_rolling = [key for key in keys if key.window_s == ALWAYS.start_s]
    of_windows = [key for key in keys if key.window_s != ALWAYS.start_s]
    for statement, group in ((_raised, of_windows), (_latest, of_rolling)):
        for parameters in in_parts(db.dialect.name, KEY, sorted(group)):
            rows = db.execute(statement(db.dialect.name), parameters)
            for *key, window_s, until_s, at_ms in rows:
                by_key[NoticeKey(*key)] = LastNotice(window_s, until_s, at_ms / 1000)
    return by_key


def end_lasting(db: sa.Connection, policy: str, sum_name: str, now_s: int) -> None:
    """Ends the notices of a policy and a sum that last: no judgement looks at them any more."""
    of_policy = notices.c.policy == policy, notices.c.sum == sum_name
    lasting = sa.update(notices).where(*of_policy, notices.c.until_s == LASTS_S)
    db.execute(lasting.values(until_s=now_s))


def outdated(now_ms: int) -> sa.ColumnElement[bool]:
    """Returns the condition for notices whose windows are over for long, so that none is raised again.

    A notice of a rolling window may last; it is raised again after LASTING_MS at the latest.
    """
    is_over = notices.c.until_s < (now_ms - OVER_MS) // 1000
    is_old = notices.c.at_ms < now_ms - KEPT_MS
    return sa.and_(is_old, sa.or_(is_over, notices.c.at_ms < now_ms - LASTING_MS))


@lru_cache
def _store(dialect: str) -> Any:
    names = [column.name for column in COLUMNS]
    added = insert_given(dialect, notices, [*names, "at_ms"], constants=["at_ms"])
    return added.on_conflict_do_nothing(index_elements=notices.primary_key).returning(*KEY)


@lru_cache
def _raised(dialect: str) -> sa.Select[Any]:
    keys = rows_given(dialect, KEY)
    is_given = sa.and_(*(column == keys.c[column.name] for column in KEY))
    return sa.select(*KEY, *STATE).join_from(keys, notices, is_given)


@lru_cache
def _latest(dialect: str) -> sa.Select[Any]:
    """Returns the query of the last notices of thresholds; each is looked up, from the last window back."""
    keys, earlier = rows_given(dialect, KEY), notices.alias()
    names = [column.name for column in KEY if column.name != "window_s"]
    latest_s = (
        sa.select(earlier.c.window_s)
        .where(*(earlier.c[name] == keys.c[name] for name in names))
        .order_by(earlier.c.window_s.desc())
        .limit(1)
        .scalar_subquery()
    )
    is_last = sa.and_(*(notices.c[name] == keys.c[name] for name in names), notices.c.window_s == latest_s)
    return sa.select(*keys.c, *STATE).join_from(keys, notices, is_last)


@lru_cache
def _set_end(dialect: str) -> Any:
    """Returns the statement for notices that exist; a plain UPDATE with a join is planned by statistics."""
    names = [column.name for column in COLUMNS]
    added = insert_given(dialect, notices, [*names, "at_ms"], constants=["at_ms"])
    changed = added.on_conflict_do_update(
        index_elements=notices.primary_key, set_={"until_s": added.excluded.until_s}
    )
    return changed.returning(*KEY)
