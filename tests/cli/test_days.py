"""`gatelock billing days` and `gatelock billing report`, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.days.day_rows import add_day
from analyzer.billing.days.deleted_days import DayDeletion, DeletedBy
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.jobs.step_sizes import SizedSteps
from analyzer.kernel.model import CountRow, Lag, Partition, PartitionProgress
from analyzer.kernel.tables.billing_tables import days
from analyzer.plan.plan import make_plan
from tests.store.flushing import ACME, ANN, flush, now_s

Gatelock = Callable[..., Any]
PLAN = make_plan([], [], [])
PART = Partition("cluster", "topic-id", 0, "log", "access-log")
DAY_S = 86_400


@pytest.fixture
def configuration() -> str:
    # Its rows have no log that could be counted again.
    return '[billing]\ngrace = 0\nrecount = "never"\n[[sources]]\nfile = "access.log"\nformat = "combined"\n'


@pytest.fixture
def store(engine: sa.Engine) -> SqlStore:
    store = SqlStore(engine, "one:7")
    store.activate(PLAN)
    return store


@pytest.fixture
def date() -> str:
    """Yesterday, as a date."""
    return f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"


def count(store: SqlStore, key: str, value: int, at_s: int) -> None:
    flush(store, PLAN, [CountRow("caller", key, "", "requests", 60, at_s - at_s % 60, value, 0)])


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_day_of_the_past_is_closed_reported_and_corrected(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str, tmp_path: Path
) -> None:
    yesterday_s = now_s(engine) - DAY_S
    count(store, ACME, 5, yesterday_s)
    count(store, ANN, 2, yesterday_s)
    result = gatelock("billing", "report", "day", date, "--final")
    assert (result.exit_code, result.stderr) == (1, f"provisional: {date} (UTC) is not closed\n")
    assert result.stdout == ""
    asked = gatelock("billing", "days", "close", date, "--reason", "counted")
    assert f"closing {date} (UTC) freezes 7 requests of 2 callers for good" in asked.stdout + asked.stderr
    result = gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    assert (result.exit_code, result.stdout) == (0, f"{date} (UTC) is closed: 7 requests of callers\n")
    assert (
        "was closed already"
        in gatelock("billing", "days", "close", "yesterday", "--reason", "counted", "--yes").stdout
    )
    count(store, ACME, 1, yesterday_s)
    text = gatelock("billing", "report", "day", date, "--final").stdout
    assert text.splitlines() == [
        "from,to,zone,caller,meter,unit,value,denied,provisional",
        f"{date},{date},UTC,api_key:acme,requests,,5,0,false",
        f"{date},{date},UTC,user:ann,requests,,2,0,false",
    ]
    result = gatelock(
        "billing", "days", "correct", date, "--caller", ANN, "--amount", "-2", "--reason", "a test"
    )
    assert f"{date} (UTC): user:ann: 2 requests become 0; booked on" in result.stdout
    result = gatelock(
        "billing", "days", "correct", date, "--caller", ANN, "--amount", "-1", "--reason", "a test"
    )
    assert (result.exit_code, result.stderr) == (
        2,
        f"user:ann has 0 requests on {date} (UTC): not so much can be taken\n",
    )
    booked = objects(gatelock("billing", "report", "corrections", "today", "--format", "jsonl"))
    assert [(one["name"], one["value"], one["kind"], one["reason"]) for one in booked] == [
        (ACME, 1, "late", ""),
        (ANN, -2, "correction", "a test"),
    ]
    acts = [one["act"] for one in objects(gatelock("upkeep", "events", "list", "--json"))]
    assert "day corrected" in acts


def test_a_day_whose_rows_were_deleted_says_so(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    old_s = now_s(engine) - 70 * DAY_S
    old = f"{datetime.fromtimestamp(old_s, UTC):%Y-%m-%d}"
    for day, at_s in ((old, old_s), (date, now_s(engine) - DAY_S)):
        count(store, ACME, 5, at_s)
        gatelock("billing", "days", "close", day, "--reason", "counted", "--yes")
    assert "deleted" not in gatelock("billing", "days", "list").stdout
    deletion = DayDeletion(
        engine, DigestKey(), DeletedBy("one:7", 62 * DAY_S), SizedSteps(engine, lambda: 0.0)
    )
    while deletion.step():
        pass
    deleted = {one["day"]: one["deleted"] for one in objects(gatelock("billing", "days", "list", "--json"))}
    assert deleted[date] is None
    assert deleted[old].startswith(f"{datetime.now(UTC):%Y-}")
    assert gatelock("billing", "days", "list").stdout.splitlines()[0].split()[-1] == "deleted"
    [shown] = objects(gatelock("billing", "days", "list", old, "--json"))
    assert (shown["state"], shown["deleted"], shown["partitions"]) == ("closed", deleted[old], [])
    assert "deleted after their retention" in gatelock("billing", "days", "list", old).stdout


def test_a_report_is_written_with_its_manifest(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str, tmp_path: Path
) -> None:
    count(store, ACME, 5, now_s(engine) - DAY_S)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    result = gatelock("billing", "report", f"{date}..{date}", "--format", "jsonl", "--out", "day.jsonl")
    assert result.stdout.startswith("day.jsonl: 1 line, final; sha256 ")
    [line] = (tmp_path / "day.jsonl").read_text().splitlines()
    assert json.loads(line)["value"] == 5
    manifest = json.loads((tmp_path / "day.jsonl.manifest.json").read_text())
    assert manifest["files"][0]["sha256"] in result.stdout
    result = gatelock("billing", "report", "day", date, "--out", "missing/day.csv")
    assert (result.exit_code, result.stderr) == (
        2,
        "--out missing/day.csv: cannot be written: No such file or directory\n",
    )


def test_a_day_that_waits_names_the_partition_and_the_way_out(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    count(store, ACME, 5, now_s(engine) - DAY_S)
    with writing(engine) as db:
        add_day(db, "UTC", now_s_of(date))
    store.begin(PART, 0)
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, 0, 7)], {PART: Lag(3, 3.0 * DAY_S)})
    result = gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    assert result.exit_code == 1
    waits = f"{date} (UTC) waits for access-log[0]: no analyzer has said yet how far it must be counted"
    command = f"gatelock billing days close {date} --zone UTC --without 'access-log[0]' --reason TEXT"
    assert result.stdout.splitlines() == [waits, f"{command}  # close it without this one"]
    listed = gatelock("billing", "days", "list")
    assert listed.exit_code == 1
    assert f"{date} (UTC) waits for access-log[0]" in listed.stdout
    [found] = objects(gatelock("billing", "days", "list", date, "--json"))
    assert found["waits_for"]
    result = gatelock(
        "billing", "days", "close", date, "--without", "access-log[1]", "--reason", "gone", "--yes"
    )
    assert (result.exit_code, result.stderr) == (
        2,
        "--without access-log[1]: the day does not wait for it; it waits for: access-log[0]\n",
    )
    assert (
        gatelock(
            "billing", "days", "close", date, "--without", "access-log[0]", "--reason", "gone", "--yes"
        ).exit_code
        == 0
    )
    shown = gatelock("billing", "days", "list", date).stdout
    assert ": gone" in shown
    assert [one["state"] for one in objects(gatelock("billing", "days", "list", "--json"))] == [
        "closed",
        "open",
    ]


def now_s_of(date: str) -> int:
    return int(datetime.fromisoformat(f"{date}T12:00:00+00:00").timestamp())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("billing days close --reason x tomorrow", "'tomorrow' is not a time: write 2026-11-20,"),
        ("billing days close --reason x today", "is not over"),
        (
            "billing days list 2020-01-01",
            "2020-01-01 (UTC) was never closed; see `gatelock billing days close --help`",
        ),
        (
            "billing days close --reason x yesterday --zone Mars",
            "--zone Mars: write one of [billing] zones: UTC",
        ),
        (
            "billing days correct 2026-11-20 --amount 5 --reason x",
            "--caller: write whose amount is corrected",
        ),
        ("billing report decade", "decade: write day, week, month, period, corrections, or dates such as"),
        ("billing report 2026-11-20..2026-11-01", "the first date is behind the last"),
        ("billing report 2000-01-01..2026-01-01", "a report has at most 3,660 days"),
        ("billing report day --by tenants", "--by 'tenants' is not a grouping"),
        ("billing report day --meter byts", "--meter: byts was never counted; there are requests"),
    ],
)
def test_impossible_arguments_are_refused(
    gatelock: Gatelock, store: SqlStore, arguments: str, why: str
) -> None:
    result = gatelock(*arguments.split())
    assert result.exit_code in (1, 2)
    assert why in result.stderr


def test_an_amount_needs_a_number_in_the_unit_of_the_meter(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    count(store, ACME, 5, now_s(engine) - DAY_S)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    for amount in ("many", "0", "1.5", "2 GiB"):
        result = gatelock(
            "billing", "days", "correct", date, "--caller", ACME, f"--amount={amount}", "--reason", "x"
        )
        assert result.exit_code == 2
        assert f"--amount {amount}: write an amount of requests, such as +500 or -500" in result.stderr


def test_nothing_is_closed_before_anything_was_counted(
    gatelock: Gatelock, engine: sa.Engine, date: str
) -> None:
    result = gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    assert (result.exit_code, result.stderr) == (2, "nothing was counted by caller yet\n")
    with engine.connect() as db:
        assert db.execute(sa.select(days)).all() == []


def test_periods_are_those_of_the_calendar(gatelock: Gatelock, store: SqlStore) -> None:
    for what, when, first, last in (
        ("week", "2026-11-19", "2026-11-16", "2026-11-22"),
        ("month", "2026-02-11", "2026-02-01", "2026-02-28"),
        ("month", "2024-02", "2024-02-01", "2024-02-29"),
    ):
        written = gatelock("billing", "report", what, when, "--out", "r.csv")
        assert written.exit_code == 0
        manifest = json.loads(Path("r.provisional.csv.manifest.json").read_text())
        assert (manifest["from"], manifest["to"], manifest["state"]) == (first, last, "provisional")
