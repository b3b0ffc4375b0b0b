"""`gatelock notices`: the thresholds that were reached, and the configuration they come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from tests.store.flushing import ACME, ANN, a_row, flush, now_s, plan, quota

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]


@pytest.fixture
def at_s(engine: sa.Engine) -> int:
    """The time at which two callers have reached half of their limit, and one all of it."""
    store, by_plan = SqlStore(engine, "here"), plan(quota(10, notify=(500, 1_000)))
    store.activate(by_plan)
    at_s = now_s(engine)
    flush(store, by_plan, [a_row(5, at_s), a_row(6, at_s, ANN)])
    flush(store, by_plan, [a_row(9, at_s)])
    return at_s


def test_notices_are_listed_with_their_caller_threshold_and_sentence(gatelock: Gatelock, at_s: int) -> None:
    result = gatelock("locks", "list", "--notices", "--caller", ACME)
    assert result.exit_code == 0
    rows = result.output.splitlines()[-2:]
    assert sorted(row.split()[1:5] for row in rows) == [
        ["caller", ACME, "daily", "100%"],
        ["caller", ACME, "daily", "50%"],
    ]
    assert "100% of 10 requests per month (UTC), 14 counted" in result.output


def test_json_has_an_id_and_the_numbers(gatelock: Gatelock, at_s: int) -> None:
    (found,) = map(
        json.loads, gatelock("locks", "list", "--notices", "--caller", ANN, "--json").output.splitlines()
    )
    assert (found["policy"], found["threshold"], found["used"], found["limit"]) == ("daily", 0.5, 6, 10)
    assert found["from"] < found["at"] < found["until"]
    assert len(found["id"]) == 32
    assert found["detail"] == "50% of 10 requests per month (UTC), 6 counted"


def test_since_leaves_out_what_is_older(gatelock: Gatelock, engine: sa.Engine, at_s: int) -> None:
    with engine.begin() as db:
        db.exec_driver_sql("update notices set at_ms = at_ms - 7200000 where threshold = 500")
    rows = gatelock("locks", "list", "--notices", "--since", "1h", "--json").output.splitlines()
    assert [json.loads(row)["threshold"] for row in rows] == [1.0]
    assert len(gatelock("locks", "list", "--notices", "--json").output.splitlines()) == 3


def test_without_notices_a_sentence_says_so(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert gatelock("locks", "list", "--notices").output == "no threshold was reached\n"


def test_check_says_at_which_amounts_notices_are_raised_and_when_locks_begin(
    gatelock: Gatelock, configure: Configure
) -> None:
    configure("""
        [[sources]]
        topic = "access-log"
        [sources.fields]
        api_key = "key"
        [[policies]]
        name   = "daily"
        limit  = 1_000
        window = { per = "day" }
        notify = [0.8, 0.5]
        grace  = "10%"
        [[policies]]
        name   = "soft"
        limit  = 500
        window = { per = "day" }
        soft   = true
    """)
    output = gatelock("check").output
    assert "daily: at most 1,000 requests for each caller per day (UTC) and a grace of 10%, " in output
    assert "then 429 until it ends; notices at 50%, 80%" in output
    assert "daily: from 1,100 requests on, deny 429 for each caller until " in output
    assert "soft: at most 500 requests for each caller per day (UTC), then a notice, and no lock" in output
    assert "soft: from" not in output
