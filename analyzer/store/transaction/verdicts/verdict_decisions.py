"""Decides which verdicts of a flush are believed, and stores which are not.

A verdict is believed if a lock of the policy that it names was in force on one of the series that its
requests count in; a verdict without a policy, if a lock of any policy was. In force at the minute of the
request, or at that of its record's Kafka time, give or take DELAY_MS.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import sqlalchemy as sa

from analyzer.core.counting.caller_budget import OVERFLOW
from analyzer.core.counting.groupings import grouping_of
from analyzer.core.counting.meters import MINUTE_S
from analyzer.core.model import Partition, PartitionProgress, Verdict
from analyzer.store.database.partition_keys import is_of, key_row_of
from analyzer.store.database.schema import disbelieved as table
from analyzer.store.transaction.verdicts import lock_history
from analyzer.store.transaction.verdicts.lock_history import Span

# Before a lock begins and after it ends. A gate denies by a lock until its next poll after the end, the
# record reaches Kafka after the request, and the clocks of machines differ.
DELAY_MS = 120_000

Place = tuple[str, str, str]  # scope, key and resource of a lock


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
        for index, found in places.items()
        if not any(_supports(span, verdicts[index]) for place in found for span in spans.get(place, ()))
    }


def _spans_at(
    db: sa.Connection, places: dict[int, set[Place]], verdicts: Iterable[Verdict]
) -> dict[Place, list[Span]]:
    times_ms = [second * 1000 for verdict in verdicts for second in (verdict.logged_s, verdict.bucket_s)]
    names = {(scope, key) for found in places.values() for scope, key, _ in found}
    from_ms, to_ms = min(times_ms) - DELAY_MS, max(times_ms) + MINUTE_S * 1000 + DELAY_MS
    spans: dict[Place, list[Span]] = defaultdict(list)
    for span in lock_history.spans(db, names, from_ms, to_ms):
        spans[span.at[:3]].append(span)
    return spans


def _places(verdict: Verdict) -> Iterator[Place]:
    """Yields where the locks may be that deny these requests.

    A gate knows no overflow: it is asked for the caller's name.
    """
    for grouping, key, resource in verdict.series:
        yield grouping_of(grouping).scope, verdict.caller if key == OVERFLOW else key, resource


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
    requests_at: int,
) -> None:
    """Stores that the chosen verdicts (at least one) are not believed.

    `parts` has the offsets that were counted; `requests_at` is the index of the requests in the values.
    """
    offsets = {progress.part: (progress.start, progress.next) for progress in parts}
    by_part: dict[Partition, list[Verdict]] = defaultdict(list)
    for index in sorted(chosen):
        by_part[verdicts[index].part].append(verdicts[index])
    rows = []
    for part, found in sorted(by_part.items()):
        begin, next_ = offsets[part]
        # A retry counts rejected records behind the begin of an earlier flush.
        last = sa.select(sa.func.max(table.c.number)).where(is_of(table, part), table.c.begin == begin)
        first = (-1 if (stored := db.execute(last).scalar()) is None else stored) + 1
        rows += [
            key_row_of(part)
            | {"begin": begin, "number": number, "next": next_, "policy": one.policy, "caller": one.caller,
               "logged_s": one.logged_s, "bucket_s": one.bucket_s, "series": json.dumps(one.series),
               "requests": one.values[requests_at]}
            for number, one in enumerate(found, first)
        ]  # fmt: skip
    db.execute(sa.insert(table), rows)
