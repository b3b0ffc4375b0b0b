"""Rankings of any span of time, from stored rankings of days, hours and quarters; see docs/decisions/0083.

    span       |----------------------------------------------------------|
    stretches  ..|hour|hour|    day    |    day    |    day    |hour|qu|...

What is not ranked, or has changed since, is read from the buckets. Each value is exact: where a stretch does
not list a series, its buckets are looked up. What is bounded instead is who is listed: see `SpanRanking`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.ranked_buckets import (
    RankedMeter,
    RankedName,
    RankedSeries,
    Steps,
    StoredTimes,
    StretchRanking,
    TrafficAmount,
    counted_series,
    rank_buckets,
    stored_times,
)
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.tables.ranking_tables import changed_quarters, rankings
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S, bucket_start_s

HOUR_S = 3_600
STEP_S: Mapping[int, int] = {DAY_S: HOUR_S, HOUR_S: QUARTER_S, QUARTER_S: MINUTE_S}  # of a ranking, by width
LOOK_UPS_MAX = 200_000  # buckets that are looked up for series which a stretch does not list; some 0.3 s
READ_KEPT = 200  # rankings that a process keeps; some 100 kB each
READ_MAX = 4_000_000  # series of unranked time that are added up for one answer; some 10 s


class NotRankedYet(AnalyzerError):
    """A span of which too much is not ranked: adding it up would take too long."""


class StretchKey(NamedTuple):
    """The time of a stored ranking."""

    width_s: int
    begin_s: int


class StoredSums(NamedTuple):
    """A stored ranking without its series."""

    changes: int
    amount: int
    counted: int


class RankedRow(NamedTuple):
    """The counts of a series in the span."""

    name: RankedName
    amount: TrafficAmount


class SpanRanking(NamedTuple):
    """The series with the most in a span.

    Attributes:
        rows: Series, the largest first; each amount is exact.
        steps: Counts of all series, by steps.
        series: Counts of each of `rows` that were asked for, by steps.
        unlisted_at_most: The most that a series which is not among `rows` has.
        is_exact: Whether none that is not among `rows` has more than the last of them.
    """

    rows: Sequence[RankedRow]
    steps: Steps
    series: Mapping[RankedName, Steps]
    unlisted_at_most: int
    is_exact: bool


class SpanQuery(NamedTuple):
    """A span, [from_s, until_s), in steps that begin at multiples of `step_s`.

    A step that is not shorter than the span is one step, which begins with it. `top` is the number of
    series, `stepped` the number of these whose steps are wanted. With `names`, these series are counted, and
    no others.
    """

    from_s: int
    until_s: int
    step_s: int
    top: int
    stepped: int = 0
    names: Collection[RankedName] = ()

    @property
    def is_one_step(self) -> bool:
        return self.step_s >= self.until_s - self.from_s

    def step_begin_s(self, at_s: int) -> int:
        """Returns the begin of the step that holds a time."""
        return self.from_s if self.is_one_step else bucket_start_s(at_s, self.step_s)


class ReadRankings:
    """Rankings that were read, by the changes that they are right for; the oldest goes. For any thread."""

    def __init__(self, most: int = READ_KEPT) -> None:
        self._most = most
        self._read: OrderedDict[tuple[int, int, StretchKey, int], StretchRanking] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, ranked: RankedMeter, key: StretchKey, changes: int) -> StretchRanking | None:
        """Returns a ranking that is right for these changes."""
        with self._mutex:
            return self._read.get((ranked.grouping, ranked.meter.number, key, changes))

    def put(self, ranked: RankedMeter, key: StretchKey, changes: int, ranking: StretchRanking) -> None:
        with self._mutex:
            self._read[ranked.grouping, ranked.meter.number, key, changes] = ranking
            if len(self._read) > self._most:
                self._read.popitem(last=False)


class StoredRankings:
    """The stored rankings of a meter of a grouping, in one snapshot; `kept` are some that were read."""

    def __init__(self, db: sa.Connection, ranked: RankedMeter, kept: ReadRankings | None = None) -> None:
        self._db = db
        self._ranked = ranked
        self._kept = ReadRankings() if kept is None else kept
        self.times = stored_times(db, ranked)
        # Buckets of a day have lost the hours in which they were counted.
        newest_day_s = self.times.by_width.get(DAY_S, (0, -DAY_S))[1]
        self._days_until_s = newest_day_s + DAY_S

    def span(self, query: SpanQuery) -> SpanRanking:
        """Returns the ranking of a span. Raises NotRankedYet."""
        stretches = list(self._stretches(query))
        candidates = Candidates(self._ranked, stretches)
        if query.names:
            names, beyond = list(query.names), 0
        else:
            names, beyond = candidates.within(query.top, self.times, LOOK_UPS_MAX)
        self._look_up(candidates, names, stretches)
        rows = sorted(
            (RankedRow(name, candidates.amount(name)) for name in names),
            key=lambda row: (-row.amount.whole, row.name),
        )
        rows = [row for row in rows if row.amount.whole]
        listed, rest = rows[: query.top], rows[query.top :]
        unlisted = max(beyond, rest[0].amount.whole if rest else 0)
        stepped = [row.name for row in listed[: query.stepped]]
        return SpanRanking(
            listed,
            self._joined_steps((stretch.steps for stretch in stretches), query),
            self._series(stepped, candidates, stretches, query),
            unlisted,
            not unlisted or (len(listed) == query.top and beyond <= listed[-1].amount.whole),
        )

    def valid(self, from_s: int, until_s: int) -> dict[StretchKey, StoredSums]:
        """Returns the rankings of stretches that begin in [from_s, until_s), and have not changed since."""
        changes = changes_by_quarter(self._db, from_s, until_s)
        columns = rankings.c
        statement = sa.select(columns.width_s, columns.begin_s, columns.changes, columns.whole).where(
            *self._stored, columns.begin_s >= from_s, columns.begin_s < until_s
        )
        sums = {width_s: sums_by_stretch(changes, width_s) for width_s in STEP_S}
        return {
            StretchKey(width_s, begin_s): StoredSums(number, *json.loads(whole)[1:3])
            for width_s, begin_s, number, whole in self._db.execute(statement)
            if sums[width_s].get(begin_s, 0) == number and self.has_steps(StretchKey(width_s, begin_s))
        }

    def has_steps(self, key: StretchKey) -> bool:
        """Whether buckets still tell the counts of a stretch from those of the rest of its day."""
        return key.width_s == DAY_S or key.begin_s >= self._days_until_s

    def read(self, changes: Mapping[StretchKey, int]) -> dict[StretchKey, StretchRanking]:
        """Returns stored rankings with their series, by the changes that they are right for."""
        begins: defaultdict[int, list[int]] = defaultdict(list)
        ranked = {}
        for key, number in changes.items():
            kept = self._kept.get(self._ranked, key, number)
            if kept is None:
                begins[key.width_s].append(key.begin_s)
            else:
                ranked[key] = kept
        columns = rankings.c
        for width_s, begins_s in begins.items():
            statement = sa.select(columns.begin_s, columns.whole, columns.series).where(
                *self._stored,
                columns.width_s == width_s,
                is_among(self._db.dialect.name, columns.begin_s, begins_s),
            )
            for begin_s, whole, series in self._db.execute(statement):
                key = StretchKey(width_s, begin_s)
                ranked[key] = decoded(key, whole, series)
                self._kept.put(self._ranked, key, changes[key], ranked[key])
        return ranked

    @property
    def _stored(self) -> list[sa.ColumnElement[bool]]:
        return [
            rankings.c.grouping == self._ranked.grouping,
            rankings.c.meter == self._ranked.meter.number,
            is_among(self._db.dialect.name, rankings.c.width_s, list(STEP_S)),
        ]

    def _stretches(self, query: SpanQuery) -> Iterator[StretchRanking]:
        """Yields the stretches of a span: stored rankings, and between them what the buckets have.

        Raises NotRankedYet.
        """
        valid = self.valid(query.from_s, query.until_s)
        parts = covered(query, valid, self.times)
        stored = self.read({key: valid[key].changes for key, *_ in parts if key is not None})
        for key, from_s, until_s in parts:
            if key is not None:
                yield stored[key]
            else:
                step_s = query.step_s
                yield rank_buckets(self._db, self._ranked, from_s, until_s, step_s, self.times)

    def _look_up(
        self, candidates: Candidates, names: Collection[RankedName], stretches: Sequence[StretchRanking]
    ) -> None:
        for place, missing in candidates.missing(names).items():
            for name, steps in self.counted(stretches[place], missing).items():
                candidates.add(place, name, RankedSeries(self._ranked.joined(steps.values()), steps))

    def counted(self, stretch: StretchRanking, names: Collection[RankedName]) -> Mapping[RankedName, Steps]:
        """Returns the counts of some series in a stretch, from its buckets."""
        between = stretch.from_s, stretch.until_s
        return counted_series(self._db, self._ranked, *between, names, stretch.step_s, self.times)

    def _joined_steps(self, parts: Iterable[Steps], query: SpanQuery) -> Steps:
        amounts: defaultdict[int, list[TrafficAmount]] = defaultdict(list)
        for steps in parts:
            for at_s, amount in steps.items():
                amounts[query.step_begin_s(at_s)].append(amount)
        return {at_s: self._ranked.joined(parts) for at_s, parts in sorted(amounts.items())}

    def _series(
        self,
        names: Sequence[RankedName],
        candidates: Candidates,
        stretches: Sequence[StretchRanking],
        query: SpanQuery,
    ) -> Mapping[RankedName, Steps]:
        """Returns the steps of series, all of whose amounts are known."""
        if query.is_one_step:
            return {name: {query.from_s: candidates.amount(name)} for name in names}
        unstepped: defaultdict[int, list[RankedName]] = defaultdict(list)
        for name in names:
            for place, series in candidates.series(name).items():
                if series.steps is None and series.amount.whole:
                    unstepped[place].append(name)
        for place, of_place in unstepped.items():
            for name, steps in self.counted(stretches[place], of_place).items():
                candidates.add(place, name, RankedSeries(self._ranked.joined(steps.values()), steps))
        return {
            name: self._joined_steps(
                (series.steps for series in candidates.series(name).values() if series.steps is not None),
                query,
            )
            for name in names
        }


class Candidates:
    """Series that at least one stretch lists, with what is known of each."""

    def __init__(self, ranked: RankedMeter, stretches: Sequence[StretchRanking]) -> None:
        self._ranked = ranked
        self._stretches = stretches
        self._bounds = [stretch.at_most for stretch in stretches]
        self._known: defaultdict[RankedName, dict[int, RankedSeries]] = defaultdict(dict)  # by stretch
        for place, stretch in enumerate(stretches):
            for name, series in stretch.series.items():
                self._known[name][place] = series

    def within(self, top: int, times: StoredTimes, look_ups_max: int) -> tuple[list[RankedName], int]:
        """Returns the series to list, and the most that any other one has.

        These are all that may be among the first `top`, in the order of what they may have at most, as far
        as `look_ups_max` look-ups suffice: the threshold algorithm of Fagin, Lotem and Naor (2001).
        """
        amounts = {name: self.amount(name) for name in self._known}
        bounds = sorted(((-self._bound(name, amount), name) for name, amount in amounts.items()))
        least = sorted((amount.whole for amount in amounts.values()), reverse=True)
        threshold = least[top - 1] if len(least) >= top else 0
        costs = [times.number(stretch.from_s, stretch.until_s) for stretch in self._stretches]
        names, beyond = [], self._unlisted
        for bound, name in ((-bound, name) for bound, name in bounds):
            cost = sum(costs[place] for place in self._missing(name)) if bound >= threshold else 0
            if bound < threshold or cost > look_ups_max:
                beyond = max(beyond, bound)
                continue
            look_ups_max -= cost
            names.append(name)
        return names, beyond

    def largest(self, most: int) -> list[RankedName]:
        """Returns the series of which most is known, and as many that may have most."""
        amounts = {name: self.amount(name) for name in self._known}
        known = sorted((-amount.whole, name) for name, amount in amounts.items())[:most]
        bounds = sorted((-self._bound(name, amount), name) for name, amount in amounts.items())[:most]
        return list(dict.fromkeys(name for _, name in (*known, *bounds)))

    def missing(self, names: Collection[RankedName]) -> dict[int, list[RankedName]]:
        """Returns the places of stretches that do not list some of the series, though these may have counts
        there."""
        by_place: defaultdict[int, list[RankedName]] = defaultdict(list)
        for name in names:
            for place in self._missing(name):
                by_place[place].append(name)
        return by_place

    def add(self, place: int, name: RankedName, series: RankedSeries) -> None:
        """Adds what was counted of a series in the stretch at a place."""
        self._known[name][place] = series

    def amount(self, name: RankedName) -> TrafficAmount:
        """Returns what is known to be counted of a series."""
        return self._ranked.joined(series.amount for series in self._known[name].values())

    def series(self, name: RankedName) -> Mapping[int, RankedSeries]:
        """Returns what is known of a series, by the place of the stretch."""
        return self._known[name]

    def _missing(self, name: RankedName) -> Iterator[int]:
        known = self._known.get(name, {})
        return (place for place, bound in enumerate(self._bounds) if bound and place not in known)

    @property
    def _unlisted(self) -> int:
        """The most that a series has which no stretch lists."""
        return sum(self._bounds) if self._ranked.adds_up else 2 * max(self._bounds, default=0)

    def _bound(self, name: RankedName, known: TrafficAmount) -> int:
        if self._ranked.adds_up:
            return known.whole + sum(self._bounds) - sum(self._bounds[place] for place in self._known[name])
        most = max((self._bounds[place] for place in self._missing(name)), default=0)
        return max(known.value, most) + max(known.denied, most)


class FlatSteps(Mapping[int, TrafficAmount]):
    """Steps as the row of a ranking has them: place, value, denied, and so on. Few of many are read."""

    __slots__ = ("_flat", "_key")

    def __init__(self, key: StretchKey, flat: Sequence[int]) -> None:
        self._key = key
        self._flat = flat

    def __getitem__(self, at_s: int) -> TrafficAmount:
        return dict(self.items())[at_s]

    def __iter__(self) -> Iterator[int]:
        begin_s, step_s = self._key.begin_s, STEP_S[self._key.width_s]
        return (begin_s + place * step_s for place in self._flat[::3])

    def __len__(self) -> int:
        return len(self._flat) // 3

    def values(self) -> ValuesView[TrafficAmount]:
        return dict(self.items()).values()

    def items(self) -> ItemsView[int, TrafficAmount]:
        amounts = map(TrafficAmount, self._flat[1::3], self._flat[2::3])
        return dict(zip(self, amounts, strict=True)).items()


def covered(
    query: SpanQuery, valid: Mapping[StretchKey, StoredSums], times: StoredTimes
) -> list[tuple[StretchKey | None, int, int]]:
    """Returns what `covering` yields, without stretches before the first bucket and behind the last one.

    Raises NotRankedYet if too much is not ranked.
    """
    parts = [
        (key, from_s, until_s)
        for key, from_s, until_s in covering(query, valid)
        if key is not None or times.number(from_s, until_s)
    ]
    _require_short([part for part in parts if part[0] is None], valid)
    return parts


def covering(
    query: SpanQuery, valid: Mapping[StretchKey, StoredSums]
) -> Iterator[tuple[StretchKey | None, int, int]]:
    """Yields the stretches that a span consists of, each with its begin and end, the widest there are.

    None for a key: no ranking that is valid, and has steps that are short enough.
    """
    widths = [
        width_s for width_s, step_s in STEP_S.items() if query.is_one_step or query.step_s % step_s == 0
    ]
    at_s, unranked_s = query.from_s, query.from_s
    while at_s < query.until_s:
        fitting = (
            StretchKey(width_s, at_s)
            for width_s in widths
            if at_s % width_s == 0 and at_s + width_s <= query.until_s
        )
        key = next((key for key in fitting if key in valid), None)
        if key is None:
            at_s = min(bucket_start_s(at_s, QUARTER_S) + QUARTER_S, query.until_s)
            continue
        if unranked_s < at_s:
            yield None, unranked_s, at_s
        yield key, at_s, at_s + key.width_s
        at_s = unranked_s = at_s + key.width_s
    if unranked_s < at_s:
        yield None, unranked_s, at_s


def _require_short(
    unranked: Sequence[tuple[StretchKey | None, int, int]], valid: Mapping[StretchKey, StoredSums]
) -> None:
    """Raises NotRankedYet if the stretches have too many series, as the largest rankings suggest."""
    density = max((sums.counted / key.width_s for key, sums in valid.items()), default=0.0)
    seconds = sum(until_s - from_s for _, from_s, until_s in unranked)
    if density * seconds > READ_MAX:
        raise NotRankedYet(
            f"{seconds / HOUR_S:.0f} hours of this time are not ranked yet, and adding them up takes too "
            "long: choose a shorter time, or see `gatelock upkeep jobs list rank`"
        )


def changes_by_quarter(db: sa.Connection, from_s: int, until_s: int) -> dict[int, int]:
    """Returns how often the buckets of each quarter in [from_s, until_s) have changed."""
    columns = changed_quarters.c
    statement = sa.select(columns.quarter_s, sa.func.sum(columns.changes)).where(
        columns.quarter_s >= from_s, columns.quarter_s < until_s
    )
    return {quarter_s: int(number) for quarter_s, number in db.execute(statement.group_by(columns.quarter_s))}


def sums_by_stretch(changes: Mapping[int, int], width_s: int) -> dict[int, int]:
    """Returns the changes of stretches, by their begins, from those of quarters."""
    sums: defaultdict[int, int] = defaultdict(int)
    for quarter_s, number in changes.items():
        sums[quarter_s - quarter_s % width_s] += number
    return sums


def encoded(ranked: RankedMeter, ranking: StretchRanking) -> tuple[str, str]:
    """Returns a ranking as its row has it: the whole, and the series.

    [at most, amount, number of series, [place of step, value, denied, ...]]
    [[key, resource, value, denied, [place of step, value, denied, ...] or null], ...]
    """
    whole = ranked.joined(ranking.steps.values()).whole
    series = [
        [*name, *amount, None if steps is None else _flat(ranking, steps)]
        for name, (amount, steps) in ranking.series.items()
    ]
    return (
        json.dumps([ranking.at_most, whole, ranking.counted, _flat(ranking, ranking.steps)]),
        json.dumps(series, ensure_ascii=False),
    )


def decoded(key: StretchKey, whole: str, series: str) -> StretchRanking:
    """Returns the ranking of a row."""
    at_most, _, counted, steps = json.loads(whole)
    listed = {
        RankedName(name, resource): RankedSeries(
            TrafficAmount(value, denied), None if flat is None else FlatSteps(key, flat)
        )
        for name, resource, value, denied, flat in json.loads(series)
    }
    return StretchRanking(
        key.begin_s, key.begin_s + key.width_s, STEP_S[key.width_s],
        FlatSteps(key, steps), at_most, listed, counted,
    )  # fmt: skip


def _flat(ranking: StretchRanking, steps: Steps) -> list[int]:
    return [
        number
        for at_s, amount in sorted(steps.items())
        for number in ((at_s - ranking.from_s) // ranking.step_s, *amount)
    ]
