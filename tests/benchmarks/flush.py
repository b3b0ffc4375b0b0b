"""Cost of a flush of 10,000 touched callers with its judgement, compared with a bare upsert of the same rows.

Measured with few and with a million known callers.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from analyzer.flush.pipeline import Pipeline
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine, writing
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.database.row_parameters import as_parameters, rows_given
from analyzer.kernel.model import CountRow, DrainedCounts, Gap, Lag, Partition, PartitionProgress
from analyzer.kernel.tables.schema import buckets, metadata, totals
from analyzer.plan.meters import DAY_S, REQUESTS
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Quota
from analyzer.plan.proposals import Agreement
from analyzer.plan.windows import Calendar
from tests.benchmarks.servers import Servers
from tests.support.stored_counts import tables_of

TOUCHED = 10_000
KNOWN = 1_000_000
PART = Partition("cluster", "topic", 0, "access-log", "access-log")
MINUTE_S = 1_760_000_040
DAY_START_S = MINUTE_S - MINUTE_S % DAY_S

PLAN = Plan(
    groupings=("caller",),
    meters=(REQUESTS,),
    policies=(Quota("daily", limit=10**12, window=Calendar("day", "UTC")),),
)


def copy_of(table: sa.Table, fillfactor: int) -> sa.Table:
    columns = (sa.Column(c.name, c.type, primary_key=c.primary_key, autoincrement=False) for c in table.c)
    return sa.Table(f"bare_{table.name}", sa.MetaData(), *columns, postgresql_with={"fillfactor": fillfactor})


# What a flush writes of each; columns that it leaves out are null.
BUCKET_COLUMNS = ("grouping", "page", "width_s", "bucket_s", "key", "resource", "value_0")
TOTAL_COLUMNS = ("sum", "window_s", "key", "resource", "used", "next", "plan")
BUCKETS, TOTALS = copy_of(buckets, 70), copy_of(totals, 50)  # as ours


class Prepared:
    """Stands where the counter and the source stand: the same progress and rows each time."""

    def __init__(self) -> None:
        self.next = 0
        self.rows: Sequence[CountRow] = ()

    def drain(self) -> DrainedCounts:
        start, self.next = self.next, self.next + len(self.rows)
        return DrainedCounts(
            [PartitionProgress(PART, start, self.next, len(self.rows), len(self.rows))],
            tables_of(self.rows),
            (),
        )

    def positions(self) -> dict[Partition, int]:
        return {}

    def stopped(self) -> dict[Partition, Gap]:
        return {}

    def acknowledge(self, stored: Mapping[Partition, int]) -> None: ...


def run(servers: Servers, touched: int = TOUCHED, known: int = KNOWN, rounds: int = 30) -> None:
    took = {callers: _measure(servers, touched, callers, rounds) for callers in (touched, known)}
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"a flush that touches {touched:,} callers, ms, median of {rounds} (p90); resident {rss_mb:.0f} MB")
    for callers, (flushes, counts, all_rows) in took.items():
        print(
            f"  {callers:9,} known: flush {_told(flushes)}"
            f"; bare upsert of its buckets {_told(counts)}, ratio {median(flushes) / median(counts):.2f}"
            f"; of its buckets and totals {_told(all_rows)}, ratio {median(flushes) / median(all_rows):.2f}"
        )
    grew = [median(many) / median(few) for many, few in zip(took[known], took[touched], strict=True)]
    print(
        f"  {known:,} known / {touched:,} known: flush {grew[0]:.2f},"
        f" bare upserts {grew[1]:.2f}, {grew[2]:.2f}"
    )


def _told(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1000:.0f} ({sorted(seconds)[len(seconds) * 9 // 10] * 1000:.0f})"


def _measure(
    servers: Servers, touched: int, known: int, rounds: int
) -> tuple[list[float], list[float], list[float]]:
    url = servers.postgres.new_database()
    upgrade(url)
    engine = open_engine(url)
    for table in (BUCKETS, TOTALS):
        table.create(engine)
    prepared = Prepared()
    store = SqlStore(engine, "bench")
    pipeline = Pipeline(prepared, prepared, store, Agreement.of(store.activate(PLAN), PLAN), time.monotonic)  # type: ignore[arg-type]  # what flush() asks of them
    store.begin(PART, 0)
    for first in range(0, known, touched):
        prepared.rows = _rows(range(first, first + touched))
        pipeline.flush({})
        _upsert(engine, prepared.rows, totals_too=True)
    _settle(engine)
    chance = random.Random(1)
    acts: list[Callable[[], object]] = [
        lambda: pipeline.flush({PART: Lag(0, 0.0)}),
        lambda: _upsert(engine, prepared.rows, totals_too=False),
        lambda: _upsert(engine, prepared.rows, totals_too=True),
    ]
    took: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(rounds):
        prepared.rows = _rows(chance.sample(range(known), touched))
        in_turn = list(zip(took, acts, strict=True))
        chance.shuffle(in_turn)  # the later ones find warm caches
        for times_s, act in in_turn:
            began_s = time.perf_counter()
            act()
            times_s.append(time.perf_counter() - began_s)
    engine.dispose()
    return took


def _rows(callers: Collection[int]) -> list[CountRow]:
    return [
        CountRow("caller", f"api_key:acct-{n:07}", "", "requests", 60, MINUTE_S, 3, 0)
        for n in sorted(callers)
    ]


def _upsert(engine: sa.Engine, rows: Sequence[CountRow], *, totals_too: bool) -> None:
    with writing(engine) as db:
        bucket_rows = [(1, 0, row.width_s, row.bucket_s, row.key, "", row.value) for row in rows]
        _add(db, BUCKETS, "value_0", BUCKET_COLUMNS, bucket_rows)
        if totals_too:
            total_rows = [(1, DAY_START_S, row.key, "", row.value, 10**12, 1) for row in rows]
            _add(db, TOTALS, "used", TOTAL_COLUMNS, total_rows)


def _add(
    db: sa.Connection, table: sa.Table, summed: str, names: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    columns = [table.c[name] for name in names]
    added = insert(table)
    added = added.from_select(list(names), sa.select(rows_given("postgresql", columns)))
    statement = added.on_conflict_do_update(
        index_elements=table.primary_key, set_={summed: table.c[summed] + added.excluded[summed]}
    )
    db.execute(statement, as_parameters("postgresql", columns, rows))


def _settle(engine: sa.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        for table in (*metadata.tables, BUCKETS.name, TOTALS.name):
            db.exec_driver_sql(f"vacuum analyze {table}")
        db.exec_driver_sql("checkpoint")
