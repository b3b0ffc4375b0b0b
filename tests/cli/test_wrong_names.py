"""Wrong names and unreadable logs are not good news: each list and import says what there is instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.kernel.model import CountRow
from tests.support.stored_counts import put_counts

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

pytestmark = pytest.mark.parametrize("database", ["sqlite"])

CONFIGURATION = """
[[sources]]
name = "web"
file = "access.log"
format = "combined"
caller = "address"
[[policies]]
name = "daily"
limit = 100
window = { per = "day" }
"""
LINE = '{host} - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5\n'


@pytest.fixture
def configuration() -> str:
    return CONFIGURATION


@pytest.mark.usefixtures("engine")
def test_a_source_that_does_not_exist_has_no_empty_list(gatelock: Gatelock) -> None:
    result = gatelock("upkeep", "rejects", "list", "--source", "webb")
    assert (result.exit_code, result.stdout) == (2, "")
    assert '--source webb: no such name; did you mean "web"?' in result.stderr
    assert gatelock("upkeep", "rejects", "list", "--source", "web").exit_code == 0
    result = gatelock("upkeep", "rejects", "list", "--topic", "nope")
    assert (result.exit_code, result.stderr) == (2, "--topic nope: no such name; there is none yet\n")


@pytest.mark.usefixtures("engine")
def test_a_policy_that_does_not_exist_has_no_empty_list(gatelock: Gatelock) -> None:
    result = gatelock("locks", "list", "--policy", "dayly")
    assert (result.exit_code, result.stdout) == (2, "")
    assert '--policy: dayly: no such name; did you mean "daily"?' in result.stderr
    result = gatelock("locks", "list", "--policy", "daily")
    assert (result.exit_code, result.stdout) == (0, "nothing matches\n")


def test_a_caller_that_was_never_counted_is_not_one_without_locks(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    with engine.begin() as db:
        put_counts(db, [CountRow("caller", "api_key:acme", "", "requests", 60, 0, 1, 0)])
    result = gatelock("locks", "list", "--caller", "api_key:acne")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was ever counted for api_key:acne; did you mean api_key:acme?" in result.stderr
    result = gatelock("locks", "list", "--caller", "api_key:acme")
    assert (result.exit_code, result.stdout) == (0, "nothing matches\n")


@pytest.mark.usefixtures("engine")
def test_an_import_that_rejects_a_tenth_says_why_and_exits_with_1(gatelock: Gatelock) -> None:
    lines = LINE.format(host="192.0.2.1") * 9 + "no line\n"
    Path("access.log").write_text(lines * 3)
    result = gatelock("upkeep", "import", "access.log", "--source", "web")
    assert (result.exit_code, result.stdout) == (1, "30 seen, 27 counted, 3 dead, 0 late\n")
    assert "3 rejected: bad-line: expected a line of the format combined" in result.stderr
    assert "10.0% of the records are rejected" in result.stderr


@pytest.mark.usefixtures("engine")
def test_the_cure_for_host_names_counts_them(gatelock: Gatelock, tmp_path: Path) -> None:
    file = tmp_path / "gatelock.toml"
    text = file.read_text().replace('caller = "address"', 'caller = ["host"]\nfields = { host = "address" }')
    file.write_text(text)
    Path("access.log").write_text(LINE.format(host="in24.inetnebr.com") * 3)
    assert gatelock("upkeep", "import", "access.log", "--source", "web").exit_code == 0
    assert "host:in24.inetnebr.com" in gatelock("usage").stdout


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("share", "exit_code"), [("10%", 0), ("9.9%", 1), ("0%", 1)])
def test_the_share_of_rejected_records_decides_on_the_exit_code(
    gatelock: Gatelock, share: str, exit_code: int
) -> None:
    Path("access.log").write_text(LINE.format(host="192.0.2.1") * 9 + "no line\n")
    result = gatelock("upkeep", "import", "access.log", "--source", "web", "--max-rejected", share, "--json")
    assert result.exit_code == exit_code
    assert json.loads(result.stdout)["rejected"] == {"bad-line": 1}


@pytest.mark.usefixtures("engine")
def test_a_share_that_is_none_is_wrong_usage(gatelock: Gatelock) -> None:
    Path("access.log").touch()
    for share in ("1", "101%", "some"):
        result = gatelock("upkeep", "import", "access.log", "--source", "web", "--max-rejected", share)
        assert result.exit_code == 2
        assert "write a share of the records, such as 1% or 0%" in result.stderr


@pytest.mark.usefixtures("engine")
def test_a_stopped_import_is_named_by_the_list_of_rejected_records(gatelock: Gatelock) -> None:
    Path("flood.log").write_text('{"tcp": "udp"}\n' * 1_100)
    result = gatelock("upkeep", "import", "flood.log", "--source", "web")
    assert (result.exit_code, result.stdout) == (1, "0 seen, 0 counted, 0 dead, 0 late\n")
    assert "stopped: bad-line: expected a line of the format combined" in result.stderr
    assert result.stderr.count("too many records in a row cannot be read") == 1, (
        "not a second time in the log"
    )
    result = gatelock("upkeep", "rejects", "list")
    assert "flood.log[0] waits at offset 0: too many records in a row cannot be read" in result.stderr
    assert "`gatelock upkeep sources list --gaps`" in result.stderr


TWO_SOURCES = (
    CONFIGURATION
    + """
[[sources]]
name = "proxy"
file = "proxy.log"
format = "combined"
caller = "address"
"""
)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("configuration", "files", "found"),
    [
        (CONFIGURATION, "old.log", 0),
        (TWO_SOURCES, "access.log", 0),
        (TWO_SOURCES, "proxy.log", 0),
        (TWO_SOURCES, "old.log", 2),
        (TWO_SOURCES, "access.log proxy.log", 2),
        ("", "old.log", 2),
    ],
)
def test_the_source_of_an_import_is_the_one_that_is_meant(
    gatelock: Gatelock, configuration: str, files: str, found: int
) -> None:
    for name in files.split():
        Path(name).write_text(LINE.format(host="192.0.2.1") * 9)
    result = gatelock("upkeep", "import", *files.split())
    assert result.exit_code == found
    if found:
        assert result.stderr.startswith("--source is missing: write one of ")
    else:
        assert result.stdout == "9 seen, 9 counted, 0 dead, 0 late\n"


JSON_SOURCE = """
[[sources]]
name = "web"
file = "requests.jsonl"
caller = "api_key"
[sources.fields]
time = { path = "ts", unit = "s" }
api_key = "api_key"
"""


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("configuration", [JSON_SOURCE])
def test_a_field_at_another_place_and_a_time_in_another_unit_are_recognised(gatelock: Gatelock) -> None:
    nested = {"ts": 1_795_000_000, "caller": {"api_key": "acme"}}
    in_ms = {"ts": 1_795_000_000_123, "api_key": "acme"}
    numbered = {"ts": 1_795_000_000, "api_key": 5}
    Path("requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (nested, in_ms, numbered)))
    result = gatelock("upkeep", "import", "requests.jsonl", "--source", "web")
    assert result.exit_code == 1
    assert "the record has no api_key; did you mean caller.api_key?" in result.stderr
    assert 'ts is 1795000000123; did you mean unit = "ms"?' in result.stderr
