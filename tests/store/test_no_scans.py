"""No statement of a running analyzer reads the whole table of buckets or of totals.

At thirty million rows a scan takes seconds, and once stopped counting. The test records every statement that
the product executes on a database with many rows, and asks the database for its plan of execution.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.audit.audit_outcomes import DayAudits
from analyzer.billing.audit.examined_days import examine_day, examine_digests
from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_rows import add_day
from analyzer.billing.reports.day_report import read_report, report_rows
from analyzer.billing.reports.day_status import day_statuses
from analyzer.billing.reports.usage_amounts import COUNTED, UsagePart, part_total, usage_amounts, usage_parts
from analyzer.callers.applied_facts import fact_origins
from analyzer.callers.caller_changes import OverrideRequest, add_override, caller_profile, set_callers
from analyzer.callers.caller_standing import caller_standing
from analyzer.config.settings import load
from analyzer.counting.counter_state import add_ids_of_retry
from analyzer.counting.repeated_records import kept_ids, repeated_records
from analyzer.counting.usage import UsageQuery, is_counted, usage_rows
from analyzer.counting.usage_windows import calendar_rows, counted_range, recent_keys, was_counted
from analyzer.faces.signals.doctor.examination import examine
from analyzer.faces.signals.status import installation_status
from analyzer.flush.sql_store import SqlStore
from analyzer.forecast.simulation.policy_simulation import known_locks, simulate
from analyzer.gates.gate_reports import known_among
from analyzer.judging.caller_limits import Profile, Subject
from analyzer.judging.kinds.compared import judged_sum
from analyzer.judging.locks.lock_outcomes import lock_outcomes
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget, clear_locks, set_locks
from analyzer.kernel.by import By
from analyzer.kernel.database.engine import open_engine, reading, without_scans, writing
from analyzer.kernel.database.partition_keys import key_values, partition_values
from analyzer.kernel.database.revisions import head
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.model import (
    CounterState,
    CountRow,
    DrainedCounts,
    FactRun,
    IdBlob,
    IdState,
    Moment,
    PartitionProgress,
    Series,
    StatedFacts,
    Verdict,
)
from analyzer.kernel.tables.counter_tables import event_ids
from analyzer.kernel.tables.schema import disbelieved, lock_history, metadata, traffic_samples
from analyzer.maintenance.audit import audit
from analyzer.plan.catalog import load as load_catalog
from analyzer.plan.mapping import SourceMapping, TextField
from analyzer.plan.meters import DAY_S, DUPLICATES, MINUTE_S, Meter
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Brake, CapacityShare, Grace, LoadShare, Quota, RollingQuota, Surge
from analyzer.plan.windows import Calendar, Rolling
from gatekeeper.model import Clear, Lock, Set
from tests.store.flushing import PART, now_s, publish
from tests.support.stored_counts import put_counts, tables_of
from tests.support.upkeep import Upkeep

CALLERS, MINUTES = 100, 150  # of each day
KEY = key_values(PART)
LARGE = ("buckets", "totals", "day_counts", "lock_history", "disbelieved")
# Overrides, of at most 100,000 rows, are read whole where ranges are looked up, and where one is added.
OF_JUDGEMENTS = (
    *("slots_0", "slots_1", "slots_2", "postponed", "holds", "notices", "callers", "refills"),
    *("overrides", "directory_versions", "record_facts", "hold_offs"),
)
DROPPED = 30_000  # number of a sum that no plan has
BY_HAND = By("operator", "a mistake")
ROWS = 20_000  # of each of these tables
METERS = [Meter("slowest", "took", "max")]
DAILY, MONTHLY = Quota("daily", 10**6, Calendar("day")), Quota("monthly", 10**6, Calendar("month"))
BY_RESOURCE = Quota("export", 10**6, Calendar("day"), per="caller+resource")
PLAN = make_plan([], METERS, [DAILY, BY_RESOURCE])
NEIGHBOUR = LoadShare("neighbour", 400_000, 50, Rolling(60), 0, 200_000, per="caller+resource")
JUDGING_PLAN = make_plan(
    [],
    [],
    [
        DAILY,
        NEIGHBOUR,
        CapacityShare("overload", 60, 50, Rolling(120), 0, 750_000, per="caller+resource"),
        Surge("flood", 50, Rolling(60), (600, 3600)),
        RollingQuota("any-ten-days", 80, Rolling(10 * DAY_S), notify=(500, 1_000), grace=Grace(time_s=900)),
        Quota("late", 80, Calendar("week"), notify=(500,), grace=Grace(time_s=900)),
        Quota("subscribed", 80, Calendar("week", "UTC", ("anchor",)), per="caller+resource"),
    ],
    {"log": SourceMapping(fields={"status": TextField(("status",))})},
)
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

    def about(self, tables: Sequence[str]) -> Iterator[tuple[str, Any, list[str]]]:
        """Yields text, parameters, and the settings of the transaction."""
        for text, (parameters, settings) in self.seen.items():
            if re.search(rf"\b({'|'.join(tables)})\b", text):
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
    gather_statistics(engine)


def gather_statistics(engine: sa.Engine) -> None:
    """Has the database look at all tables, for as long as that takes on a loaded machine."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        if db.dialect.name == "postgresql":
            db.exec_driver_sql("set statement_timeout = 0")
        db.exec_driver_sql("analyze")
        db.detach()  # the product's connections have a bound on statements


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
        Verdict(PART, "daily", name, at_s, *[at_s - 60 * (int(name[5:]) % 3)] * 2,
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
    SqlStore(engine, "here").activate(make_plan([], METERS, [DAILY, MONTHLY, BY_RESOURCE]))
    upkeep = Upkeep(engine, str, lambda: 0.0)
    steps: list[Callable[[], object]] = [
        upkeep.continue_activation,
        upkeep.prune,
        lambda: upkeep.roll_up(40 * DAY_S, 400 * DAY_S),
        lambda: upkeep.fold(5, 40 * DAY_S),
        upkeep.prove_day,
        upkeep.repair_totals,
    ]
    for step in steps:
        while step():
            pass
    upkeep.end_locks()
    known_among(engine, ["user:001", "user:eve"])
    for caller in ("user:001", "user:eve"):
        caller_standing(engine, caller)
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
    simulate_policies(engine, today_s)
    close_a_day(engine, today_s)


def close_a_day(engine: sa.Engine, today_s: int) -> None:
    """Closes yesterday, counts some of it later, and reads its report."""
    with writing(engine) as db:
        add_day(db, "UTC", today_s - DAY_S)
    billing = Billing(grace_s=0.0, groupings=("caller", "caller+resource"))
    wall_ms = (today_s + DAY_S) * 1000
    ends = dict.fromkeys([PART], 0)
    assert DayClosing(engine, billing, lambda _: ends, str, lambda: wall_ms).step() == 1
    store = SqlStore(engine, "here")
    version, by_plan = store.active_plan()
    with store.transaction() as tx:
        now = tx.check_plan(by_plan, version)
        rows = [CountRow("caller", "user:001", "", "requests", MINUTE_S, today_s - 600, 1, 0)]
        tx.apply(by_plan, version, DrainedCounts([], tables_of(rows), []), now)
    [status, _] = day_statuses(engine)
    report = read_report(engine, "UTC", status.day.date, status.day.date, "caller")
    assert status.adjusted == 1
    assert len(list(report_rows(engine, report))) == CALLERS
    examine_day(engine, status.day, [DigestKey()])
    examine_digests(engine, [DigestKey()])
    DayAudits(engine, [DigestKey()], "here").step()


def simulate_policies(engine: sa.Engine, today_s: int) -> None:
    """Simulates policies that few callers reach, and one that all reach: looked up, and read in one scan."""
    week = RollingQuota("rolling", 200, Rolling(7 * DAY_S))
    for policy in (Quota("daily", 100, Calendar("day")), week, Quota("hourly", 5, Calendar("hour"))):
        found = simulate(engine, [policy], today_s - 2 * DAY_S)
        assert found.of[policy].series
        known_locks(engine, policy, today_s - 2 * DAY_S)


def plan_of_execution(db: sa.Connection, text: str, parameters: Any) -> str:
    if db.dialect.name == "postgresql":
        with db.connection.cursor() as cursor:
            cursor.execute(f"explain {text}", parameters)
            return "\n".join(row[0] for row in cursor.fetchall())
    return "\n".join(str(row[3]) for row in db.exec_driver_sql(f"explain query plan {text}", parameters))


# The first column of each key. Without a condition on it, PostgreSQL reads an index from end to end.
LEADING = {"buckets": '"grouping" =', "totals": "sum ="}
INDEX_SCAN = re.compile(
    r"Index (?:Only )?Scan[^\n]* on (buckets|totals)\b[^\n]*(?:\n\s+Index Cond: ([^\n]*))?"
)
# On SQLite, of a statement that is given series: it would read those that are not given, too.
OF_ALL_SERIES = re.compile(
    r"SEARCH (?:slots_\d|totals|distinct_values)\b[^\n]*\(sum=\?(?: AND window_s=\?)?\)"
)
BITMAP = re.compile(r"Bitmap Index Scan on pk_(buckets|totals)\b[^\n]*(?:\n\s+Index Cond: ([^\n]*))?")


def reads_a_whole_index(planned: str) -> bool:
    found = [*INDEX_SCAN.finditer(planned), *BITMAP.finditer(planned)]
    return any(LEADING[match[1]] not in (match[2] or "") for match in found)


def scans(engine: sa.Engine, statements: Statements, tables: Sequence[str] = LARGE) -> list[str]:
    """Returns the statements that would read a whole table, with the database's plan."""
    found = []
    scan = re.compile(rf"(Seq Scan on|SCAN) ({'|'.join(tables)})\b(?! USING)")
    for text, parameters, settings in statements.about(tables):
        with engine.connect() as db:
            for setting in settings:
                db.exec_driver_sql(setting)
            planned = plan_of_execution(db, text, parameters)
            db.rollback()
        whole_index = reads_a_whole_index(planned) or ("json_each" in text and OF_ALL_SERIES.search(planned))
        # day_counts has a row per partition and day; the reports read all days.
        if whole_index or any(match[2] != "day_counts" for match in scan.finditer(planned)):
            found.append(f"{text}\n{planned}")
    return found


def test_no_statement_scans_buckets_or_totals(
    engine: sa.Engine, watched: sa.Engine, statements: Statements, tmp_path: Path
) -> None:
    fill(engine)
    do_everything(watched, tmp_path)
    about = [text for text, *_ in statements.about(LARGE)]
    assert len(about) > 20, "the statements were not recorded"
    assert scans(engine, statements) == []


def test_a_brake_looks_up_the_requests_of_the_series_that_are_locked(
    engine: sa.Engine, watched: sa.Engine, statements: Statements
) -> None:
    fill(engine)
    before_ms = (now_s(engine) - 400) * 1000
    with engine.begin() as db:
        db.execute(sa.insert(traffic_samples).values(at_ms=before_ms, counted=0))
    few = Quota("few", 10, Calendar("year"), brake=Brake(callers=5, traffic=900_000))
    SqlStore(watched, "here").activate(make_plan([], METERS, [DAILY, BY_RESOURCE, few]))
    while Upkeep(watched, str).continue_activation():
        pass
    asked = [text for text, *_ in statements.about(["buckets"]) if "sum(buckets.value_" in text]
    assert len(asked) == 1, "the requests of all series, in one statement"
    assert scans(engine, statements) == []


def test_ids_are_stored_and_forgotten_without_reading_those_of_other_partitions(
    engine: sa.Engine, watched: sa.Engine, statements: Statements
) -> None:
    fill(engine)
    SqlStore(engine, "here").activate(make_plan([], [*METERS, DUPLICATES], [DAILY, BY_RESOURCE]))
    others = [
        partition_values(PART._replace(number=number))
        | {"generation": generation, "number": blob, "began_ms": 0, "hashes": b"12345678"}
        for number in range(1, 40)
        for generation in range(9)
        for blob in range(20)
    ]
    with engine.begin() as db:
        names = set(event_ids.c.keys())
        db.execute(
            sa.insert(event_ids), [{name: row[name] for name in row if name in names} for row in others]
        )
    gather_statistics(engine)
    store = SqlStore(watched, "here")
    store.begin(PART, 0)
    ids = IdState(1, blobs=[IdBlob(3, 0, 0, b"12345678")], forgotten_to=3, kept_ms=1)
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, 0, 5, 5, 5, state=CounterState(ids=ids))], {})
        add_ids_of_retry(tx._db, PART, b"87654321")
    assert store.counter_state(PART).ids is not None
    store.finish([PART])
    repeated_records(watched)
    kept_ids(watched)
    assert len(list(statements.about(["event_ids"]))) >= 4
    assert scans(engine, statements, (*LARGE, "event_ids")) == []


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
    monkeypatch.setattr(
        "analyzer.faces.signals.doctor.examination.open_engine",
        lambda url: statements.watch(open_engine(url)),
    )
    list(examine(load(path)))
    assert statements.seen
    assert scans(engine, statements) == []


