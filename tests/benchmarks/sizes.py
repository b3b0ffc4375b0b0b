"""`make bench-sizes`: the bytes of a row of each large table, indexes included, on both databases.

Rows are written as flushes and closings leave them: keys of 20 characters, in the order of the key.
`ARGS='50000 sqlite'` writes fewer rows on one of the two databases.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.references import store_references
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S
from tests.benchmarks.judge import started_machines

ROWS = 200_000
CALLERS = 1_000
NAMES = """
with recursive found(n) as (select 1 union all select n + 1 from found where n < :callers)
insert into size_callers select n, 'api_key:customer-' || (100 + n) from found
"""


class Case(NamedTuple):
    """Rows of one table: what each has in its columns, for a caller `name`, and a time `t` from 0 on."""

    title: str
    table: str
    columns: str
    values: str


def _buckets(title: str, width_s: int, meters: int, grouping: int = 1, resource: str = "''") -> Case:
    columns = ", ".join(f"value_{at}" for at in range(meters))
    values = ", ".join(f"{1_000 * at + 17} + t % 100" for at in range(meters))
    return Case(
        title,
        "buckets",
        f'"grouping", page, width_s, bucket_s, "key", resource, {columns}',
        f"{grouping}, 0, {width_s}, 1700000000 + t * {width_s}, name, {resource}, {values}",
    )


CASES = (
    _buckets("minutes, one meter", MINUTE_S, 1),
    _buckets("minutes, three meters", MINUTE_S, 3, grouping=2),
    _buckets("minutes, eight meters", MINUTE_S, 8, grouping=3),
    _buckets("minutes by caller+resource, one meter", MINUTE_S, 1, 4, "'/v1/items/{id}'"),
    _buckets("quarters of an hour, one meter", QUARTER_S, 1, grouping=5),
    _buckets("days, one meter", DAY_S, 1, grouping=6),
    Case(
        "totals, a sum and a window",
        "totals",
        'sum, window_s, "key", resource, used, "next", plan',
        "1, 1700000000 + t * 86400, name, '', 5000 + t, 100000, 7",
    ),
    Case(
        "frozen rows of a closed day, three meters",
        "frozen_counts",
        'day, "grouping", page, reference, resource, value_0, denied_0, value_1, denied_1, value_2, denied_2',
        "1 + t, 1, 0, reference, '', 5000 + t, 0, 70000 + t, 0, 123456 + t, 0",
    ),
    Case(
        "locks in the history",
        "lock_history",
        'scope, "key", until_ms, began_ms, resource, policy, ended_ms, cause, action, detail, plan, '
        "used_began, used_ended",
        "'caller', name, 1700000086400 + t * 1000000, 1700000000000 + t * 1000000, '', 'daily', "
        "1700000086400 + t * 1000000, 'lapsed', 'deny', '100,000 requests per day, 100,214 counted', 7, "
        "100000, 100214",
    ),
    Case(
        "runs of jobs",
        "job_runs",
        "job, number, scheduled_ms, began_ms, ended_ms, owner, outcome, rows, error",
        "'prune-rejected', t * 1000 + n, 1700000000000 + t, 1700000000000 + t, 1700000000009 + t, "
        "'analyzer-1:12345', 'done', 5000, ''",
    ),
)


def size_of(db: sa.Connection, table: str) -> int:
    """Returns the bytes of a table and its indexes; of SQLite those of the file."""
    if db.dialect.name == "postgresql":
        return int(db.exec_driver_sql(f"select pg_total_relation_size('{table}')").scalar_one())
    pages = db.exec_driver_sql("pragma page_count").scalar_one()
    return int(pages) * int(db.exec_driver_sql("pragma page_size").scalar_one())


def measure(name: str, url: str, rows: int) -> None:
    """Prints the bytes of a row of each case."""
    upgrade(url)
    engine = open_engine(url, statement_ms=0)
    with engine.begin() as db:
        db.exec_driver_sql("create table size_callers (n bigint, name text, reference text)")
        db.execute(
            sa.text(NAMES.replace("size_callers select n, ", "size_callers (n, name) select n, ")),
            {"callers": CALLERS},
        )
        names = list(db.scalars(sa.text("select name from size_callers order by n")))
        references = store_references(db, names)
        given = [{"name": one, "reference": reference} for one, reference in references.items()]
        db.execute(sa.text("update size_callers set reference = :reference where name = :name"), given)
    print(f"{name}: {rows:,} rows of each, {CALLERS:,} callers")
    for case in CASES:
        with engine.begin() as db:
            before = size_of(db, case.table)
            db.execute(
                sa.text(
                    "with recursive times(t) as (select 0 union all select t + 1 from times where t < :most) "
                    f"insert into {case.table} ({case.columns}) select {case.values} "
                    "from times cross join size_callers order by t, name"
                ),
                {"most": rows // CALLERS - 1},
            )
        with engine.begin() as db:
            print(f"    {case.title:42} {(size_of(db, case.table) - before) / rows:6.0f} B a row", flush=True)
    engine.dispose()


def main(arguments: Sequence[str]) -> None:
    rows = next((int(word) for word in arguments if word.isdecimal()), ROWS)
    chosen = [word for word in arguments if not word.isdecimal()]
    for machine in started_machines():
        if not chosen or machine.name in chosen:
            measure(machine.name, machine.new_url(), rows)


if __name__ == "__main__":
    main(sys.argv[1:])
