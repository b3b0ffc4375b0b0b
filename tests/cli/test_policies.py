"""`gatelock policies`: the policies in force, and a configuration put in force."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer.flush.analyzers import AnalyzerFile, SqlAgreement
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from tests.store.flushing import a_row, flush, now_s

Gatelock = Callable[..., Any]

LOG = """
[[sources]]
name = "web"
file = "access.jsonl"
fields = { time = { path = "ts", unit = "s" }, api_key = "key" }
"""
DAILY = """
[[policies]]
name = "daily"
kind = "quota"
limit = 500
window = { per = "day" }
"""


@pytest.fixture
def configured(gatelock: Gatelock, tmp_path: Path) -> Callable[[str], None]:
    """Writes the configuration for a new database."""

    def write(text: str) -> None:
        (tmp_path / "gatelock.toml").write_text(text)

    write(LOG)
    assert gatelock("upkeep", "db", "upgrade").exit_code == 0
    return write


def test_a_configuration_is_put_in_force_with_its_difference(
    gatelock: Gatelock, configured: Callable[[str], None]
) -> None:
    configured(LOG + DAILY)
    first = gatelock("policies", "apply")
    assert first.output.splitlines() == ["policy daily added", "source web added", "in force as plan 1"]
    assert "nothing to change" in gatelock("policies", "apply").output
    configured(LOG + DAILY.replace("500", "2_000"))
    shown = gatelock("policies", "apply", "--dry-run")
    assert "policy daily: limit 500 to 2,000\nnothing was changed" in shown.output
    listed = gatelock("policies", "list")
    assert listed.exit_code == 1
    assert "500 requests for each caller" in listed.output
    assert "this configuration is not in force" in listed.output
    applied = gatelock("policies", "apply", "--reason", "more is sold")
    assert "in force as plan 2" in applied.output
    events = [json.loads(line) for line in gatelock("upkeep", "events", "list", "--json").output.splitlines()]
    assert events[0]["why"] == "more is sold: policy daily: limit 500 to 2,000"
    assert gatelock("policies", "list").exit_code == 0


def test_apply_prints_json(gatelock: Gatelock, configured: Callable[[str], None]) -> None:
    configured(LOG + DAILY)
    gatelock("policies", "apply")
    configured(LOG + DAILY.replace("500", "2_000"))
    expected = {"plan": 1, "differences": ["policy daily: limit 500 to 2,000"], "changed": False}
    expected |= {"locked": 0, "freed": 0, "notices": 0, "judged": [], "stopped": ""}
    assert json.loads(gatelock("policies", "apply", "--dry-run", "--json").stdout) == expected
    expected |= {"plan": 2, "changed": True}
    assert json.loads(gatelock("policies", "apply", "--json").stdout) == expected
    expected |= {"differences": [], "changed": False}
    assert json.loads(gatelock("policies", "apply", "--json").stdout) == expected


def test_apply_says_who_is_locked_by_the_plan(gatelock: Gatelock, configured: Callable[[str], None]) -> None:
    configured(LOG + DAILY)
    gatelock("policies", "apply")
    engine = open_engine("sqlite:///gatelock.db")
    store = SqlStore(engine, "here")
    _, by_plan = store.active_plan()
    flush(store, by_plan, [a_row(300, now_s(engine))])
    engine.dispose()
    configured(LOG + DAILY.replace("500", "200"))
    *_, line, locked = gatelock("policies", "apply").output.splitlines()
    assert line == "in force as plan 2; 1 locked, 0 freed"
    assert locked.startswith("  locked api_key:acme from ")


def test_apply_asks_before_it_stops_enforcing_and_counts_the_locks(
    gatelock: Gatelock, configured: Callable[[str], None]
) -> None:
    configured(LOG + DAILY)
    gatelock("policies", "apply")
    engine = open_engine("sqlite:///gatelock.db")
    store = SqlStore(engine, "here")
    flush(store, store.active_plan()[1], [a_row(600, now_s(engine))])
    engine.dispose()
    configured(LOG + DAILY + 'mode = "shadow"\n')
    refused = gatelock("policies", "apply")
    assert refused.exit_code == 2
    assert (
        "mode enforce to shadow; this stops enforcing 1 lock by daily; confirm with --yes" in refused.output
    )
    assert "api_key:acme" in gatelock("locks", "list").stdout
    shown = gatelock("policies", "apply", "--dry-run").output
    assert "this stops enforcing 1 lock by daily\nnothing was changed" in shown
    done = gatelock("policies", "apply", "--yes").output
    assert (
        "in force as plan 2; 0 locked, 1 freed\n  unlocked api_key:acme: plan 2 ends its lock by daily"
        in done
    )


def test_parts_that_a_configuration_lacks_are_removed_only_with_prune(
    gatelock: Gatelock, configured: Callable[[str], None]
) -> None:
    configured(LOG + DAILY)
    gatelock("policies", "apply")
    configured(LOG.replace('"web"', '"other"'))
    assert gatelock("policies", "apply").output.splitlines() == ["source other added", "in force as plan 2"]
    policies = [json.loads(line) for line in gatelock("policies", "list", "--json").stdout.splitlines()]
    assert [policy["name"] for policy in policies] == ["daily"]
    pruned = gatelock("policies", "apply", "--prune", "--yes").output.splitlines()
    stopped = "this stops enforcing daily, without a lock at this time"
    assert pruned == ["policy daily removed", "source web removed", stopped, "in force as plan 3"]
    assert "no policy is in force" in gatelock("policies", "list").output


def test_analyzers_with_other_files_and_groups_are_found(
    gatelock: Gatelock, configured: Callable[[str], None], tmp_path: Path
) -> None:
    configured(LOG + DAILY)
    gatelock("policies", "apply")
    from analyzer.config.settings import load

    of_web_1 = load(tmp_path / "gatelock.toml").plan()
    configured(LOG + DAILY.replace("500", "7"))
    of_web_2 = load(tmp_path / "gatelock.toml").plan()
    configured(LOG + DAILY)
    engine = open_engine(f"sqlite:///{tmp_path}/gatelock.db")
    for name, plan, group in (("web-1", of_web_1, "gatelock"), ("web-2", of_web_2, "blue")):
        file = AnalyzerFile(name, plan, group_id=group, topics=["access-log"])
        SqlAgreement(engine, f"{name}:1", file, lambda: "mark").agree()
    engine.dispose()
    output = gatelock("doctor").output
    assert "web-2 has a file that is not in force in: rules" in output
    assert "web-1 was" not in output
    assert "two groups count access-log into this database: web-2 in blue; web-1 in gatelock" in output


def test_a_changed_file_that_waits_is_found(
    gatelock: Gatelock, configured: Callable[[str], None], tmp_path: Path
) -> None:
    from analyzer.config.settings import load

    engine = open_engine(f"sqlite:///{tmp_path}/gatelock.db")
    for limit in ("500", "7"):
        configured(LOG + DAILY.replace("500", limit))
        file = AnalyzerFile("web-1", load(tmp_path / "gatelock.toml").plan())
        SqlAgreement(engine, "web-1:1", file, lambda: "mark").agree()
    engine.dispose()
    assert "web-1 waits with its changed file (rules)" in gatelock("doctor").output