def fill_tables_of_judgements(engine: sa.Engine) -> None:
    """Adds many rows of other callers to the tables that judgements read, none of them due."""
    now = now_s(engine)
    later_ms, daily = (now + DAY_S) * 1000, "'caller requests day UTC'"
    with engine.begin() as db:
        number = load_catalog(db).sum_number(judged_sum(NEIGHBOUR))
        insert = {
            **dict.fromkeys(
                OF_JUDGEMENTS[:3],
                "(sum, key, resource, slot_s, value) "
                f"select {number}, k, '/a', {now} - i + i / 60 * 60, 1",
            ),
            "totals": "(sum, window_s, key, resource, used, next, plan, touched_s) "
            f"select {number}, 0, k, '/a', 1, 50, 1, {now} - i",
            "postponed": "(sum, window_s, key, resource, due_ms, is_behind) "
            f"select {number}, 0, k, '/a', {later_ms} + i, 0",
            "holds": "(scope, key, resource, policy, since_ms, seen_ms) "
            f"select 'caller', k, '/a', 'neighbour', {now}000 - i, {now}000 - i",
            "notices": "(policy, sum, key, resource, window_s, threshold, scope, used, \"limit\", until_s, "
            f"detail, at_ms) select 'daily', {daily}, k, '', 0, 500, 'caller', 1, 1, 1, '', {now}000 - i",
            "lock_history": "(scope, key, until_ms, began_ms, resource, policy, ended_ms, cause) "
            f"select 'caller', k, {now}000 - i, 0, '', 'flood', {now}000 - i, 'lapsed'",
            "hold_offs": "(scope, key, resource, policy, until_ms, who, reason, at_ms) "
            f"select 'caller', k, '/a', 'neighbour', {later_ms} + i, '', '', 0",
            "refills": f"(sum, key, window_s, version) select {DROPPED}, k, 0, 0",
            "callers": "(caller, plan, tenant, version) select k, 'free', '', 0",
            "overrides": "(id, kind, subject_kind, subject, policy, amount, from_ms, state, origin, "
            "reason, who, at_ms, version) select k, 'limit', 'caller', k, 'daily', 9, 0, "
            "case when i < 5000 then 'in force' else 'ended' end, 'command', '', '', 0, 0",
            "directory_versions": f"(version, mark, wide, at_ms) select i + 1, '', 0, {now - ROWS}000 + i",
            "record_facts": '(caller, fact, cluster, topic_id, partition, value, since_ms, "offset") '
            "select k, 'plan', 'cluster', 'topic-id', 0, 'free', 0, 0",
        }  # fmt: skip
        numbers = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {ROWS})"
        named = "(select i, 'user:x' || i as k from n) named"
        for table, rows in insert.items():
            columns, select = rows.split(" select ", 1)
            stated = re.findall(r"\w+", columns)
            others = {
                column.name: repr(column.default.arg)
                for column in metadata.tables[table].columns
                if column.default is not None and column.name not in stated
            }
            columns = ", ".join([columns.strip("()"), *others])
            select = ", ".join([select, *others.values()])
            db.exec_driver_sql(f"insert into {table} ({columns}) {numbers} select {select} from {named}")
    gather_statistics(engine)


