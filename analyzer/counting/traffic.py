"""Traffic over time: all of it, and that of the keys with the most, for charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.ranked_buckets import RankedMeter, RankedName, TrafficAmount
from analyzer.counting.rankings import ReadRankings, SpanQuery, StoredRankings
from analyzer.counting.usage import WORK_MB
from analyzer.kernel.database.engine import slow_reading, sort_in_memory, without_scans
from analyzer.plan import catalog
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import MINUTE_S, REQUESTS
from analyzer.server.shared_answers import SharedAnswers

__all__ = ["EMPTY", "Traffic", "TrafficAmount", "TrafficQuery", "shared_traffic", "traffic"]


class TrafficQuery(NamedTuple):
    """Counts of a grouping in [from_s, until_s), in steps of `step_s` seconds, or in one that is as long.

    `top` is the number of keys that are shown apart, `stepped` the number of these that are shown over time;
    `keys`, if there are some, are these keys. Of a grouping by resource alone, they are the resources.
    """

    grouping: str
    from_s: int
    until_s: int
    step_s: int
    top: int = 10
    meter: str = REQUESTS.name
    keys: Sequence[str] = ()
    stepped: int = 10


class Traffic(NamedTuple):
    """Counts over time.

    Attributes:
        whole: The counts of all keys, by the begin of each step that has any.
        keys: The keys with the most, the largest first, with their counts in the whole time.
        series: The counts of each of these keys, by the begin of the step.
        unlisted_at_most: The most that a key has which is not among these.
        is_exact: Whether none of the other keys has more than one of these.
    """

    whole: Mapping[int, TrafficAmount]
    keys: Mapping[str, TrafficAmount]
    series: Mapping[str, Mapping[int, TrafficAmount]]
    unlisted_at_most: int = 0
    is_exact: bool = True

    @property
    def total(self) -> TrafficAmount:
        return TrafficAmount(
            sum(amount.value for amount in self.whole.values()),
            sum(amount.denied for amount in self.whole.values()),
        )


EMPTY = Traffic({}, {}, {})
SHARED_S = 10.0  # how long all tabs that ask for the same minutes get one answer
SHARED = "gatelock_shared_traffic"  # execution options: the answers that are shared, the rankings read
READ = "gatelock_read_rankings"


def traffic(engine: sa.Engine, query: TrafficQuery) -> Traffic:
    """Returns the counts, in one snapshot. A bucket wider than a step counts in the step in which it begins.

    The keys of a grouping by two fields are pairs, "key resource". Without a plan that counts the grouping
    and the meter, there are none. On an engine of `shared_traffic`, an answer may be ten seconds old. Raises
    StoreAway, NotRankedYet.
    """
    # No bucket begins within a minute: all that ask in one ask the same.
    until_s = query.until_s + -query.until_s % MINUTE_S
    is_one_step = query.step_s >= query.until_s - query.from_s
    step_s = until_s - query.from_s if is_one_step else query.step_s
    query = query._replace(until_s=until_s, step_s=step_s, keys=tuple(query.keys))
    shared: SharedAnswers | None = engine.get_execution_options().get(SHARED)
    if shared is None:
        return _counted(engine, query)
    return shared.get(query, partial(_counted, engine, query))


def shared_traffic(engine: sa.Engine) -> sa.Engine:
    """Returns the engine, with its connections, for pages that many tabs show: equal questions about traffic
    share an answer for ten seconds."""
    return engine.execution_options(**{SHARED: SharedAnswers(SHARED_S), READ: ReadRankings()})


def _counted(engine: sa.Engine, query: TrafficQuery) -> Traffic:
    with slow_reading(engine) as db:
        numbers = catalog.load(db)
        meter = numbers.meters.get(query.meter)
        if query.grouping not in numbers.groupings or meter is None:
            return EMPTY
        without_scans(db)
        sort_in_memory(db, WORK_MB)
        kept = engine.get_execution_options().get(READ)
        stored = StoredRankings(db, RankedMeter(numbers.groupings[query.grouping], meter), kept)
        span = stored.span(
            SpanQuery(
                query.from_s, query.until_s, query.step_s, query.top, query.stepped,
                [_name(query.grouping, key) for key in query.keys],
            )
        )  # fmt: skip
    return Traffic(
        span.steps,
        {_key(row.name): row.amount for row in span.rows},
        {_key(name): steps for name, steps in span.series.items()},
        span.unlisted_at_most,
        span.is_exact,
    )


def _name(grouping: str, key: str) -> RankedName:
    return RankedName(key) if parse_grouping(grouping).key is not None else RankedName("", key)


def _key(name: RankedName) -> str:
    return " ".join(filter(None, name))
