"""`gatelock usage`: calendar windows, orders, units, CSV, and its answers to wrong names."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import offsets
from tests.support.stored_counts import put_counts

Gatelock = Callable[..., Any]

QUARTER_S, DAY_S = 900, 86_400


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def add(engine: sa.Engine, key: str, when: str, value: int, **columns: Any) -> None:
    row = CountRow("caller", key, "", "requests", 60, at(when), value, 0)._replace(**columns)
    with engine.begin() as db:
        put_counts(db, [row])


def objects(gatelock: Gatelock, *arguments: str) -> list[dict[str, Any]]:
    result = gatelock("usage", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_month_of_a_zone_is_one_row_for_each_caller(gatelock: Gatelock, engine: sa.Engine) -> None:
    add(engine, "user:ann", "2026-10-31T22:59", 1)  # 23:59 in Berlin
    add(engine, "user:ann", "2026-10-31T23:00", 2)  # November in Berlin
    add(engine, "user:ann", "2026-11-10T08:15", 4, width_s=QUARTER_S)
    add(engine, "user:bob", "2026-11-30T22:59", 8)
    add(engine, "user:bob", "2026-11-30T23:00", 16)  # December in Berlin
    rows = objects(gatelock, "--width", "month", "--zone", "Europe/Berlin")
    assert [(row["bucket"], row["caller"], row["value"]) for row in rows] == [
        ("2026-10-01T00:00:00+02:00", "user:ann", 1),
        ("2026-11-01T00:00:00+01:00", "user:ann", 6),
        ("2026-11-01T00:00:00+01:00", "user:bob", 8),
        ("2026-12-01T00:00:00+01:00", "user:bob", 16),
    ]
    november = objects(
        gatelock, "--width", "month", "--zone", "Europe/Berlin", "--from", "2026-11-01", "--to", "2026-12-01"
    )
    assert [row["value"] for row in november] == [6, 8], "dates are midnights of the zone"
    in_utc = objects(gatelock, "--width", "month")
    assert [(row["bucket"], row["value"]) for row in in_utc] == [
        ("2026-10-01T00:00:00Z", 3),
        ("2026-11-01T00:00:00Z", 4),
        ("2026-11-01T00:00:00Z", 24),
    ]


def test_weeks_begin_on_monday_and_a_day_of_the_clock_change_is_whole(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    add(engine, "user:ann", "2026-10-25T22:30", 1)  # Sunday 23:30 in Berlin, a day of 25 hours
    add(engine, "user:ann", "2026-10-25T23:30", 2)  # Monday
    rows = objects(gatelock, "--width", "week", "--zone", "Europe/Berlin")
    assert [row["bucket"] for row in rows] == ["2026-10-19T00:00:00+02:00", "2026-10-26T00:00:00+01:00"]
    first, second = objects(gatelock, "--width", "day", "--zone", "Europe/Berlin")
    assert (first["bucket"], first["width_s"]) == ("2026-10-25T00:00:00+02:00", 25 * 3600)
    assert (second["value"], second["width_s"]) == (2, DAY_S)


def test_a_day_in_utc_that_lies_in_two_months_of_a_zone_is_a_row_of_its_stretch(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    for day, value in (("2025-10-30", 1), ("2025-10-31", 2), ("2025-11-01", 4)):
        add(engine, "user:ann", day, value, width_s=DAY_S)
    rows = objects(gatelock, "--width", "month", "--zone", "Europe/Berlin")
    assert [(row["bucket"], row["value"], row["width_s"]) for row in rows] == [
        ("2025-10-01T00:00:00+02:00", 1, 31 * DAY_S + 3600),
        ("2025-10-31T01:00:00+01:00", 2, DAY_S),
        ("2025-11-01T00:00:00+01:00", 4, 30 * DAY_S),
    ]
    assert "(86400 s)" in gatelock("usage", "--width", "month", "--zone", "Europe/Berlin").stdout
    assert "s)" not in gatelock("usage", "--width", "month").stdout


def test_rows_are_sorted_by_name_value_and_denied(gatelock: Gatelock, engine: sa.Engine) -> None:
    add(engine, "user:b", "2026-11-01", 5, denied=1)
    add(engine, "user:a", "2026-11-02", 3, denied=9)
    add(engine, "user:b", "2026-11-03", 4, denied=0)
    for width in (["day"], ["day", "--zone", "Europe/Berlin"]):
        for sort, values in (
            ("time", [5, 3, 4]),
            ("name", [3, 5, 4]),
            ("value", [5, 4, 3]),
            ("denied", [3, 5, 4]),
        ):
            rows = objects(gatelock, "--sort", sort, "--width", *width)
            assert [row["value"] for row in rows] == values, (sort, width)
        top = objects(gatelock, "--top", "2", "--width", *width)
        assert [row["value"] for row in top] == [3, 5], "with the denied"
        assert [row["value"] for row in objects(gatelock, "--top", "1", "--sort", "value")] == [5]


THREE_METERS = """
[[sources]]
file = "requests.jsonl"
[sources.fields]
time = { path = "ts", unit = "s" }
user = "user"
busy = { path = "busy", kind = "duration", unit = "s" }
price = { path = "price", kind = "decimal" }
[[meters]]
name = "busy"
sum = "busy"
[[meters]]
name = "price"
sum = "price"
"""

UNITS = """
[[sources]]
file = "access.log"
format = "combined"
caller = "address"
[[meters]]
name = "traffic"
sum = "bytes"
[[policies]]
name = "monthly"
meter = "traffic"
limit = "3 kB"
window = { per = "month" }
action = "tag"
"""


@pytest.mark.parametrize("configuration", [UNITS])
def test_amounts_have_their_unit(gatelock: Gatelock, engine: sa.Engine) -> None:
    now = datetime.now(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    line = f'192.0.2.1 - - [{now}] "GET / HTTP/1.1" 200 1024\n'
    Path("access.log").write_text(line * 4)
    assert gatelock("upkeep", "import", "access.log", "--source", "access.log").exit_code == 0
    head, row, *_ = gatelock("usage", "--meter", "traffic").stdout.splitlines()
    assert head.endswith("traffic (bytes)")
    assert row.endswith("\t4,096")
    (row,) = objects(gatelock, "--meter", "traffic")
    assert (row["value"], row["unit"]) == (4096, "bytes")
    assert "3 kB of traffic per month (UTC), 4 KiB counted" in gatelock("locks", "list").stdout


def test_csv_has_a_header_and_one_line_for_each_row(gatelock: Gatelock, engine: sa.Engine) -> None:
    add(engine, 'user:"a,b"', "2026-11-01", 5, denied=1)
    add(engine, "user:\x1b[2J", "2026-11-01", 6)
    result = gatelock("usage", "--csv")
    header, first, second = csv.reader(result.stdout.splitlines())
    assert header == ["bucket", "caller", "requests", "requests denied", "width_s", "provisional"]
    assert ["2026-11-01T00:00:00Z", 'user:"a,b"', "5", "1", "86400"] in (first[:5], second[:5])
    assert "\x1b" not in result.stdout
    assert gatelock("usage", "--csv", "--json").exit_code == 2


def test_each_meter_is_a_column_of_one_table(gatelock: Gatelock, engine: sa.Engine) -> None:
    file = Path("gatelock.toml")
    file.write_text(f"{file.read_text()}{THREE_METERS}")
    add(engine, "user:ann", "2015-05-17", 1_200, denied=3)
    add(engine, "user:ann", "2015-05-17", 3_600_250_000, meter="busy")
    add(engine, "user:ann", "2015-05-17", 2_500_000, meter="price")
    add(engine, "user:bob", "2015-05-17", 5)
    add(engine, "user:bob", "2015-05-18", 12_000_000, meter="busy")
    head, *rows = gatelock("usage").stdout.splitlines()
    assert head.split("\t") == [
        "bucket", "caller", "requests", "requests denied", "busy (s)", "price"
    ]  # fmt: skip
    assert [row.split() for row in rows] == [
        ["2015-05-17T00:00:00Z", "user:ann", "1,200", "3", "3,600.25", "2.50"],
        ["2015-05-17T00:00:00Z", "user:bob", "5", "0"],
        ["2015-05-18T00:00:00Z", "user:bob", "12.00"],
    ]
    written = list(csv.DictReader(gatelock("usage", "--csv").stdout.splitlines()))
    assert written[0] == {
        "bucket": "2015-05-17T00:00:00Z", "caller": "user:ann", "requests": "1200", "requests denied": "3",
        "busy (microseconds)": "3600250000", "busy denied (microseconds)": "0",
        "price (millionths)": "2500000", "price denied (millionths)": "0",
        "width_s": "86400", "provisional": "false",
    }  # fmt: skip
    assert (written[1]["requests"], written[1]["busy (microseconds)"]) == ("5", "")
    (top,) = csv.DictReader(gatelock("usage", "--csv", "--top", "1").stdout.splitlines())
    assert "price (millionths)" not in top, "an order by amount takes one meter"


def test_a_row_that_may_still_change_is_provisional(gatelock: Gatelock, engine: sa.Engine) -> None:
    """A record may be 35 days late; its partition may be read late besides."""
    now = datetime.now(UTC)
    for days in (0, 34, 38):
        add(engine, "user:ann", (now - timedelta(days=days)).strftime("%Y-%m-%d"), 1)
    assert [row["provisional"] for row in objects(gatelock)] == [False, True, True]
    marks = [" *" in row for row in gatelock("usage").stdout.splitlines()[1:4]]
    assert marks == [False, True, True]
    assert gatelock("usage").stdout.endswith("* provisional: records of this time are still accepted\n")
    kept = gatelock("usage", "--to", (now - timedelta(days=37)).strftime("%Y-%m-%d")).stdout
    assert "provisional" not in kept
    with engine.begin() as db:
        row = {"cluster": "c", "topic_id": "t", "partition": 0, "source": "s", "topic": "t", "next": 9}
        ms = int(now.timestamp() * 1000)
        db.execute(
            sa.insert(offsets).values(**row, beat_ms=ms - 2 * DAY_S * 1000, behind_ms=2 * DAY_S * 1000)
        )
    assert [row["provisional"] for row in objects(gatelock)] == [True, True, True]
    with engine.begin() as db:
        db.execute(sa.update(offsets).values(beat_ms=None))  # not followed any more
    assert [row["provisional"] for row in objects(gatelock)] == [False, True, True]


def test_wrong_names_are_named(gatelock: Gatelock, engine: sa.Engine) -> None:
    add(engine, "api_key:acme", "2026-11-01", 5)
    result = gatelock("usage", "--meter", "request")
    assert (result.exit_code, result.stdout) == (2, "")
    assert '--meter request: no such meter; did you mean "requests"?' in result.stderr
    result = gatelock("usage", "--meter", "zzz")
    assert "use one of requests" in result.stderr
    result = gatelock("usage", "--caller", "api_key:acne")
    assert result.exit_code == 1
    assert result.stdout == "nothing was ever counted for api_key:acne; did you mean api_key:acme?\n"
    result = gatelock("usage", "--json", "--caller", "api_key:unknown")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was ever counted for api_key:unknown" in result.stderr
    result = gatelock("usage", "--zone", "Europe/Berln")
    assert result.exit_code == 2
    assert 'did you mean "Europe/Berlin"?' in result.stderr


def test_a_time_without_counts_says_when_there_are_some(gatelock: Gatelock, engine: sa.Engine) -> None:
    add(engine, "api_key:acme", "2015-05-17T10:05", 5)
    add(engine, "api_key:acme", "2015-05-20T21:00", 5)
    for caller in ([], ["--caller", "api_key:acme"]):
        result = gatelock("usage", "--from", "today", *caller)
        assert result.exit_code == 0
        assert result.stdout == (
            "nothing was counted in this time; there are counts between 2015-05-17T10:05:00Z and"
            " 2015-05-20T21:01:00Z\n"
        )


def test_a_report_of_too_many_windows_is_refused(gatelock: Gatelock, engine: sa.Engine) -> None:
    add(engine, "api_key:acme", "2015-05-17T10:05", 5)
    add(engine, "api_key:acme", "2026-05-17T10:05", 5)
    result = gatelock("usage", "--width", "hour", "--zone", "Europe/Berlin")
    assert result.exit_code == 2
    assert "at most 10,000 windows: write a later --from" in result.stderr
