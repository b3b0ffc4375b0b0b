"""The job `rank`: keeps the stored rankings right and small, one ranking or one transaction a step.

    rank      a quarter, an hour or a day that is over, and whose buckets have changed since it was ranked
    complete  what the largest series of a month, and of a day, have in each day and hour that does not list
              them, so that no reader looks it up
    settle    rows of `changed_quarters` whose quarter is ranked are joined
    prune     rankings that are too old

A ranking is read in a snapshot, with the number of changes that it is right for, and written behind it. So
it locks nothing that a flush writes, and what is counted meanwhile makes it outdated rather than wrong.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.buckets import add_changes
from analyzer.counting.ranked_buckets import (
    TOP,
    RankedMeter,
    RankedSeries,
    StretchRanking,
    rank_buckets,
    stored_times,
)
from analyzer.counting.rankings import (
    HOUR_S,
    STEP_S,
    Candidates,
    StoredRankings,
    StretchKey,
    changes_by_quarter,
    encoded,
)
from analyzer.counting.usage import UNASKED, WORK_MB
from analyzer.kernel.database.bounded_deletes import delete_at, first_keys
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import insert, slow_reading, sort_in_memory, without_scans, writing
from analyzer.kernel.database.partition_keys import KEY_COLUMNS, PartitionKey
from analyzer.kernel.database.row_parameters import delete_given, in_parts, is_among
from analyzer.kernel.tables.ranking_tables import changed_quarters, rankings
from analyzer.kernel.tables.schema import catalog as catalog_rows
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog
from analyzer.plan.meters import DAY_S, QUARTER_S, bucket_start_s

# Numbers of partitions that stand for joined rows of a quarter. An own row is new.
OF_HOURS: PartitionKey = ("", "", -2)  # the quarter and its hour were ranked
OF_DAYS: PartitionKey = ("", "", -1)  # so was its day
# After the end of a stretch, until it is ranked: most late records are there. And between two rankings of it.
WAIT_S: Mapping[int, int] = {QUARTER_S: 0, HOUR_S: 120, DAY_S: 600}
AGAIN_S: Mapping[int, int] = {QUARTER_S: 60, HOUR_S: 300, DAY_S: HOUR_S}
# How long rankings are kept; those of days as long as their buckets. Pages compare with four weeks before.
KEPT_S: Mapping[int, int] = {QUARTER_S: 36 * DAY_S, HOUR_S: 62 * DAY_S}
FOLLOWED_S: Mapping[int, int] = {DAY_S: 31 * DAY_S, HOUR_S: 25 * HOUR_S}  # spans whose largest are completed
FOLLOWED = 200  # series of each span; a page lists 100
SERIES_MAX = 1_000  # of a ranking, with those that were completed
QUARTERS_AT_ONCE = 400
PRUNED_AT_ONCE = 1_000
RENAMED = "renamed"  # kind of the catalog's entry that counts how often series were renamed


class DueRanking(NamedTuple):
    """A ranking to be made."""

    meter: RankedMeter
    key: StretchKey


class ChangedRow(NamedTuple):
    """A row of `changed_quarters`."""

    quarter_s: int
    partition: PartitionKey
    changes: int


class RankingUpkeep:
    """The work of the job; `days_s` is how long buckets of days are kept.

    What it remembers between two steps saves look-ups: another process begins without it.
    """

    def __init__(self, engine: sa.Engine, days_s: int) -> None:
        self._engine = engine
        self._kept_s = {**KEPT_S, DAY_S: days_s}
        self._due: list[DueRanking] = []
        self._completed: dict[tuple[int, int, int], Mapping[StretchKey, int]] = {}
        self._may_be_incomplete = True
        self._pruned_s = 0

    def step(self) -> int:
        """Does one step; returns 0 when nothing is left. Raises StoreAway."""
        if not self._due:
            self._due = self._find_due()
        if self._due:
            self._rank(self._due.pop())
            return 1
        return self._settle() or self._complete() or self._prune()

    def _find_due(self) -> list[DueRanking]:
        """Returns what is to be ranked, the most urgent last: quarters before hours, new before old."""
        with slow_reading(self._engine) as db:
            now_ms = clock_ms(db)
            widths = _changed_stretches(_unsettled(db))
            due = [
                DueRanking(meter, key)
                for meter in ranked_meters(catalog.load(db))
                for key in self._outdated(db, meter, widths, now_ms)
            ]
        return sorted(due, key=lambda ranking: (-ranking.key.width_s, ranking.key.begin_s))

    def _outdated(
        self, db: sa.Connection, meter: RankedMeter, changed: Sequence[StretchKey], now_ms: int
    ) -> Iterator[StretchKey]:
        """Yields the stretches that are over, whose ranking is not right, and that may be ranked now."""
        if not changed:
            return
        stored, now_s = StoredRankings(db, meter), now_ms // 1000
        first_s = min(key.begin_s for key in changed)
        valid = stored.valid(first_s, now_s)
        columns = rankings.c
        statement = sa.select(columns.width_s, columns.begin_s, columns.ranked_ms).where(
            columns.grouping == meter.grouping,
            columns.meter == meter.meter.number,
            columns.begin_s >= first_s,
        )
        ranked_ms = {StretchKey(width_s, at_s): at_ms for width_s, at_s, at_ms in db.execute(statement)}
        for key in changed:
            end_s = key.begin_s + key.width_s
            again_s = ranked_ms.get(key, 0) // 1000 + AGAIN_S[key.width_s]
            is_due = end_s + WAIT_S[key.width_s] <= now_s and again_s <= now_s
            is_kept = key.begin_s >= now_s - self._kept_s[key.width_s] and stored.has_steps(key)
            if is_due and is_kept and key not in valid:
                yield key

    def _rank(self, due: DueRanking) -> None:
        key = due.key
        end_s = key.begin_s + key.width_s
        with slow_reading(self._engine) as db:
            renamed = renamed_series(db)
            without_scans(db)
            sort_in_memory(db, WORK_MB)
            changes = sum(changes_by_quarter(db, key.begin_s, end_s).values())
            times = stored_times(db, due.meter)
            ranking = rank_buckets(db, due.meter, key.begin_s, end_s, STEP_S[key.width_s], times)
        with writing(self._engine) as db:
            dialect_of(db).lock_table(db, "rankings", "row exclusive")
            if renamed_series(db) == renamed:
                store(db, due.meter, key, ranking, changes)
        self._may_be_incomplete = True

    def _complete(self) -> int:
        """Completes one ranking; returns whether there was one."""
        if not self._may_be_incomplete:
            return 0
        with slow_reading(self._engine) as db:
            now_s, renamed = clock_ms(db) // 1000, renamed_series(db)
            found = next(
                (
                    completed
                    for meter in ranked_meters(catalog.load(db))
                    for width_s in FOLLOWED_S
                    if (completed := self._completed_ranking(db, meter, width_s, now_s)) is not None
                ),
                None,
            )
        if found is None:
            self._may_be_incomplete = False
            return 0
        meter, key, ranking, changes = found
        with writing(self._engine) as db:
            dialect_of(db).lock_table(db, "rankings", "row exclusive")
            if renamed_series(db) != renamed:
                return 1
            is_same = sa.and_(_is_ranking(meter, key), rankings.c.changes == changes)
            db.execute(sa.update(rankings).where(is_same).values(series=encoded(meter, ranking)[1]))
        return 1

    def _completed_ranking(
        self, db: sa.Connection, meter: RankedMeter, width_s: int, now_s: int
    ) -> tuple[RankedMeter, StretchKey, StretchRanking, int] | None:
        """Returns a ranking with the series that it did not list; None: all of this span are complete."""
        without_scans(db)
        stored = StoredRankings(db, meter)
        valid = stored.valid(bucket_start_s(now_s - FOLLOWED_S[width_s], width_s), now_s)
        changes = {key: sums.changes for key, sums in valid.items() if key.width_s == width_s}
        place = (meter.grouping, meter.meter.number, width_s)
        if self._completed.get(place) == changes:
            return None
        read = stored.read(changes)
        keys, stretches = [*read], [*read.values()]
        candidates = Candidates(meter, stretches)
        followed = candidates.largest(FOLLOWED)
        missing = candidates.missing(followed)
        if not missing:
            self._completed[place] = changes
            return None
        at = next(iter(missing))
        stretch, key = stretches[at], keys[at]
        series = dict(stretch.series)
        if len(series) + len(missing[at]) > SERIES_MAX:
            kept = dict.fromkeys([*[*series][:TOP], *followed])
            series = {name: series[name] for name in kept if name in series}
        for name, steps in stored.counted(stretch, missing[at]).items():
            series[name] = RankedSeries(meter.joined(steps.values()), None)
        return meter, key, stretch._replace(series=series), changes[key]

    def _settle(self) -> int:
        """Joins rows of quarters that are ranked; returns their number."""
        with slow_reading(self._engine) as db:
            now_ms, rows = clock_ms(db), _unsettled(db)
            changed = _changed_stretches(rows)
            waiting = {
                key
                for meter in ranked_meters(catalog.load(db))
                for key in self._waiting(db, meter, changed, now_ms // 1000)
            }
        joined: defaultdict[PartitionKey, list[ChangedRow]] = defaultdict(list)
        for row in rows:
            narrow, day = _stretches_of(row.quarter_s)[:2], _stretches_of(row.quarter_s)[2]
            if waiting.isdisjoint(narrow):
                into = OF_HOURS if day in waiting else OF_DAYS
                if row.partition != into:
                    joined[into].append(row)
        settled = 0
        for into, into_rows in joined.items():
            with writing(self._engine) as db:
                settled += _join_changes(db, into_rows, into)
        return settled

    def _waiting(
        self, db: sa.Connection, meter: RankedMeter, changed: Sequence[StretchKey], now_s: int
    ) -> Iterator[StretchKey]:
        """Yields the stretches whose ranking is not right, or that are not over."""
        if changed:
            stored = StoredRankings(db, meter)
            valid = stored.valid(min(key.begin_s for key in changed), now_s)
            for key in changed:
                is_kept = key.begin_s >= now_s - self._kept_s[key.width_s] and stored.has_steps(key)
                if key not in valid and is_kept:
                    yield key

    def _prune(self) -> int:
        """Deletes old rankings, once in an hour; returns their number."""
        with writing(self._engine) as db:
            now_s = clock_ms(db) // 1000
            if now_s < self._pruned_s + HOUR_S:
                return 0
            is_old = sa.or_(
                *(
                    sa.and_(rankings.c.width_s == width_s, rankings.c.begin_s < now_s - kept_s)
                    for width_s, kept_s in self._kept_s.items()
                )
            )
            deleted = delete_at(rankings, first_keys(rankings, is_old, PRUNED_AT_ONCE))
            rows = len(db.execute(deleted.returning(rankings.c.begin_s)).all())
            old = changed_quarters.c.quarter_s < bucket_start_s(now_s - self._kept_s[DAY_S], DAY_S)
            deleted = delete_at(changed_quarters, first_keys(changed_quarters, old, PRUNED_AT_ONCE))
            rows += len(db.execute(deleted.returning(changed_quarters.c.quarter_s)).all())
        if not rows:
            self._pruned_s = now_s
        return rows


def ranked_meters(numbers: Catalog) -> list[RankedMeter]:
    """Returns what is ranked: each meter that reports show, in each grouping."""
    return [
        RankedMeter(grouping, meter)
        for grouping in sorted(numbers.groupings.values())
        for meter in sorted(numbers.meters.values())
        if meter.name not in UNASKED
    ]


def store(
    db: sa.Connection, meter: RankedMeter, key: StretchKey, ranking: StretchRanking, changes: int
) -> None:
    """Stores a ranking that is right for a number of changes of its quarters."""
    whole, series = encoded(meter, ranking)
    amounts = {"changes": changes, "ranked_ms": clock_ms(db), "whole": whole, "series": series}
    added = insert(db, rankings).values(
        {"grouping": meter.grouping, "meter": meter.meter.number, **key._asdict(), **amounts}
    )
    changed = {name: added.excluded[name] for name in amounts}
    db.execute(added.on_conflict_do_update(index_elements=rankings.primary_key, set_=changed))


def rename_series(engine: sa.Engine, name: str, new: str) -> int:
    """Replaces the key of series in all rankings, and returns how many had it. Call it when buckets have it.

    A ranking that was read before, and is not stored yet, is not stored any more.
    """
    columns, text = rankings.c, _in_json(name)
    with writing(engine) as db:
        dialect_of(db).lock_table(db, "rankings", "share row exclusive")
        added = insert(db, catalog_rows).values(kind=RENAMED, name="series", number=1, join="")
        more = {"number": catalog_rows.c.number + 1}
        db.execute(added.on_conflict_do_update(index_elements=catalog_rows.primary_key, set_=more))
        has_name = columns.series.contains(text, autoescape=True)
        rows = db.execute(sa.select(*rankings.primary_key, columns.series).where(has_name)).all()
        for *key, series in rows:
            of_key = (column == value for column, value in zip(rankings.primary_key, key, strict=True))
            if _in_json(new) in series:  # its amounts of both names would have to be joined
                db.execute(sa.delete(rankings).where(*of_key))
            else:
                renamed = series.replace(text, _in_json(new))
                db.execute(sa.update(rankings).where(*of_key).values(series=renamed))
    return len(rows)


def renamed_series(db: sa.Connection) -> int:
    """Returns how often series were renamed."""
    columns = catalog_rows.c
    renamed = sa.select(columns.number).where(columns.kind == RENAMED, columns.name == "series")
    return db.execute(renamed).scalar() or 0


def _in_json(name: str) -> str:
    """Returns a key as it begins a series of a ranking."""
    return f"[{json.dumps(name, ensure_ascii=False)}, "


def _is_ranking(meter: RankedMeter, key: StretchKey) -> sa.ColumnElement[bool]:
    columns = rankings.c
    return sa.and_(
        columns.grouping == meter.grouping,
        columns.meter == meter.meter.number,
        columns.width_s == key.width_s,
        columns.begin_s == key.begin_s,
    )


def _unsettled(db: sa.Connection) -> list[ChangedRow]:
    """Returns the rows of quarters that may have to be ranked, the newest first."""
    columns = changed_quarters.c
    is_settled = sa.and_(*(columns[name] == value for name, value in zip(KEY_COLUMNS, OF_DAYS, strict=True)))
    rows = sa.select(columns.quarter_s, *(columns[name] for name in KEY_COLUMNS), columns.changes)
    rows = rows.where(~is_settled).order_by(columns.quarter_s.desc())
    found = (ChangedRow(row[0], (row[1], row[2], row[3]), row[4]) for row in db.execute(rows))
    quarters: set[int] = set()
    changed = []
    for row in found:
        quarters.add(row.quarter_s)
        if len(quarters) > QUARTERS_AT_ONCE:
            break
        changed.append(row)
    return changed


def _changed_stretches(rows: Sequence[ChangedRow]) -> list[StretchKey]:
    keys = {
        key for row in rows for key in _stretches_of(row.quarter_s)[2 if row.partition == OF_HOURS else 0 :]
    }
    return sorted(keys)


def _stretches_of(quarter_s: int) -> list[StretchKey]:
    """Returns the quarter, its hour and its day."""
    return [StretchKey(width_s, bucket_start_s(quarter_s, width_s)) for width_s in sorted(STEP_S)]


def _join_changes(db: sa.Connection, rows: Sequence[ChangedRow], into: PartitionKey) -> int:
    """Joins rows into those of `into`, and returns their number; the sum of each quarter stays.

    Rows that a flush holds, or has changed meanwhile, stay as they are: what they count is not ranked.
    """
    columns, seen = changed_quarters.c, set(rows)
    quarters_s = sorted({row.quarter_s for row in rows})
    statement = sa.select(columns.quarter_s, *(columns[name] for name in KEY_COLUMNS), columns.changes)
    statement = statement.where(is_among(db.dialect.name, columns.quarter_s, quarters_s))
    statement = statement.order_by(*changed_quarters.primary_key).with_for_update(skip_locked=True)
    held = [ChangedRow(row[0], (row[1], row[2], row[3]), row[4]) for row in db.execute(statement)]
    held = [row for row in held if row in seen]
    if not held:
        return 0
    key = tuple(changed_quarters.primary_key.columns)
    keys = [(row.quarter_s, *row.partition) for row in held]
    for parameters in in_parts(db.dialect.name, key, keys):
        db.execute(delete_given(db.dialect.name, key), parameters)
    changes: Counter[int] = Counter()
    for row in held:
        changes[row.quarter_s] += row.changes
    add_changes(db, changes, into)
    return len(held)
