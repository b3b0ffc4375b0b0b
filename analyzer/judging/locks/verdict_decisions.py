"""Decides which verdicts of a flush are believed, and stores which are not.

A verdict is believed if a lock of the policy that it names was in force on one of the series that its
requests count in; a verdict without a policy, if a lock of any policy was. In force at the minute of the
request, or at that of its record's Kafka time, give or take DELAY_MS.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.counter.caller_budget import OVERFLOW
from analyzer.counting.sql_joins import greatest
from analyzer.judging.locks import lock_history
from analyzer.judging.locks.lock_history import Span
from analyzer.kernel.database.engine import insert
from analyzer.kernel.database.partition_keys import key_values
from analyzer.kernel.database.row_parameters import upsert_columns
from analyzer.kernel.model import Partition, PartitionProgress, Verdict
from analyzer.kernel.tables.schema import disbelieved as table
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import MINUTE_S

# Before a lock begins and after it ends. A gate denies by a lock until its next poll after the end, the
# record reaches Kafka after the request, and the clocks of machines differ.
DELAY_MS = 120_000

UNKNOWN_POLICY = "?"  # stands for all names that the plan does not have

Place = tuple[str, str, str]  # scope, key and resource of a lock


class DecisionKey(NamedTuple):
    """Requests that are decided about in one row, `series` as JSON."""

    part: Partition
    logged_s: int
    bucket_s: int
    caller: str
    policy: str
    series: str


def disbelieved(db: sa.Connection, verdicts: Sequence[Verdict]) -> set[int]:
    """Returns the indexes of the verdicts that no lock supports.

    A verdict from before the history is believed.
    """
    since_ms = lock_history.known_since_ms(db) if verdicts else None
    if since_ms is None:
        return set()
    places = {
        index: set(_places(verdict))
        for index, verdict in enumerate(verdicts)
        if verdict.logged_s * 1000 >= since_ms + DELAY_MS
    }
    if not places:
        return set()
    spans = _spans_at(db, places, [verdicts[index] for index in places])
    return {
        index
        for index, verdict_places in places.items()
        if not any(
            _supports(span, verdicts[index]) for place in verdict_places for span in spans.get(place, ())
        )
    }


def _spans_at(
    db: sa.Connection, places: dict[int, set[Place]], verdicts: Iterable[Verdict]
) -> dict[Place, list[Span]]:
    times_ms = [second * 1000 for verdict in verdicts for second in (verdict.logged_s, verdict.bucket_s)]
    names = {(scope, key) for verdict_places in places.values() for scope, key, _ in verdict_places}
    from_ms, to_ms = min(times_ms) - DELAY_MS, max(times_ms) + MINUTE_S * 1000 + DELAY_MS
    spans: dict[Place, list[Span]] = defaultdict(list)
    for span in lock_history.spans(db, names, from_ms, to_ms):
        spans[span.at[:3]].append(span)
    return spans


def _places(verdict: Verdict) -> Iterator[Place]:
    """Yields where the locks may be that deny these requests.

    A gate knows no overflow: it is asked for the caller's name.
    """
    for name, key, resource in verdict.series:
        grouping = parse_grouping(name)
        name_asked = verdict.caller if grouping.is_of_callers and key == OVERFLOW else key
        yield grouping.lock_scope, name_asked, resource


def _supports(span: Span, verdict: Verdict) -> bool:
    return verdict.policy in ("", span.at.policy) and any(
        span.began_ms - DELAY_MS < (minute_s + MINUTE_S) * 1000
        and minute_s * 1000 <= span.ended_ms + DELAY_MS
        for minute_s in (verdict.logged_s, verdict.bucket_s)
    )


def store(
    db: sa.Connection,
    verdicts: Sequence[Verdict],
    chosen: Collection[int],
    parts: Iterable[PartitionProgress],
    policies: Collection[str],
    requests_at: int,
) -> None:
    """Stores that the chosen verdicts (at least one) are not believed.

    `parts` has the offsets that were counted, `policies` the names in the plan; `requests_at` is the index of
    the requests in the values. Names that a client can invent make no separate rows: policies outside of
    the plan are one, and so are callers in the overflow.
    """
    offsets = {progress.part: (progress.start, progress.next) for progress in parts}
    requests = Counter[DecisionKey]()
    for index in chosen:
        verdict = verdicts[index]
        is_overflow = any(
            series.key == OVERFLOW and parse_grouping(series.grouping).is_of_callers
            for series in verdict.series
        )
        caller = OVERFLOW if is_overflow else verdict.caller
        policy = verdict.policy if verdict.policy in ("", *policies) else UNKNOWN_POLICY
        key = DecisionKey(
            verdict.part, verdict.logged_s, verdict.bucket_s, caller, policy, json.dumps(verdict.series)
        )
        requests[key] += verdict.values[requests_at]
    for part, group in groupby(sorted(requests), key=lambda key: key.part):
        begin, next_ = offsets[part]
        keys = list(group)
        upsert_columns(
            db,
            table,
            {
                **key_values(part),
                "logged_s": [key.logged_s for key in keys],
                "bucket_s": [key.bucket_s for key in keys],
                "caller": [key.caller for key in keys],
                "policy": [key.policy for key in keys],
                "series_digest": [_series_digest(key.series) for key in keys],
                "series": [key.series for key in keys],
                "begin": begin,
                "next": next_,
                "requests": [requests[key] for key in keys],
            },
            _add_requests,
        )


def rename_caller(db: sa.Connection, keys: Iterable[tuple[Any, ...]], name: str, new: str) -> None:
    """Joins the decisions at these primary keys, about a caller, with those about the name `new`."""
    for key in keys:
        is_row = sa.and_(*(column == value for column, value in zip(table.primary_key, key, strict=True)))
        row = db.execute(sa.delete(table).where(is_row).returning(*table.c)).first()
        if row is None:
            continue
        renamed = [[new if part == name else part for part in pair] for pair in json.loads(row.series)]
        series = json.dumps(renamed)
        changed = {"caller": new, "series": series, "series_digest": _series_digest(series)}
        added = insert(db, table).values(dict(row._mapping) | changed)
        joined = _add_requests(db.dialect.name, table, added.excluded)
        db.execute(added.on_conflict_do_update(index_elements=table.primary_key, set_=joined))


def _series_digest(series: str) -> str:
    return sha256(series.encode()).hexdigest()[:32]


def _add_requests(dialect: str, stored: sa.Table, new: Any) -> dict[str, Any]:
    # A retry counts records from before the last flush.
    return {
        "next": greatest(dialect, stored.c.next, new.next),
        "requests": stored.c.requests + new.requests,
    }
