"""`gatelock billing audit` of closed days, of report files and against the log, on SQLite and PostgreSQL."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.tampered_tables import tamper

Gatelock = Callable[..., Any]
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
DATE = f"{YESTERDAY:%Y-%m-%d}"
KEY = "0123456789abcdef"
CLOSE = ("billing", "days", "close", DATE, "--reason", "counted", "--yes")
CORRECT = (
    *("billing", "days", "correct", DATE, "--caller", "address:192.0.2.1"),
    *("--amount", "-1", "--reason", "r"),
)
LINE = '192.0.2.{} - - [{:%d/%b/%Y}:10:{:02}:00 +0000] "GET /v1/search HTTP/1.1" 200 {} "-" "curl"\n'


@pytest.fixture
def configuration(tmp_path: Path) -> str:
    (tmp_path / "key").write_text(KEY)
    return (
        '[billing]\ngrace = 0\ndigest_key_file = "key"\n'
        '[[sources]]\nfile = "access.log"\nformat = "combined"\n'
        '[[meters]]\nname = "volume"\nsum = "bytes"\n'
    )


@pytest.fixture
def counted(gatelock: Gatelock, engine: sa.Engine, tmp_path: Path) -> Path:
    """The log of a day that was imported."""
    log = tmp_path / "access.log"
    lines = [LINE.format(number % 3 + 1, YESTERDAY, number, 100 + number) for number in range(30)]
    log.write_text("".join([*lines[:10], "no line\n\n", *lines[10:]]))
    assert gatelock("upkeep", "import", "access.log", "--source", "access.log").exit_code == 1, (
        "a line is none"
    )
    return log


@pytest.fixture
def closed(gatelock: Gatelock, counted: Path) -> Path:
    """The log of a day that was imported and closed."""
    assert gatelock(*CLOSE).exit_code == 0
    return counted


def shave(engine: sa.Engine) -> None:
    """Takes two requests from a caller in every table that has them."""
    row = "value_0 = value_0 - 2"
    reference = "(select reference from referenced_names where name = 'address:192.0.2.1')"
    assert tamper(engine, f"update frozen_counts set {row} where reference = {reference}") == 1
    one = "(select min(bucket_s) from buckets)"
    of_caller = f"key = 'address:192.0.2.1' and bucket_s = {one}"
    assert tamper(engine, f"update buckets set {row} where {of_caller}") >= 1
    assert tamper(engine, "update days set requests = requests - 2 where state = 'closed'") == 1


def test_a_day_is_audited_and_the_outcome_is_shown(
    gatelock: Gatelock, closed: Path, engine: sa.Engine
) -> None:
    [before] = [one for one in objects(gatelock("billing", "days", "list", "--json")) if one["day"] == DATE]
    assert before["audit"] == "equal", "it was audited when it was closed"
    result = gatelock("billing", "audit", "--day", DATE)
    assert (result.exit_code, result.stdout) == (
        0,
        f"{DATE} (UTC): 30 requests of callers in 3 rows: equal\n",
    )
    listed = gatelock("billing", "days", "list")
    assert listed.exit_code == 0
    assert "\tequal" in listed.stdout
    whole = gatelock("billing", "audit")
    assert whole.exit_code == 0
    assert "digests of 1 closed day compared: equal" in whole.stdout
    shave(engine)
    result = gatelock("billing", "audit", "--day", DATE)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{DATE} (UTC): 28 requests of callers in 3 rows: NOT EQUAL",
        f"{DATE} (UTC): its digest does not fit: a row of it, its cut, or what was booked on it was changed, "
        "added or lost since it was closed: NOT EQUAL",
        f"{DATE} (UTC): the closing of {DATE} (UTC) is not what its act has entered in the chain (entry 2): "
        "NOT EQUAL",
    ]
    shown = gatelock("billing", "days", "list", DATE)
    assert shown.exit_code == 1
    assert "differences: its digest does not fit: " in shown.stdout
    assert gatelock("billing", "days", "list").exit_code == 1
    assert f"the audit of {DATE} (UTC) found: its digest does not fit: " in gatelock("doctor").stdout
    [found] = objects(gatelock("billing", "audit", "--day", DATE, "--json"))
    assert [one["kind"] for one in found["differences"]] == ["digest", "given"]
    [whole] = objects(gatelock("billing", "audit", "--json"))
    assert (whole["closed_days"]["equal"], whole["closed_days"]["closed"]) == (False, 1)


def test_the_log_of_a_file_shows_whose_requests_are_missing(
    gatelock: Gatelock, closed: Path, engine: sa.Engine
) -> None:
    """Also if the file was rotated and compressed since."""
    result = gatelock("billing", "audit", "--day", DATE, "--against-kafka")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0,
        f"{DATE} (UTC): 30 records counted again, 3 series compared: no difference",
    )
    shave(engine)
    closed.rename(closed.with_name("access.log.2"))
    closed.with_name("access.log.1.gz").write_bytes(
        gzip.compress(closed.with_name("access.log.2").read_bytes())
    )
    closed.with_name("access.log.2").unlink()
    closed.write_text(LINE.format(9, YESTERDAY, 1, 1))
    result = gatelock("billing", "audit", "--day", DATE, "--against-kafka")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2:] == [
        "address:192.0.2.1: requests by caller: 8 in the day, 10 in the log: NOT EQUAL",
        f"{DATE} (UTC): 30 records counted again, 3 series compared: 1 difference: NOT EQUAL",
    ]
    copy = closed.with_name("access.log.1.copy")
    copy.write_bytes(closed.with_name("access.log.1.gz").read_bytes())
    result = gatelock("billing", "audit", "--day", DATE, "--against-kafka")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "begin with the same line: move those away that were not counted" in result.stderr
    copy.unlink()
    closed.with_name("access.log.1.gz").unlink()
    result = gatelock("billing", "audit", "--day", DATE, "--against-kafka")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "cannot be counted again: no file " in result.stderr


def test_a_forgotten_caller_is_equal_and_a_lost_name_differs(
    gatelock: Gatelock, closed: Path, engine: sa.Engine
) -> None:
    assert gatelock("callers", "forget", "address:192.0.2.1", "--reason", "asked", "--yes").exit_code == 0
    assert gatelock("billing", "audit", "--day", DATE).exit_code == 0
    result = gatelock("billing", "audit", "--day", DATE, "--against-kafka")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0,
        f"{DATE} (UTC): 30 records counted again, 3 series compared: no difference",
    )
    assert tamper(engine, "delete from referenced_names where name = 'address:192.0.2.2'") == 1
    [found] = objects(gatelock("billing", "audit", "--day", DATE, "--json"))
    assert {one["kind"] for one in found["differences"]} == {"name", "counts"}


def test_a_report_is_audited_by_its_file(gatelock: Gatelock, closed: Path, engine: sa.Engine) -> None:
    assert gatelock("billing", "report", "day", DATE, "--out", "day.csv").exit_code == 0
    for name in ("day.csv", "day.csv.manifest.json"):
        result = gatelock("billing", "audit", "--report", name)
        assert (result.exit_code, result.stdout) == (0, "day.csv: 6 lines, day.csv.manifest.json: equal\n")
    file = Path("day.csv")
    file.write_bytes(file.read_bytes().replace(b",requests,,10,0", b",requests,,90,0"))
    [found] = objects(gatelock("billing", "audit", "--report", "day.csv", "--json"))
    assert not found["equal"]
    result = gatelock("billing", "audit", "--report", "day.csv")
    assert result.exit_code == 1
    assert "day.csv, line 2: it has " in result.stdout
    result = gatelock("billing", "audit", "--report", "other.csv")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "--report other.csv: its manifest other.csv.manifest.json cannot be read:"
    )


def test_kept_reports_show_what_a_restored_database_has_lost(
    gatelock: Gatelock, closed: Path, engine: sa.Engine, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    result = gatelock("billing", "audit", "--report", "kept")
    assert (result.exit_code, "--report kept: no file in it" in result.stderr) == (2, True)
    for name in ("a.csv", "b.jsonl"):
        form = ("--format", name.partition(".")[2], "--out", f"kept/{name}")
        assert gatelock("billing", "report", "day", DATE, *form).exit_code == 0
    result = gatelock("billing", "audit", "--report", "kept")
    assert (result.exit_code, result.stdout.count(": equal\n")) == (0, 2)
    tamper(engine, "update days set state = 'open' where state = 'closed'")
    result = gatelock("billing", "audit", "--report", "kept", "--json")
    assert (result.exit_code, [one["equal"] for one in objects(result)]) == (1, [False, False])


def origin(gatelock: Gatelock) -> Any:
    gatelock("billing", "report", "day", DATE, "--out", "day.csv")
    [day] = json.loads(Path("day.csv.manifest.json").read_text())["days"]
    return day["second_count"]


def test_a_day_is_counted_again_before_it_is_signed(gatelock: Gatelock, closed: Path) -> None:
    assert origin(gatelock) == {"counted_again": True, "records": 30, "series": 3, "assumed": []}


def test_a_day_whose_log_gives_other_amounts_is_not_signed(
    gatelock: Gatelock, counted: Path, engine: sa.Engine
) -> None:
    tamper(engine, "update buckets set value_0 = value_0 - 1 where key = 'address:192.0.2.1' and value_0 > 0")
    result = gatelock(*CLOSE)
    assert result.exit_code == 2
    difference = "address:192.0.2.1: requests by caller: 0 in the day, 10 in the log"
    assert (
        f"it is not signed, its log gives other amounts: {difference}; see `gatelock billing" in result.stderr
    )
    again = gatelock("billing", "audit", "--day", DATE, "--against-kafka")
    assert again.exit_code == 1
    assert f"{difference}: NOT EQUAL" in again.stdout
    report = gatelock("billing", "report", "day", DATE)
    assert "provisional: " in report.stderr


def test_a_day_whose_log_is_gone_is_signed_as_not_counted_again(gatelock: Gatelock, counted: Path) -> None:
    counted.unlink()
    assert gatelock(*CLOSE).exit_code == 0
    second = origin(gatelock)
    assert second["counted_again"] is False
    assert "access.log" in second["why_not"]


def test_a_day_is_not_counted_again_where_the_configuration_says_so(
    gatelock: Gatelock, counted: Path, tmp_path: Path, engine: sa.Engine
) -> None:
    file = tmp_path / "gatelock.toml"
    file.write_text(file.read_text().replace("[billing]", '[billing]\nrecount = "never"'))
    assert gatelock(*CLOSE).exit_code == 0
    assert origin(gatelock) == {"counted_again": False, "why_not": '[billing] recount is "never"'}


def test_a_forged_plan_is_found_by_the_second_count(
    gatelock: Gatelock, closed: Path, engine: sa.Engine
) -> None:
    """A bill by a plan that makes a caller free was equal in every audit."""
    tamper(engine, "insert into plans select 2, 'x', body, 0, at_ms, pending, 'forged' from plans", "update "
           "stretches set plan = 2, mark = 'forged'")  # fmt: skip
    result = gatelock("billing", "audit", "--day", DATE, "--against-kafka")
    assert result.exit_code == 1
    assert "records were counted by the plan 2, which no act put in force: NOT EQUAL" in result.stdout


def test_each_closed_day_of_some_dates_is_audited(
    gatelock: Gatelock, closed: Path, engine: sa.Engine
) -> None:
    before = f"{YESTERDAY - timedelta(days=1):%Y-%m-%d}"
    result = gatelock("billing", "audit", "--days", f"{before}..{DATE}")
    assert (result.exit_code, result.stdout) == (
        0,
        f"{DATE} (UTC): 30 requests of callers in 3 rows: equal\n",
    )
    assert result.stderr == f"not closed, and not audited: {before}\n"
    shave(engine)
    result = gatelock("billing", "audit", "--days", DATE[:7], "--json")
    assert (result.exit_code, [one["equal"] for one in objects(result)]) == (1, [False])


def test_a_key_that_was_replaced_stays_in_the_configuration(
    gatelock: Gatelock, closed: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("fedcba9876543210")
    result = gatelock("billing", "audit", "--day", DATE)
    assert result.exit_code == 1
    assert "its digest was made with the key " in result.stdout
    result = gatelock(*CORRECT)
    assert result.exit_code == 3
    assert "name it in earlier_digest_key_files if it was replaced" in result.stderr
    (tmp_path / "old").write_text(f"{KEY}\n")
    file = tmp_path / "gatelock.toml"
    file.write_text(file.read_text().replace("[billing]", '[billing]\nearlier_digest_key_files = ["old"]'))
    assert gatelock("billing", "audit", "--day", DATE).exit_code == 0
    assert gatelock(*CORRECT).exit_code == 0


def test_a_key_without_a_witness_is_a_remark(gatelock: Gatelock, engine: sa.Engine, tmp_path: Path) -> None:
    remark = "billing: without a witness nothing finds that the last acts and days were cut off"
    assert remark in gatelock("check").stdout
    file = tmp_path / "gatelock.toml"
    witness = f'[billing]\nwitness = "{tmp_path}/witness.json"'
    file.write_text(file.read_text().replace("[billing]", witness))
    assert remark not in gatelock("check").stdout


def test_a_restored_database_closes_days_when_an_operator_has_said_so(
    gatelock: Gatelock, closed: Path, tmp_path: Path, engine: sa.Engine
) -> None:
    assert gatelock("restore", "days", "--reason", "r").exit_code == 1
    file = tmp_path / "gatelock.toml"
    witness = f'[billing]\nwitness = "{tmp_path}/witness.json"'
    file.write_text(file.read_text().replace("[billing]", witness))
    assert gatelock(*CORRECT).exit_code == 0
    assert gatelock("billing", "audit").exit_code == 0
    tamper(engine, "delete from corrections", "delete from chain_entries where number > 2")
    result = gatelock("billing", "audit")
    assert result.exit_code == 1
    assert (
        "its witness has seen 3: the database was restored, or its last entries were cut off" in result.stdout
    )
    result = gatelock(
        "billing", "report", "send", "day", DATE, "--to", "http://127.0.0.1:9", "--format", "lago"
    )
    assert result.exit_code == 2
    assert "gatelock restore days" in result.stderr
    assert gatelock("restore", "days", "--reason", "the disk broke").exit_code == 0
    result = gatelock("billing", "audit")
    assert result.exit_code == 0
    assert "restored after the entry 2, as an operator has said: those up to 3 were lost" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--day yesterday --kafka", "--day, --days and --report stand alone: leave --kafka and --all out"),
        ("--against-kafka", "--against-kafka counts one day again: write --day DATE"),
        ("--day 2020-01-01", "2020-01-01 (UTC) is not closed; see `gatelock billing days list`"),
    ],
)
def test_impossible_arguments_are_refused(
    gatelock: Gatelock, engine: sa.Engine, arguments: str, why: str
) -> None:
    result = gatelock("billing", "audit", *arguments.split())
    assert result.exit_code in (1, 2)
    assert why in result.stderr


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]