def judge_everything(engine: sa.Engine) -> None:
    """Executes judgements of every kind: by flushes, by the warden, and by changes of limits."""
    # By a clock that stands, steps have as many rows as they may; a busy machine would need thousands.
    store, upkeep = SqlStore(engine, "here"), Upkeep(engine, str, lambda: 0.0)
    version, plan = store.active_plan()
    at_s = now_s(engine)
    counted = [("caller", ""), ("caller+resource", "/a")]
    rows, slots = (
        [
            CountRow(grouping, key, resource, "requests", width_s, at_s - at_s % width_s, value, 0)
            for grouping, key, resource, value in (
                *((grouping, f"user:{n}", resource, 100) for n in range(3) for grouping, resource in counted),
                *extra,
            )
        ]
        for width_s, extra in ((MINUTE_S, []), (5, [("resource", "/a", "", 150)]))
    )
    stated = StatedFacts(PART, ("plan",), {"user:2": [FactRun("pro", Moment(0, 0), is_first=True)]}, {})
    for _ in range(2):
        with store.transaction() as tx:
            now = tx.check_plan(plan, version)
            drained = DrainedCounts([], tables_of(rows), [], slots=tables_of(slots), facts=[stated])
            tx.apply(plan, version, drained, now)
    assert upkeep.apply_facts().rows == 1
    assert fact_origins(engine, "user:2")[0].value == "pro"
    assert upkeep.judge_waiting().rows == 3, "the shares are not compared"
    set_callers(engine, {"user:1": Profile("pro", anchor="2026-01-31")}, "operator", "", str)
    for _ in range(2):  # of forty that are alike where the table is large: its rows are of a dropped sum
        upkeep.refill_totals()
    asked = OverrideRequest("limit", Subject("caller", "user:2"), "daily", 50)
    add_override(engine, asked, "operator", "", str)
    upkeep.end_locks()
    upkeep.change_overrides()
    of_user = [LockTarget("caller", "user:2")]
    set_locks(engine, of_user, 60_000, Effect(), BY_HAND, str)
    clear_locks(engine, of_user, None, None, BY_HAND, str)
    set_locks(engine, of_user, 60_000, Effect(), BY_HAND, str)
    assert list(lock_outcomes(engine, (at_s + 30) * 1000))
    for caller in ("user:2", "user:eve", "address:192.0.2.1"):
        assert caller_standing(engine, caller).uses
    caller_profile(engine, "user:1")
    installation_status(engine, head())
    while upkeep.prune():
        pass


