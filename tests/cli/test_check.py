"""`gatelock check`: the summary of a valid configuration, and every fault of an invalid one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

VALID = """
    [database]
    url = "postgresql+psycopg://ada:s3cret@db/gatelock"
    [[sources]]
    topic = "access-log"
    count_if = { status = { not = ["401", "403"] } }
    [sources.fields]
    user     = "user"
    address  = "ip"
    status   = "status"
    resource = { path = "path" }
    took     = { path = "took", unit = "s" }
    [[sources]]
    file   = "/var/log/nginx/access.log"
    format = "combined"
    caller = "address"
    [[meters]]
    name = "busy"
    sum  = "took"
    [[meters]]
    name  = "errors"
    count = true
    where = { status = [429, "5-9"] }
    [[policies]]
    name   = "daily"
    limit  = 100_000
    window = { per = "day", zone = "Europe/Berlin" }
    [[policies]]
    name   = "hourly"
    meter  = "busy"
    per    = "caller+resource"
    limit  = "1m"
    window = { per = "hour" }
    status = 503
"""

OTHER_POLICIES = """
    [[policies]]
    name   = "slowed"
    limit  = 600
    window = { per = "month" }
    action = { slow = "10/s" }
    [[policies]]
    name   = "watched"
    limit  = 9_000
    window = { per = "day" }
    action = "tag"
