"""No statement of a running analyzer reads the whole table of buckets or of totals.

At thirty million rows a scan takes seconds, and once stopped counting. The test records every statement that
the product executes on a database with many rows, and asks the database for its plan of execution.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.core.counting.meters import DAY_S, MINUTE_S, Meter
from analyzer.core.judging.plan import plan_of
from analyzer.core.judging.policies import Quota
from analyzer.core.judging.windows import Calendar
from analyzer.core.model import CountRow, DrainedCounts, PartitionProgress, Series, Verdict
from analyzer.doctor import examine
from analyzer.store.database.engine import open_engine
from analyzer.store.database.partition_keys import key_row_of
from analyzer.store.database.schema import disbelieved, lock_history
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.reports.audit import audit
from analyzer.store.reports.gate_reports import known_among
from analyzer.store.reports.status import installation_status
from analyzer.store.reports.usage import UsageQuery, is_counted, usage_rows
from analyzer.store.reports.usage_windows import calendar_rows, counted_range, recent_keys, was_counted
from analyzer.store.transaction.sql_store import SqlStore
from gatekeeper.model import Clear, Lock, Set
from tests.store.flushing import PART, now_s, publish
from tests.support.stored_counts import put_counts, tables_of

CALLERS, MINUTES = 100, 150  # of each day
KEY = key_row_of(PART)
LARGE = ("buckets", "totals", "day_counts", "lock_history", "disbelieved")
METERS = [Meter("slowest", "took", "max")]
DAILY, MONTHLY = Quota("daily", 10**6, Calendar("day")), Quota("monthly", 10**6, Calendar("month"))
BY_RESOURCE = Quota("export", 10**6, Calendar("day"), per="caller+resource")
PLAN = plan_of([], METERS, [DAILY, BY_RESOURCE])
CONFIGURATION = """
[database]
url = "URL"
[[sources]]
topic = "access-log"
[sources.fields]
time = { path = "ts", unit = "s" }
user = "user"
"""


class Statements:
    """Every statement that engines execute, with its parameters."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def watch(self, engine: sa.Engine) -> sa.Engine:
        sa.event.listen(engine, "begin", lambda db: db.info.pop("settings", None))
        sa.event.listen(engine, "before_cursor_execute", self._note)
        return engine

    def _note(self, db: Any, _cursor: Any, text: str, parameters: Any, _context: Any, many: bool) -> None:
        if text.startswith("set local enable"):
            db.info.setdefault("settings", []).append(text)
        if re.match(r"\s*(with|select|insert|update|delete)\b", text, re.IGNORECASE):
            self.seen.setdefault(text, (parameters[0] if many else parameters, db.info.get("settings", [])))

    def about_large_tables(self) -> Iterator[tuple[str, Any, list[str]]]:
        """Yields text, parameters, and the settings of the transaction."""
        for text, (parameters, settings) in self.seen.items():
            if re.search(rf"\b({'|'.join(LARGE)})\b", text):
                yield text, parameters, settings


@pytest.fixture
def statements() -> Statements:
    return Statements()


@pytest.fixture
def watched(new_engine: Callable[[], sa.Engine], statements: Statements) -> sa.Engine:
    return statements.watch(new_engine())


def fill(engine: sa.Engine) -> None:
    """Some ten thousand buckets of the past days, some of them old, and their totals."""
    SqlStore(engine, "here").activate(PLAN)
    today_s = now_s(engine) // DAY_S * DAY_S
    with engine.begin() as db:
        for days in (0, 1, 50):
            put_counts(
                db,
                [
                    CountRow(
                        grouping,
                        f"user:{n:03}",
                        resource,
                        "requests",
                        MINUTE_S,
                        today_s - days * DAY_S + 60 * m,
                        1,
                        0,
                    )
                    for grouping, resource in (("caller", ""), ("caller+resource", "/a"))
                    for n in range(CALLERS)
                    for m in range(MINUTES if grouping == "caller" else 20)
                ],
            )
        for width_s, days in ((900, 500), (DAY_S, 3_000)):
            put_counts(
                db, [CountRow("caller", "user:000", "", "requests", width_s, today_s - days * DAY_S, 9, 0)]
            )
        fill_history(db, today_s)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.exec_driver_sql("analyze")