def test_no_judgement_scans_what_it_reads(
    engine: sa.Engine, watched: sa.Engine, statements: Statements
) -> None:
    fill(engine)
    SqlStore(engine, "here").activate(JUDGING_PLAN)
    upkeep = Upkeep(engine, str)
    while upkeep.continue_activation():
        pass
    fill_tables_of_judgements(engine)
    judge_everything(watched)
    tables = ("totals", "buckets", "lock_history", *OF_JUDGEMENTS)
    about = " ".join(text for text, *_ in statements.about(tables))
    used = {table.rstrip("_012") for table in tables}  # one of the tables of slots suffices
    assert [table for table in sorted(used) if table not in about] == [], "these tables were not used"
    assert scans(engine, statements, tables) == []


def test_a_statement_that_scans_is_found(
    engine: sa.Engine, watched: sa.Engine, statements: Statements
) -> None:
    fill(engine)
    with watched.connect() as db:
        db.execute(sa.text("select count(*) from buckets where width_s = 60 and bucket_s < 0"))
    assert len(scans(engine, statements)) == 1


def test_a_page_of_a_hand_over_is_read_by_its_key(
    engine: sa.Engine, watched: sa.Engine, statements: Statements
) -> None:
    fill(engine)
    close_a_day(engine, now_s(engine) // DAY_S * DAY_S)
    gather_statistics(engine)
    [status, booked] = day_statuses(engine)
    [part] = usage_parts(engine, "UTC", [status.day.date], "caller", "requests", COUNTED)
    late = UsagePart(booked.day, "caller", "requests", "sum", "late")
    found = list(usage_amounts(engine, part))
    statements.seen.clear()
    assert len(list(usage_amounts(watched, part, found[9].place))) == CALLERS - 10
    assert list(usage_amounts(watched, late, (status.day.id, "", ""))) != []
    with reading(watched) as db:
        without_scans(db)
        assert part_total(db, part).amounts == CALLERS
        assert part_total(db, part, found[9].place).amounts == CALLERS - 10
        assert part_total(db, late, (status.day.id, "", "")).amounts >= 1
    seen = list(statements.about(("frozen_counts", "adjustments")))
    assert len(seen) >= 3
    for text, parameters, settings in seen:
        with engine.connect() as db:
            for setting in settings:
                db.exec_driver_sql(setting)
            planned = plan_of_execution(db, text, parameters)
            db.rollback()
        assert not re.search(r"(Seq Scan on|SCAN) (frozen_counts|adjustments)\b(?! USING)", planned), planned
        if "ORDER BY" in text and "frozen_counts" in text:
            assert "TEMP B-TREE" not in planned, planned
            assert "(reference,resource)>(?,?)" in planned or "(ROW(reference, resource) > ROW(" in planned


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
    ((text, parameters, _),) = [seen for seen in statements.about(LARGE) if "UNION ALL" in seen[0]]
    with engine.connect() as db:
        planned = plan_of_execution(db, text, parameters)
    searches = [line for line in planned.splitlines() if "SEARCH buckets" in line]
    assert len(searches) == 3, planned  # minutes, quarters of an hour, days
    assert all("bucket_s=? AND key=?" in line for line in searches), planned
