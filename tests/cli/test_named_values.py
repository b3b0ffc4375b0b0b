"""Policies by named values on the command line: counts are shown, and gates that lack a value are named."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.judging.locks import lock_feed
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import lock_history
from gatekeeper.model import Lock, Set
from tests.support.gate_reports import gate_status, report
from tests.support.stored_counts import put_counts

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

CONFIGURATION = """
    [[sources]]
    file = "access.jsonl"
    groupings = ["caller+model"]
    [sources.fields]
    time = { path = "ts", unit = "ms" }
    user = "user"
    llm = "model"
    [[groupings]]
    name = "model"
    field = "llm"
    [[policies]]
    name = "per-model"
    limit = 5
    per = "model"
    window = { per = "day" }
    mode = "shadow"
"""
LACKING = "shop host:1:ab does not take the named value model, and no other gate does"


@pytest.fixture
def configuration() -> str:
    return CONFIGURATION


def enforced(migrated_url: str, configure: Configure) -> None:
    text = CONFIGURATION.replace('mode = "shadow"', "")
    configure(f'[database]\nurl = "{migrated_url}"\n{text}')


def test_usage_is_shown_by_a_named_value(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert gatelock("policies", "apply", "--yes").exit_code == 0
    day_s = int(time.time()) // 86_400 * 86_400
    with engine.begin() as db:
        put_counts(db, [CountRow("caller+model", "user:ann", "large", "requests", 60, day_s, 7, 0)])
    [row] = map(json.loads, gatelock("usage", "--by", "caller+model", "--json").stdout.splitlines())
    assert (row["caller"], row["model"], row["value"]) == ("user:ann", "large", 7)
    unknown = gatelock("usage", "--by", "modell")
    assert (unknown.exit_code, "'modell' is not a grouping" in unknown.stderr) == (2, True)


def test_a_policy_in_shadow_needs_no_gate(gatelock: Gatelock, engine: sa.Engine) -> None:
    report(engine, gate_status())
    assert gatelock("check").exit_code == 0
    assert gatelock("policies", "apply", "--yes").exit_code == 0
    assert LACKING not in gatelock("doctor").output


def test_a_policy_that_a_living_gate_cannot_enforce_is_refused(
    gatelock: Gatelock, engine: sa.Engine, migrated_url: str, configure: Configure
) -> None:
    assert gatelock("policies", "apply", "--yes").exit_code == 0
    report(engine, gate_status())
    promoted = gatelock("policies", "enforce", "per-model", "--reason", "now")
    assert (promoted.exit_code, LACKING in " ".join(promoted.output.split())) == (2, True)
    enforced(migrated_url, configure)
    checked = gatelock("check", "--json")
    [sentence] = json.loads(checked.stdout)["not_enforceable"]
    assert (checked.exit_code, LACKING in sentence) == (1, True)
    assert 'write Gate(..., values=["model"]) there' in sentence
    assert "fault       per-model cannot be enforced" in gatelock("check").output
    applied = gatelock("policies", "apply", "--yes")
    assert (applied.exit_code, LACKING in applied.stderr) == (1, True)
    report(engine, gate_status(number=2, values=("model",)))
    assert gatelock("check").exit_code == 0
    assert gatelock("policies", "apply", "--yes").exit_code == 0
    report(engine, gate_status("host:2:cd"))
    examined = gatelock("doctor").output
    assert "host:2:cd does not take the named value model" in " ".join(examined.split())
    assert gatelock("policies", "apply", "--yes").exit_code == 0


def test_a_lock_by_a_value_is_explained_and_cleared_when_its_caller_is_forgotten(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    assert gatelock("policies", "apply", "--yes").exit_code == 0
    now = datetime.now(UTC).replace(microsecond=0)
    lock = Lock(
        "caller+value:model", "user:ann", "per-model", now, now + timedelta(hours=1), resource="large"
    )
    with engine.begin() as db:
        lock_feed.publish(db, [Set(lock)], "m")
    explained = gatelock("explain", "user:ann").output
    assert "on caller+value:model user:ann large" in " ".join(explained.split())
    assert "locks unlock" not in explained
    forgotten = gatelock("callers", "forget", "user:ann", "--reason", "asked", "--yes")
    assert forgotten.exit_code == 0, forgotten.output
    assert "user:ann" not in gatelock("locks", "list").output
    with engine.connect() as db:
        rows = db.execute(sa.select(lock_history.c.scope, lock_history.c.key)).all()
    assert {(row.scope, row.key.partition(":")[0]) for row in rows if row.key} == {
        ("caller+value:model", "forgotten")
    }