def fill_history(db: sa.Connection, today_s: int) -> None:
    """Adds the ended locks of some days, and decisions about verdicts."""
    ended = {"scope": "caller", "resource": "", "policy": "daily", "cause": "lapsed"}
    decided = KEY | {"next": 9, "policy": "daily", "caller": "user:001", "series": "[]", "requests": 1}
    locks, decisions = [], []
    for day in range(1, 30):
        began_s = today_s - day * DAY_S
        decisions += [
            decided | {"begin": n, "series_digest": f"{n}", "logged_s": began_s, "bucket_s": began_s}
            for n in range(200)
        ]
        until_ms = (began_s + DAY_S) * 1000
        locks += [
            ended
            | {"key": f"user:{n:03}", "began_ms": began_s * 1000, "until_ms": until_ms, "ended_ms": until_ms}
            for n in range(200)
        ]
    db.execute(sa.insert(lock_history), locks)
    db.execute(sa.insert(disbelieved), decisions)
    db.execute(sa.update(lock_history).where(lock_history.c.scope == "").values(began_ms=0))


def verdicts_at(at_s: int) -> list[Verdict]:
    """Returns verdicts of many callers, without a lock."""
    names = [f"user:{n:03}" for n in range(1, 100, 2)]
    return [
        Verdict(PART, "daily", name, at_s, at_s - 60 * (int(name[5:]) % 3),
                (Series("caller", name, ""), Series("caller+resource", name, "/a")), (1, 0))
        for name in names
    ]  # fmt: skip


def flush_twice(engine: sa.Engine) -> None:
    store = SqlStore(engine, "here")
    version, by_plan = store.active_plan()
    store.begin(PART, 0)
    at_s = now_s(engine) // MINUTE_S * MINUTE_S
    for start in (0, 200):
        rows = [
            CountRow(grouping, f"user:{n:03}", resource, meter, MINUTE_S, at_s - 60 * (n % 3), n + 1, n % 2)
            for n in range(100)
            for grouping, resource in (("caller", ""), ("caller+resource", "/a"))
            for meter in ("requests", "slowest")
        ]
        with store.transaction() as tx:
            tx.move_offsets([PartitionProgress(PART, start, start + 200, 200, 200)], {})
            now = tx.check_plan(by_plan, version)
            moved = [PartitionProgress(PART, start, start)]
            counted = DrainedCounts(moved, tables_of(rows), [], verdicts_at(at_s))
            tx.apply(by_plan, version, counted, now)
        lock = Lock("caller", "user:001", "daily", now, now + timedelta(hours=1))
        with store.transaction() as tx:
            publish(tx, [Set(lock)])
            publish(tx, [Clear(lock.at)])


def do_everything(engine: sa.Engine, tmp_path: Path) -> None:
    """Executes all that an analyzer, the warden, the feed, the doctor and the readers do."""
    flush_twice(engine)
    SqlStore(engine, "here").activate(plan_of([], METERS, [DAILY, MONTHLY, BY_RESOURCE]))
    upkeep = SqlUpkeep(engine, "here", str)
    steps: list[Callable[[], int]] = [
        upkeep.continue_activation,
        upkeep.prune,
        upkeep.move_old,
        lambda: upkeep.roll_up(40 * DAY_S, 400 * DAY_S),
        lambda: upkeep.fold(5, 40 * DAY_S),
        lambda: upkeep.delete_days(1_830 * DAY_S),
        upkeep.prove_day,
        upkeep.repair_totals,
    ]
    for step in steps:
        while step():
            pass
    upkeep.end_locks()
    known_among(engine, ["user:001", "user:eve"])
    installation_status(engine, "0004")
    is_counted(engine, "caller")
    audit(engine)
    today_s = now_s(engine) // DAY_S * DAY_S
    for query in (
        UsageQuery("caller", DAY_S, key="user:001"),
        UsageQuery("caller", 3600, today_s - 30 * DAY_S, today_s + DAY_S, key="user:001"),
        UsageQuery("caller", 3600, today_s, today_s + 3600),
        UsageQuery("caller", DAY_S, today_s - DAY_S, today_s, meter="requests"),
    ):
        list(usage_rows(engine, query))
    list(
        calendar_rows(engine, UsageQuery("caller", 0, today_s - 30 * DAY_S), Calendar("day", "Europe/Berlin"))
    )
    counted_range(engine, "caller")
    was_counted(engine, "caller", "user:001")
    recent_keys(engine, "caller")


