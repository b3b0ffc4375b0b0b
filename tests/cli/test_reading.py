"""Commands that read a database with contents, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.faces.cli.output import TABLE_ROWS_MAX
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.revisions import head
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import locks, offsets
from analyzer.kernel.time_expressions import parse_second
from tests.support.stored_counts import put_counts

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

DAY_S = 86_400
HOSTILE = "user:[red]\x1b[2J\u202e"
DELETE = "user:\x7f"


def add_bucket(engine: sa.Engine, key: str, bucket_s: int, value: int, **columns: Any) -> None:
    row = CountRow("caller", key, "", "requests", 60, bucket_s, value, 0)._replace(**columns)
    with engine.begin() as db:
        put_counts(db, [row])


def add_ledger(engine: sa.Engine, **counts: int) -> None:
    row = {"cluster": "c", "topic_id": "t", "partition": 0, "source": "s", "topic": "access-log", "next": 9}
    with engine.begin() as db:
        db.execute(sa.insert(offsets).values(**row, **counts))


# usage


def test_usage_prints_one_object_per_row(gatelock: Gatelock, engine: sa.Engine) -> None:
    add_bucket(engine, "api_key:acme", 0, 3, denied=1)
    add_bucket(engine, "api_key:acme", 3600, 4)
    add_bucket(engine, "api_key:acme", DAY_S, 5)
    result = gatelock("usage", "--json")
    assert result.exit_code == 0
    first, second = [json.loads(line) for line in result.output.splitlines()]
    assert first == {
        "caller": "api_key:acme",
        "resource": "",
        "meter": "requests",
        "bucket": "1970-01-01T00:00:00Z",
        "value": 7,
        "denied": 1,
        "provisional": False,
    }
    assert (second["bucket"], second["value"]) == ("1970-01-02T00:00:00Z", 5)


def test_usage_is_selected_by_width_time_caller_and_meter(gatelock: Gatelock, engine: sa.Engine) -> None:
    for key in ("user:ann", "user:bob"):
        for bucket_s in (0, 60, 3600, DAY_S):
            add_bucket(engine, key, bucket_s, 1)
            add_bucket(engine, key, bucket_s, 1, meter="bytes")

    def rows_of(*arguments: str) -> list[tuple[str, int]]:
        lines = gatelock("usage", "--json", "--caller", "user:ann", "--meter", "bytes", *arguments).stdout
        rows = [json.loads(line) for line in lines.splitlines()]
        assert {(row["caller"], row["meter"]) for row in rows} <= {("user:ann", "bytes")}
        return [(row["bucket"][5:16], row["value"]) for row in rows]

    assert rows_of("--width", "hour") == [("01-01T00:00", 2), ("01-01T01:00", 1), ("01-02T00:00", 1)]
    assert rows_of("--width", "minute", "--to", "1970-01-01T01:00:00Z") == [
        ("01-01T00:00", 1),
        ("01-01T00:01", 1),
    ]
    assert rows_of("--from", "1970-01-02", "--to", "1970-01-03") == [("01-02T00:00", 1)]
    assert rows_of("--from", "today") == []


def test_an_old_bucket_that_is_wider_shows_its_width(gatelock: Gatelock, engine: sa.Engine) -> None:
    add_bucket(engine, "user:ann", 0, 9, width_s=DAY_S)
    assert json.loads(gatelock("usage", "--json", "--width", "hour").output)["width_s"] == DAY_S
    assert "width_s" not in json.loads(gatelock("usage", "--json").output)
    assert "1970-01-01T00:00:00Z (86400 s)" in gatelock("usage", "--width", "hour").output


def test_usage_shows_the_largest_rows_first(gatelock: Gatelock, engine: sa.Engine) -> None:
    """Denied requests included: a noisy caller is one also when a gate denies it."""
    for number, denied in enumerate((0, 9, 3)):
        add_bucket(engine, f"user:{number}", 3600, 5, denied=denied)
        add_bucket(engine, f"user:{number}", 3600, 100 - number, meter="bytes")
    for arguments, expected in (
        (["--top", "2"], ["user:1", "user:2"]),
        (["--top", "2", "--meter", "bytes"], ["user:0", "user:1"]),
        (["--top", "9", "--width", "hour", "--to", "1970-01-01T02:00:00Z"], ["user:1", "user:2", "user:0"]),
    ):
        lines = gatelock("usage", "--json", *arguments).output.splitlines()
        assert [json.loads(line)["caller"] for line in lines] == expected
    assert gatelock("usage", "--top", "0").exit_code == 2


def test_usage_by_resource_names_the_setting_that_counts_it(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("usage", "--by", "caller+resource")
    assert result.exit_code == 2
    assert 'groupings = ["caller+resource"]' in result.stderr
    add_bucket(engine, "user:ann", 0, 3, grouping="caller+resource", resource="/v1/search")
    result = gatelock("usage", "--by", "caller+resource", "--json")
    assert json.loads(result.output)["resource"] == "/v1/search"
    assert "/v1/search" in gatelock("usage", "--by", "caller+resource").output


GROUPED = """
[[sources]]
name = "log"
file = "requests.jsonl"
groupings = ["tenant", "tenant+resource", "resource", "address", "address/24", "address6/56", "everyone"]
[sources.fields]
time = { path = "ts", unit = "s" }
api_key = "key"
tenant = "org"
address = "ip"
resource = { path = "path", routes = ["/v1/{kind}"] }
"""
REQUESTS = [
    {"key": "a", "org": "o1", "ip": "203.0.113.7", "path": "/v1/x"},
    {"key": "b", "org": "o1", "ip": "203.0.113.9", "path": "/v1/y"},
    {"key": "c", "ip": "2001:db8:1:2::3", "path": "/about"},
    {"key": "c", "org": "o2"},
]


@pytest.mark.parametrize(
    ("by", "shown"),
    [
        ("caller", {"api_key:a": 1, "api_key:b": 1, "api_key:c": 2}),
        ("tenant", {"o1": 2, "o2": 1, "(none)": 1}),
        ("resource", {"/v1/{kind}": 2, "other": 1, "(none)": 1}),
        ("address", {"203.0.113.7": 1, "203.0.113.9": 1, "2001:db8:1:2::/64": 1, "(none)": 1}),
        ("address/24", {"203.0.113.0/24": 2, "(none)": 2}),
        ("address6/56", {"2001:db8:1::/56": 1, "(none)": 3}),
        ("everyone", {"(all)": 4}),
        (
            "tenant+resource",
            {"o1 /v1/{kind}": 2, "o2 (none)": 1, "(none) other": 1},
        ),
    ],
)
def test_a_log_is_counted_by_each_grouping(
    gatelock: Gatelock, configure: Configure, by: str, shown: dict[str, int]
) -> None:
    now = int(time.time())
    lines = [json.dumps(request | {"ts": now}) for request in REQUESTS]
    Path("requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
    configure(GROUPED)
    assert gatelock("upkeep", "import", "requests.jsonl", "--source", "log").exit_code == 0
    rows = [json.loads(line) for line in gatelock("usage", "--by", by, "--json").output.splitlines()]
    key = {"everyone": "everyone"}.get(by, by.partition("+")[0].partition("/")[0].replace("6", ""))
    found: dict[str, int] = {}
    for row in rows:
        parts = [row[key], *([row["resource"]] if by.endswith("+resource") else [])]
        empty = "(all)" if by == "everyone" else "(none)"
        found[" ".join(part or empty for part in parts)] = row["value"]
    assert found == shown
    table = gatelock("usage", "--by", by).output
    assert all(part in table for name in shown for part in name.split())


def test_usage_by_an_unknown_grouping_names_the_known_ones(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("usage", "--by", "team")
    assert result.exit_code == 2
    assert "'team' is not a grouping: use caller, tenant, resource" in result.stderr


def test_usage_by_tenant_has_no_caller_to_select(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("usage", "--by", "tenant", "--caller", "user:ann")
    assert result.exit_code == 2
    assert "counts by tenant have no caller" in result.stderr


def test_a_table_escapes_names_and_json_does_not(gatelock: Gatelock, engine: sa.Engine) -> None:
    add_bucket(engine, HOSTILE, 0, 1_234_567)
    result = gatelock("usage")
    assert "user:[red]\\x1b[2J\\u202e" in result.output
    assert "1,234,567" in result.output
    add_bucket(engine, DELETE, 0, 1)
    printed = gatelock("usage", "--json").output
    assert {json.loads(line)["caller"] for line in printed.splitlines()} == {DELETE, HOSTILE}
    assert printed.isascii()
    assert printed.replace("\n", "").isprintable()


def test_a_table_is_bounded_and_json_is_not(gatelock: Gatelock, engine: sa.Engine) -> None:
    rows = [
        CountRow("caller", f"user:{n:05}", "", "requests", 60, 0, 1, 0) for n in range(TABLE_ROWS_MAX + 1)
    ]
    with engine.begin() as db:
        put_counts(db, rows)
    result = gatelock("usage")
    assert f"user:{TABLE_ROWS_MAX - 1:05}" in result.stdout
    assert f"user:{TABLE_ROWS_MAX:05}" not in result.stdout
    assert "--json prints all" in result.stderr
    assert len(gatelock("usage", "--json").stdout.splitlines()) == TABLE_ROWS_MAX + 1


def test_without_counts_the_table_says_so_and_json_is_empty(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert gatelock("usage").output == "nothing was counted\n"
    assert gatelock("usage", "--json").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--from", "tomorrow"], "'tomorrow' is not a time: write 2026-11-20, 2026-11-20T14:00:00Z"),
        (["--to", "2026-11-20T14:00:00"], "'2026-11-20T14:00:00' lacks its time zone"),
        (["--from", "2026-11-20", "--to", "2026-11-20"], "--from 2026-11-20 is not before --to 2026-11-20"),
    ],
)
@pytest.mark.usefixtures("engine")
def test_an_invalid_time_exits_with_2(gatelock: Gatelock, arguments: list[str], sentence: str) -> None:
    result = gatelock("usage", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)


def test_a_reader_may_close_the_pipe_early(engine: sa.Engine, configure: Configure) -> None:
    """`gatelock usage --json | head -1`: no traceback, no error."""
    with engine.begin() as db:
        put_counts(db, [CountRow("caller", f"user:{n}", "", "requests", 60, 0, 1, 0) for n in range(20_000)])
    command = [sys.executable, "-m", "analyzer.faces.cli", "usage", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert json.loads(child.stdout.readline())["value"] == 1
        child.stdout.close()
        assert child.wait(60) == 0
        assert child.stderr.read() == b""


@given(st.datetimes(timezones=st.timezones()).filter(lambda moment: 1 < moment.year < 9999))
@example(datetime(2515, 1, 1, 0, 0, 0, 1, tzinfo=UTC))  # a float of seconds lost the microsecond
def test_a_time_is_rounded_up_to_a_whole_second(moment: datetime) -> None:
    second = parse_second(moment.isoformat(), datetime.now(UTC))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert epoch + timedelta(seconds=second) >= moment.astimezone(UTC) > epoch + timedelta(seconds=second - 1)


def test_days_begin_at_midnight_utc() -> None:
    now = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)
    for text in ("2026-11-20", "yesterday", "2026-11-20T00:00:00Z", "2026-11-20T01:00:00+01:00"):
        assert parse_second(text, now) == parse_second("today", now) - DAY_S == 1_795_132_800


# audit


def test_an_audit_that_agrees_exits_with_0(gatelock: Gatelock, engine: sa.Engine) -> None:
    add_bucket(engine, "user:ann", 0, 5, denied=1)
    add_ledger(engine, seen=9, counted=6, duplicate=1, dead=1, late=1)
    result = gatelock("billing", "audit", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output) == {
        "partitions": [
            {"cluster": "c", "topic_id": "t", "partition": 0, "source": "s", "topic": "access-log", "next": 9,
             "seen": 9, "counted": 6, "duplicate": 1, "dead": 1, "late": 1, "skipped": 0, "renamed": 0,
             "begin": 0, "recounted": 0, "holes": 0, "equal": True}
        ],
        "buckets": 6,
        "counted": 6,
        "overflow": 0,
        "duplicates_in_buckets": None,
        "days_read": 1,
        "days_proved": 0,
        "days_deleted": 0,
        "equal": True,
        "differing": [],
        "groupings": [],
        "totals": [],
        "locks": [],
        "gaps": [],
        "closed_days": {
            "closed": 0, "read": 0, "equal": True, "lost": [], "differing": [],
            "given": [], "given_remarks": [],
        },
    }  # fmt: skip
    shown = gatelock("billing", "audit").output
    assert "6 counted, 6 in buckets: equal" in shown
    assert shown.splitlines()[-1].startswith(
        "not compared with the log: a record that is missing among the holes"
    )


@pytest.mark.parametrize(("duplicates", "is_shown"), [(0, False), (2, True)])
def test_the_audit_shows_duplicates_only_if_there_are_any(
    gatelock: Gatelock, engine: sa.Engine, duplicates: int, is_shown: bool
) -> None:
    add_ledger(engine, seen=duplicates, duplicate=duplicates)
    assert ("duplicate" in gatelock("billing", "audit").output) == is_shown
    assert (
        json.loads(gatelock("billing", "audit", "--json").output)["partitions"][0]["duplicate"] == duplicates
    )


@pytest.mark.parametrize(("seen", "in_buckets"), [(9, 5), (9, 7), (8, 6)])
def test_an_audit_that_differs_exits_with_1(
    gatelock: Gatelock, engine: sa.Engine, seen: int, in_buckets: int
) -> None:
    add_bucket(engine, "user:ann", 0, in_buckets)
    add_ledger(engine, seen=seen, counted=6, dead=3)
    result = gatelock("billing", "audit", "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["equal"] is False
    result = gatelock("billing", "audit")
    assert result.exit_code == 1
    assert ("NOT EQUAL" in result.output) == (in_buckets != 6)
    assert ("differs" in result.output) == (seen != 9)


# locks


def test_locks_are_listed_with_the_fields_of_the_feed(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert gatelock("locks", "list").output == "no lock is in force\n"
    lock = {
        "scope": "caller", "resource": "", "kind": "quota", "action": "deny", "status": 429,
        "reason": "quota-exceeded", "detail": "100,000 requests per day", "began_ms": 1_000,
        "on_stale": "keep",
    }  # fmt: skip
    with engine.begin() as db:
        for key, policy, until_ms in [
            ("api_key:acme", "daily", 4_102_444_800_000),
            ("user:ann", "hourly", 4_102_444_900_000),
            ("user:over", "hourly", 2_000),
        ]:
            db.execute(sa.insert(locks).values(lock | {"key": key, "policy": policy, "until_ms": until_ms}))
    result = gatelock("locks", "list", "--json", "--caller", "api_key:acme")
    assert json.loads(result.output) == {
        "scope": "caller",
        "key": "api_key:acme",
        "resource": None,
        "policy": "daily",
        "kind": "quota",
        "action": "deny",
        "status": 429,
        "reason": "quota-exceeded",
        "detail": "100,000 requests per day",
        "began": "1970-01-01T00:00:01Z",
        "until": "2100-01-01T00:00:00Z",
        "on_stale": "keep",
        "met": {"checks": 0, "denials": 0, "gates": 0},
    }
    listed = gatelock("locks", "list").output
    assert listed.index("user:ann") < listed.index("api_key:acme")
    assert "user:over" not in listed
    assert "user:ann" in gatelock("locks", "list", "--policy", "hourly").output


# db


def test_tables_are_created_once_and_checked(
    gatelock: Gatelock, configure: Configure, database_url: str
) -> None:
    configure(f'[database]\nurl = "{database_url}"\n')
    result = gatelock("upkeep", "db", "upgrade")
    assert (result.exit_code, f"are at version {head()} (from none)" in result.output) == (0, True), (
        result.output
    )
    assert f"were already at version {head()}" in gatelock("upkeep", "db", "upgrade").output
    assert json.loads(gatelock("upkeep", "db", "upgrade", "--check", "--json").output) == {
        "current": head(),
        "head": head(),
        "differences": [],
    }
    result = gatelock("upkeep", "db", "upgrade", "--check")
    assert result.exit_code == 0
    assert result.output.endswith(f": the tables are at version {head()}, and nothing differs\n")


def test_tables_with_differences_exit_with_1(gatelock: Gatelock, engine: sa.Engine) -> None:
    with engine.begin() as db:
        db.exec_driver_sql("alter table rejects add column extra text")
    result = gatelock("upkeep", "db", "upgrade", "--check", "--json")
    assert result.exit_code == 1
    [sentence] = json.loads(result.output)["differences"]
    assert sentence.startswith("the column extra of the table rejects is none of Gatelock's: drop it")
    assert sentence in gatelock("upkeep", "db", "upgrade", "--check").output


@pytest.mark.parametrize("command", [["upkeep", "db", "upgrade"], ["usage"]])
def test_tables_of_an_unreleased_version_exit_with_2_and_are_to_be_created_again(
    gatelock: Gatelock, engine: sa.Engine, command: list[str]
) -> None:
    with engine.begin() as db:
        db.exec_driver_sql("update alembic_version set version_num = '0030'")
    result = gatelock(*command)
    assert result.exit_code == 2
    assert "stop all analyzers, create the database again with `" in result.output
    result = gatelock("upkeep", "db", "upgrade", "--check")
    assert result.exit_code == 1
    assert "stop all analyzers, create the database again with `" in result.output


@pytest.mark.parametrize("command", [["usage"], ["billing", "audit"], ["locks", "list"]])
def test_tables_of_another_version_exit_with_2_and_the_cure(
    gatelock: Gatelock, engine: sa.Engine, command: list[str]
) -> None:
    with engine.begin() as db:
        db.exec_driver_sql("update alembic_version set version_num = 'x'")
    result = gatelock(*command)
    assert result.exit_code == 2
    assert "another program than Gatelock uses this database" in result.stderr


# events


def test_events_lists_the_actions_of_operators(gatelock: Gatelock, engine: sa.Engine) -> None:
    with engine.begin() as db:
        record(db, "ann@desk", "token created", "shop", "new gate")
    [event] = [
        json.loads(line) for line in gatelock("upkeep", "events", "list", "--json").output.splitlines()
    ]
    assert [event[name] for name in ("who", "act", "about", "why")] == [
        "ann@desk",
        "token created",
        "shop",
        "new gate",
    ]
    assert gatelock("upkeep", "events", "list", "--since", "2999-01-01").output == "nothing matches\n"
    assert gatelock("upkeep", "events", "list", "--since", "soon").exit_code == 2


# sources


def test_a_source_without_an_analyzer_is_listed_and_retired(gatelock: Gatelock, engine: sa.Engine) -> None:
    place = {
        "cluster": "c",
        "topic_id": "t",
        "partition": 3,
        "source": "shop",
        "topic": "access-log",
        "next": 9,
    }
    with engine.begin() as db:
        db.execute(sa.insert(offsets).values(**place, beat_ms=0, owner="one:7"))
    result = gatelock("upkeep", "sources", "list")
    assert result.exit_code == 1
    assert "access-log[3]" in result.output
    [fields] = [
        json.loads(line) for line in gatelock("upkeep", "sources", "list", "--json").output.splitlines()
    ]
    assert (fields["source"], fields["next"]) == ("shop", 9)
    assert (
        gatelock("upkeep", "sources", "retire", "shop", "--reason", "moved").output
        == "shop: 1 partition retired\n"
    )
    assert gatelock("upkeep", "sources", "list").exit_code == 0
    assert gatelock("upkeep", "sources", "retire", "shop", "--reason", "moved").exit_code == 1