"""


def test_a_valid_configuration_is_summarized(gatelock: Gatelock, configure: Configure) -> None:
    configure(VALID)
    result = gatelock("check", "--offline")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line for line in lines if not line.startswith("dry run")] == [
        "gatelock.toml: nothing is wrong",
        "",
        "database    postgresql+psycopg://ada:***@db/gatelock",
        "source      access-log: topic access-log, json; the caller is user or address if status is not 401"
        " or 403, else the address; no time is mapped: a request is of its time in Kafka",
        "source      access.log: file /var/log/nginx/access.log, combined; the caller is address",
        "counted by  caller, caller+resource",
        "meter       busy: sum of took, measured in time; kept in buckets of 60 s",
        "meter       errors: one for each request where status is 429 or 5-9; kept in buckets of 60 s",
        "meter       requests: one for each request; kept in buckets of 60 s",
        "policy      daily: at most 100,000 requests for each caller per day (Europe/Berlin), then 429"
        " until it ends",
        "policy      hourly: at most 1m of busy for each caller and resource per hour (UTC),"
        " then 503 until it ends",
        "delay       gates close within about 0.9 s after the record is in the log:"
        " fetch 0.1 (default), flush 0.1 (configured), commit 0.25 (default), poll 0.44 (default)",
        "            the installation was not asked: --offline",
        "overshoot   daily, hourly: unknown, as much as a caller sends in 0.89 s: no rate was measured in the"
        " last ten minutes, and --limiter names no limiter in front",
    ]


def test_each_policy_is_run_dry_by_the_rules_that_judge(gatelock: Gatelock, configure: Configure) -> None:
    """At the limit, in the window of this moment."""
    configure(f"{VALID}{OTHER_POLICIES}")
    berlin = ZoneInfo("Europe/Berlin")
    before = datetime.now(berlin)
    result = gatelock("check")
    tomorrows = {
        datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), berlin).isoformat()
        for now in (before, datetime.now(berlin))
    }
    shown = [line.removeprefix("dry run     ") for line in result.output.splitlines() if "dry run" in line]
    assert shown[0] in {
        f"daily: from 100,000 requests on, deny 429 for each caller until {tomorrow}"
        for tomorrow in tomorrows
    }
    assert re.fullmatch(
        r"hourly: from 1m of busy on, deny 503 for each caller and resource until \S+T\d\d:00:00Z",
        shown[1],
    )
    assert [line.split(" until ")[0] for line in shown[2:]] == [
        "slowed: from 600 requests on, slow 10/1s for each caller",
        "watched: from 9,000 requests on, tag for each caller",
    ]
    assert json.loads(gatelock("check", "--json").output)["dry_run"] == shown


def test_json_has_the_summary(gatelock: Gatelock, configure: Configure) -> None:
    configure(VALID)
    summary = json.loads(gatelock("check", "--json", "--offline").output)
    assert summary["faults"] == []
    assert summary["database"] == "postgresql+psycopg://ada:***@db/gatelock"
    assert summary["groupings"] == ["caller", "caller+resource"]
    assert {"name": "busy", "width_s": 60, "unit": "duration"} in summary["meters"]
    assert len(summary["sources"]) == len(summary["policies"]) == 2
    assert summary["delay_s"] == 0.89


def test_the_overshoot_behind_a_limiter_is_shown(gatelock: Gatelock, configure: Configure) -> None:
    configure(VALID)
    options = ["--offline", "--limiter", "20/s", "--processes", "8", "--shipping", "0.31"]
    lines = gatelock("check", *options).output.splitlines()
    assert "after a request is logged: shipping 0.31 (given), fetch 0.1 (default)" in lines[-4]
    assert lines[-1].startswith("overshoot   hourly: unknown"), "it does not count requests"
    assert lines[-2] == (
        "overshoot   daily: at most 320 requests, and those in flight: 20 in 1 s in each of 8 processes, for"
        " 1.20 s"
    )
    summary = json.loads(gatelock("check", "--json", *options).output)
    assert summary["overshoot"] == [
        {"policy": "daily", "amount": 320, "most": 320, "is": "bound"},
        {"policy": "hourly", "amount": None, "most": None, "is": "unknown"},
    ]
    assert summary["delay"]["shipping"] == {"seconds": 0.31, "is": "given"}
    refused = gatelock("check", "--limiter", "fast")
    assert refused.exit_code == 2
    assert '--limiter fast is not a rate: write "20/s"' in refused.stderr


def test_all_faults_are_printed_and_the_exit_code_is_1(gatelock: Gatelock, configure: Configure) -> None:
    configure(VALID.replace('sum  = "took"', 'sum  = "tok"').replace("Berlin", "Berln"))
    result = gatelock("check")
    assert result.exit_code == 1
    assert result.output.count("did you mean") == 2
    assert "gatelock.toml: 2 faults" in result.stderr
    result = gatelock("check", "--json")
    assert result.exit_code == 1
    assert [
        (fault["file"], fault["line"], fault["cure"]) for fault in json.loads(result.output)["faults"]
    ] == [
        ("gatelock.toml", 19, 'did you mean "took"?'),
        ("gatelock.toml", 27, 'did you mean "Europe/Berlin"?'),
    ]


def test_a_configuration_without_sources_is_a_fault(gatelock: Gatelock) -> None:
    result = gatelock("check")
    assert result.exit_code == 1
    assert "no file: sources: nothing is read" in result.output
    assert "to ./gatelock.toml, or to one that --config names" in result.output


def test_a_window_that_ends_before_its_gates_close_is_a_fault(
    gatelock: Gatelock, configure: Configure
) -> None:
    text = (
        VALID
        + """
    [[policies]]
    name   = "brief"
    limit  = 100
    window = { per = "minute" }
    [analyzer]
    flush_every = """
    )
    configure(text + '"20s"')
    result = gatelock("check")
    assert result.exit_code == 1
    assert (
        'a window of one minute is too short: with flush_every = "20s" a caller is denied up to 20.8 s late'
        in result.output
    )
    assert 'write flush_every = "4s" or less' in result.output
    configure(text + '"4s"')
    assert gatelock("check").exit_code == 0


def test_a_caller_that_is_the_user_of_a_combined_line_is_warned_of(
    gatelock: Gatelock, configure: Configure
) -> None:
    combined = VALID.replace('caller = "address"', 'caller = ["user", "address"]')
    configure(combined)
    (remark,) = [line for line in gatelock("check").output.splitlines() if line.startswith("remark")]
    assert "access.log: the caller is the user of a combined line" in remark
    assert 'write caller = ["address"]' in remark
    (found,) = json.loads(gatelock("check", "--json").output)["remarks"]
    assert remark.endswith(found)
    configure(VALID)
    assert json.loads(gatelock("check", "--json").output)["remarks"] == []