def plan_of_execution(db: sa.Connection, text: str, parameters: Any) -> str:
    if db.dialect.name == "postgresql":
        with db.connection.cursor() as cursor:
            cursor.execute(f"explain {text}", parameters)
            return "\n".join(row[0] for row in cursor.fetchall())
    return "\n".join(str(row[3]) for row in db.exec_driver_sql(f"explain query plan {text}", parameters))


SCAN = re.compile(rf"(Seq Scan on|SCAN) ({'|'.join(LARGE)})\b(?! USING)")

# The first column of each key. Without a condition on it, PostgreSQL reads an index from end to end.
LEADING = {"buckets": '"grouping" =', "totals": "sum ="}
INDEX_SCAN = re.compile(
    r"Index (?:Only )?Scan[^\n]* on (buckets|totals)\b[^\n]*(?:\n\s+Index Cond: ([^\n]*))?"
)
BITMAP = re.compile(r"Bitmap Index Scan on pk_(buckets|totals)\b[^\n]*(?:\n\s+Index Cond: ([^\n]*))?")


def reads_a_whole_index(planned: str) -> bool:
    found = [*INDEX_SCAN.finditer(planned), *BITMAP.finditer(planned)]
    return any(LEADING[match[1]] not in (match[2] or "") for match in found)


def scans(engine: sa.Engine, statements: Statements) -> list[str]:
    """Returns the statements that would read a whole table, with the database's plan."""
    found = []
    for text, parameters, settings in statements.about_large_tables():
        with engine.connect() as db:
            for setting in settings:
                db.exec_driver_sql(setting)
            planned = plan_of_execution(db, text, parameters)
            db.rollback()
        whole_index = reads_a_whole_index(planned)
        # day_counts has a row per partition and day; the reports read all days.
        if whole_index or any(match[2] != "day_counts" for match in SCAN.finditer(planned)):
            found.append(f"{text}\n{planned}")
    return found


def test_no_statement_scans_buckets_or_totals(
    engine: sa.Engine, watched: sa.Engine, statements: Statements, tmp_path: Path
) -> None:
    fill(engine)
    do_everything(watched, tmp_path)
    about = [text for text, *_ in statements.about_large_tables()]
    assert len(about) > 20, "the statements were not recorded"
    assert scans(engine, statements) == []


def test_the_doctor_reads_neither(
    migrated_url: str,
    engine: sa.Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    statements: Statements,
) -> None:
    fill(engine)
    path = tmp_path / "gatelock.toml"
    path.write_text(CONFIGURATION.replace("URL", migrated_url))
    monkeypatch.setattr("analyzer.doctor.open_engine", lambda url: statements.watch(open_engine(url)))
    list(examine(load(path)))
    assert statements.seen
    assert scans(engine, statements) == []


def test_a_statement_that_scans_is_found(
    engine: sa.Engine, watched: sa.Engine, statements: Statements
) -> None:
    fill(engine)
    with watched.connect() as db:
        db.execute(sa.text("select count(*) from buckets where width_s = 60 and bucket_s < 0"))
    assert len(scans(engine, statements)) == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_looks_up_the_rows_of_one_caller(
    engine: sa.Engine, watched: sa.Engine, statements: Statements
) -> None:
    """An interval holds the rows of all callers: reading them took 7 s among 40,000,000 rows.

    PostgreSQL decides by its statistics which of the two costs less.
    """
    fill(engine)
    statements.seen.clear()
    today_s = now_s(engine) // DAY_S * DAY_S
    query = UsageQuery("caller", 3600, today_s - 30 * DAY_S, today_s + DAY_S, key="user:001")
    assert list(usage_rows(watched, query))
    ((text, parameters, _),) = [seen for seen in statements.about_large_tables() if "UNION ALL" in seen[0]]
    with engine.connect() as db:
        planned = plan_of_execution(db, text, parameters)
    searches = [line for line in planned.splitlines() if "SEARCH buckets" in line]
    assert len(searches) == 3, planned  # minutes, quarters of an hour, days
    assert all("bucket_s=? AND key=?" in line for line in searches), planned
