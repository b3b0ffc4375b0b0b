"""`gatelock check` with a database that answers, and with one that does not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.counting.measured_delays import MeasuredDelays, PartitionClock, SourceDelay
from analyzer.flush.analyzers import AnalyzerFile, SqlAgreement
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from tests.support.gate_reports import SOURCE, gate_status, report

Gatelock = Callable[..., Any]

POLICIES = """
[[policies]]
name = "short"
limit = 10
window = { rolling = "30s" }
[[policies]]
name = "daily"
limit = 1000
window = { per = "day" }
"""


@pytest.fixture
def configuration() -> str:
    return SOURCE + POLICIES


def measure(engine: sa.Engine, measured: MeasuredDelays) -> None:
    agreement = SqlAgreement(engine, "here:7", AnalyzerFile("here", load(Path("gatelock.toml")).plan()), str)
    agreement.agree()
    agreement.beat(measured)


def count(engine: sa.Engine, requests: Mapping[str, tuple[int, int]]) -> None:
    """Stores minutes of callers: so many seconds ago, so many requests."""
    with engine.begin() as db:
        known, now_s = catalog.load(db), clock_ms(db) // 1000
        meter, grouping = known.meters["requests"], known.groupings["caller"]
        for key, (ago_s, value) in requests.items():
            minute_s = (now_s - ago_s) // 60 * 60
            row = {"grouping": grouping, "page": meter.page, "width_s": 60, "bucket_s": minute_s}
            row |= {f"value_{meter.place}": value}
            db.execute(sa.insert(buckets).values(**row, key=key, resource=""))


def check(gatelock: Gatelock, *options: str) -> dict[str, Any]:
    result = gatelock("check", "--json", *options)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_measured_parts_take_the_place_of_defaults(gatelock: Gatelock, engine: sa.Engine) -> None:
    SqlStore(engine, "here").activate(load(Path("gatelock.toml")).plan())
    before = check(gatelock)
    assert before["not_asked"] == ""
    assert before["delay_s"] == 0.89
    clocks = {"access.jsonl[0]": PartitionClock("web", 300, 10)}
    measure(engine, MeasuredDelays(0.1, 0.04, 1.5, {"web": SourceDelay(120, 900, 50)}, clocks))
    report(engine, gate_status(age=0.7))
    found = check(gatelock)
    assert found["delay"] == {
        "shipping": {"seconds": 0.9, "is": "measured"},
        "fetch": {"seconds": 1.5, "is": "measured"},
        "flush": {"seconds": 0.1, "is": "configured"},
        "commit": {"seconds": 0.04, "is": "measured"},
        "poll": {"seconds": 0.7, "is": "measured"},
        "clocks": {"seconds": 0.3, "is": "measured"},
    }
    assert found["delay_s"] == 3.54
    [warned] = found["too_short"]
    assert warned.startswith("short: the window")
    assert "should come within 2.5 s, and take up to 3.54 s" in warned
    assert check(gatelock, "--offline")["delay_s"] == 0.89


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_highest_rate_seen_gives_an_estimate(gatelock: Gatelock, engine: sa.Engine) -> None:
    plan = load(Path("gatelock.toml")).plan()
    SqlStore(engine, "here").activate(plan)
    count(engine, {"user:ann": (120, 600), "user:bob": (180, 1_800), "overflow:": (60, 99_000)})
    count(engine, {"user:ann": (3_600, 60_000)})
    assert check(gatelock)["overshoot"] == [
        {"policy": name, "amount": 27, "most": 91, "is": "estimate"} for name in ("short", "daily")
    ], "30 a second for 0.89 s"
    assert (
        "daily: about 27, in bursts up to 91, an estimate: 30 a second, the highest rate"
        in gatelock("check").output
    )
    [bound, _] = check(gatelock, "--limiter", "20/s")["overshoot"]
    assert bound == {"policy": "short", "amount": 20, "most": 20, "is": "bound"}


def test_a_database_that_is_away_gives_defaults_and_says_so(
    gatelock: Gatelock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///missing.db", "postgresql+psycopg://ada:hidden@127.0.0.1:1/gatelock"):
        Path("gatelock.toml").write_text(f'[database]\nurl = "{url}"\n' + SOURCE + POLICIES)
        began_s = time.monotonic()
        result = gatelock("check")
        assert time.monotonic() - began_s < 30
        assert result.exit_code == 0
        assert "fetch 0.1 (default), flush 0.1 (configured)" in result.output
        assert "the installation was not asked: " in result.output
        assert "hidden" not in result.output
    assert not Path("missing.db").exists()


def test_callers_known_of_each_plan_are_counted(
    gatelock: Gatelock, configure: Callable[[str], Path], migrated_url: str
) -> None:
    daily = 'name = "daily"\nlimit = { free = 0, pro = "unlimited" }\nwindow = { per = "day" }\n'
    monthly = daily.replace("daily", "monthly") + 'per = "tenant"\n'
    tenants = SOURCE.replace("[sources.fields]", '[sources.fields]\ntenant = "org"')
    text = f"[[policies]]\n{daily}[[policies]]\n{monthly}"
    configure(f'[database]\nurl = "{migrated_url}"\n{tenants}{text}')
    engine = open_engine(migrated_url)
    SqlStore(engine, "here").activate(load(Path("gatelock.toml")).plan())
    engine.dispose()
    stated = {"tenant:acme": "pro", "api_key:a": "free", "api_key:b": "-", "api_key:c": "gold"}
    for name, plan in stated.items():
        gatelock("callers", "set", name, "--plan", plan, "--reason", "sold")
    for name in ("api_key:b", "api_key:d"):
        gatelock("callers", "set", name, "--tenant", "acme", "--reason", "sold")
    assert check(gatelock)["known_by_plan"] == [
        "daily: free (0): 1 caller, pro (unlimited): 2 callers, others (unlimited): 1 caller",
        "monthly: free (0): 0 tenants, pro (unlimited): 1 tenant, others (unlimited): 0 tenants",
    ]
    printed = gatelock("check").output
    assert "\nplans       daily: free (0): 1 caller," in printed
    assert "remark      daily: the table of limits has no default" in printed
