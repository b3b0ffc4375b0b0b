"""Locks that no gate has met although their callers are still counted: `doctor`, `gates`, `locks`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.gates.unmet_locks import number_of_unmet_locks
from analyzer.judging.locks import lock_feed
from analyzer.kernel.model import CountRow
from gatekeeper.model import SUSPENSION, Lock, LockHits, Set
from tests.cli.test_doctor import findings, make_healthy
from tests.support.gate_reports import SOURCE, gate_status, log_callers, report
from tests.support.stored_counts import put_counts

Gatelock = Callable[..., Any]
NOW = datetime.now(UTC)
EVE, ANN = "address:192.0.2.7", "user:ann"
SENTENCE = f"{EVE}: no gate has met its lock by daily, and 60 requests were counted since: `gatelock doctor`"


@pytest.fixture
def configuration() -> str:
    return SOURCE


def set_lock(engine: sa.Engine, caller: str, *, minutes_ago: float = 10, resource: str = "") -> Lock:
    lock = Lock(
        "caller", caller, "daily", NOW - timedelta(minutes=minutes_ago), NOW + timedelta(hours=1), resource
    )
    with engine.begin() as db:
        lock_feed.publish(db, [Set(lock)], f"m{caller}{resource}")
    return lock


def count(
    engine: sa.Engine, caller: str, value: int, *, minutes_ago: int = 2, denied: int = 0, resource: str = ""
) -> None:
    minute_s = int(NOW.timestamp()) // 60 * 60 - 60 * minutes_ago
    grouping = "caller+resource" if resource else "caller"
    with engine.begin() as db:
        put_counts(db, [CountRow(grouping, caller, resource, "requests", 60, minute_s, value, denied)])


def test_a_lock_that_no_gate_has_met_is_named_while_its_caller_is_still_counted(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    make_healthy(engine)
    met, _ = set_lock(engine, ANN), set_lock(engine, EVE)
    count(engine, ANN, 30)
    count(engine, EVE, 60)
    log_callers(engine, ANN, EVE)
    report(engine, gate_status(locks=(LockHits(met.at, 5, 5),)))
    (found,) = findings(gatelock, exit_code=1)["locks"]
    assert (found["state"], EVE in found["what"], "60" in found["what"]) == ("wrong", True, True)
    assert "address" in found["cure"]
    rows = [json.loads(line) for line in gatelock("locks", "list", "--json").stdout.splitlines()]
    checks_by_key = {row["key"]: row["met"]["checks"] for row in rows}
    assert checks_by_key == {ANN: 5, EVE: 0}
    for more in ((), ("--json",)):
        listed = gatelock("locks", "list", *more)
        assert (listed.exit_code, listed.stderr) == (0, f"{SENTENCE}\n")
    assert gatelock("locks", "list", "--caller", ANN).stderr == ""
    assert number_of_unmet_locks(engine) == 1


def test_without_any_gate_the_lock_is_named_too(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    set_lock(engine, EVE)
    count(engine, EVE, 60)
    (found,) = findings(gatelock, exit_code=1)["locks"]
    assert "not reported by any gate, as no gate reports" in found["what"]
    assert "report_status=True" in found["cure"]


@pytest.mark.parametrize("case", ["denied", "before", "new", "quiet", "suspended", "more", "resource"])
def test_a_lock_is_not_named(gatelock: Gatelock, engine: sa.Engine, case: str) -> None:
    """Without a request that was admitted, too early to know, or where a gate may have met it."""
    make_healthy(engine)
    set_lock(
        engine, EVE, minutes_ago=1 if case == "new" else 10, resource="/v1" if case == "resource" else ""
    )
    if case == "denied":
        count(engine, EVE, 0, denied=60)
    elif case == "before":
        count(engine, EVE, 60, minutes_ago=9)
        count(engine, EVE, 60, minutes_ago=10)
        count(engine, EVE, 60, minutes_ago=30)
    elif case == "resource":
        count(engine, EVE, 60, resource="/v2")
    elif case != "quiet":
        count(engine, EVE, 60, minutes_ago=1 if case == "new" else 2)
    if case == "suspended":
        with engine.begin() as db:
            end = NOW + timedelta(hours=1)
            off = Lock(SUSPENSION.scope, "", SUSPENSION.policy, NOW, end, action="suspend")
            lock_feed.publish(db, [Set(off)], "off")
    if case == "more":
        report(engine, gate_status(more=(1, 1)))
    assert number_of_unmet_locks(engine) == (None if case == "more" else 0)
    assert gatelock("locks", "list").exit_code == 0
    assert "no gate has met" not in gatelock("locks", "list").stderr
    assert "no gate has met" not in gatelock("doctor").output


def test_a_lock_that_is_narrowed_to_a_resource_is_named_by_its_requests_there(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    make_healthy(engine)
    set_lock(engine, EVE, resource="other")
    count(engine, EVE, 60, resource="other")
    assert SENTENCE in gatelock("locks", "list").output
