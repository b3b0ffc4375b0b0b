"""`gatelock upkeep gates`, on a database in which gates reported their status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.judging.locks import lock_feed
from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.tables.schema import feed_versions, gates
from gatekeeper.model import Cursor, Lock, Set
from tests.support.gate_reports import ANN, BOB, HITS, SOURCE, gate_status, log_callers, report

Gatelock = Callable[..., Any]


@pytest.fixture
def configuration() -> str:
    return SOURCE


def test_each_gate_is_listed_with_its_view_its_locks_and_the_known_part_of_its_callers(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    log_callers(engine, ANN, BOB)
    report(engine, gate_status(locks=HITS, more=(3, 1), callers=(ANN, BOB)))
    result = gatelock("upkeep", "gates", "list", "--json")
    assert result.exit_code == 0
    row = json.loads(result.output)
    assert {name: row[name] for name in ("application", "instance", "library", "version")} == {
        "application": "shop", "instance": "host:1:ab", "library": "0.1.0", "version": 0,
    }  # fmt: skip
    assert 0.4 <= row["age_s"] < 10
    counts = [row[name] for name in ("checks", "denials", "known", "unknown", "wrong")]
    assert counts == [10, 6, 1.0, [], {}]
    assert 0 <= row["heard_s"] < 10
    shown = gatelock("upkeep", "gates", "list").output
    for cell in ("shop", "host:1:ab", "100% of 2", "fine"):
        assert cell in shown


def test_a_gate_that_is_stale_behind_or_checks_unknown_callers_is_named(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    with engine.begin() as db:
        for number in range(2):
            now = datetime.now(UTC)
            lock = Lock("caller", f"user:{number}", "daily", now, now + timedelta(days=1))
            lock_feed.publish(db, [Set(lock)], f"m{number + 1}")
        db.execute(sa.update(feed_versions).values(at_ms=NowMs() - 60_000))
    log_callers(engine, ANN)
    report(
        engine,
        gate_status("a:1:a", age=99.0),
        gate_status("b:1:b", at=Cursor(1, "m1")),
        gate_status("c:1:c", callers=(ANN, BOB)),
    )
    result = gatelock("upkeep", "gates", "list")
    assert result.exit_code == 1
    for instance, detail in (("a:1:a", "99 s"), ("b:1:b", "version"), ("c:1:c", "50%")):
        assert re.search(rf"(?m)^shop {instance} .*{detail}", result.output)
    rows = [json.loads(line) for line in gatelock("upkeep", "gates", "list", "--json").output.splitlines()]
    problems = {row["instance"]: list(row["wrong"]) for row in rows}
    assert problems["a:1:a"] == ["stale"]
    assert problems["b:1:b"] == ["behind"]
    assert len(problems["c:1:c"]) == 1


def test_a_replaced_process_is_listed_only_with_the_option_all(gatelock: Gatelock, engine: sa.Engine) -> None:
    report(engine, gate_status("old:1:a"))
    with engine.begin() as db:
        db.execute(sa.update(gates).values(at_ms=NowMs() - 300_000))
    assert re.search(r"(?m)^shop old:1:a .* 3[01]\d s", gatelock("upkeep", "gates", "list").output)
    report(engine, gate_status("new:1:b"))
    result = gatelock("upkeep", "gates", "list")
    assert (result.exit_code, "old:1:a" in result.output) == (0, False)
    assert "old:1:a" in gatelock("upkeep", "gates", "list", "--all").output


def test_without_gates_the_output_says_how_a_gate_reports(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("upkeep", "gates", "list")
    assert (result.exit_code, "report_status=True" in result.output) == (0, True)
    assert gatelock("upkeep", "gates", "list", "--json").output == ""


def test_the_name_of_an_application_is_not_taken_for_markup(gatelock: Gatelock, engine: sa.Engine) -> None:
    report(engine, gate_status(application="[red]\x1b[2J"))
    assert "[red]\\x1b[2J" in gatelock("upkeep", "gates", "list").output


def test_the_hits_of_a_lock_are_added_up_over_its_gates(gatelock: Gatelock, engine: sa.Engine) -> None:
    (hits,) = HITS
    now = datetime.now(UTC)
    with engine.begin() as db:
        lock = Lock(hits.at.scope, hits.at.key, hits.at.policy, now, now + timedelta(hours=1))
        lock_feed.publish(db, [Set(lock)], "mark")
    report(engine, gate_status("a:1:a", locks=HITS), gate_status("b:1:b", locks=HITS))
    row = json.loads(gatelock("locks", "list", "--json").output)
    assert (row["key"], row["met"]) == (ANN, {"checks": 14, "denials": 10, "gates": 2})
    assert re.search(r"\tdeny 429\t10\t", gatelock("locks", "list").output.splitlines()[1])


def test_gates_that_are_gone_can_be_forgotten(gatelock: Gatelock, engine: sa.Engine) -> None:
    report(engine, gate_status("a:1:a"), gate_status("b:1:b"))
    result = gatelock("upkeep", "gates", "forget", "shop", "--reason", "moved away")
    assert result.output == "shop: 2 gates forgotten\n"
    (event,) = map(json.loads, gatelock("upkeep", "events", "list", "--json").output.splitlines())
    assert (event["act"], event["about"], event["why"]) == ("upkeep gates forget", "shop", "moved away")
    again = gatelock("upkeep", "gates", "forget", "shop")
    assert (again.exit_code, again.stdout, again.stderr[:23]) == (1, "", "no gate is named shop: ")


def test_the_age_of_a_gate_that_reports_nothing_counts_on(gatelock: Gatelock, engine: sa.Engine) -> None:
    """Such as one that is refused since a token exists."""
    report(engine, gate_status())
    with engine.begin() as db:
        db.execute(sa.update(gates).values(at_ms=NowMs() - 41_000))
    result = gatelock("upkeep", "gates", "list", "--json")
    row = json.loads(result.output)
    assert result.exit_code == 1
    assert 41 <= row["age_s"] < 60
    assert row["wrong"]["stale"].startswith("has reported nothing for 4")


def test_nothing_that_a_gate_reports_controls_the_terminal(gatelock: Gatelock, engine: sa.Engine) -> None:
    application = "\x1b[2J\x1b]0;pwned\x07\u202e"
    ignored = tuple("x" * 100 for _ in range(20))
    report(engine, gate_status("a:1:a", application=application, age=99.0, ignored=ignored * 20))
    shown = gatelock("upkeep", "gates", "list").output
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    assert "\\x1b[2J" in shown
    assert "characters more)" in shown
    assert max(map(len, shown.splitlines())) < 2_100
