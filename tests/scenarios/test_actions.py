"""Actions of policies: from the configuration, through SQL or HTTP, to the decision for a request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from gatekeeper import ALLOWED, Decision, Gate
from gatekeeper.sources import open_source
from gatekeeper.testing import ManualClock
from tests.store.flushing import a_row, flush, now_s
from tests.support.serving import feed_server

POLICY = """
[[policies]]
name = "{name}"
per = "{per}"
limit = {limit}
window = {{ per = "month" }}
{more}
"""

# An action in the configuration, and (allowed, status) of the second, fourth and fifth request of a locked
# caller.
ACTIONS = {
    "too-many": ('action = "deny"', [(False, 429)] * 3),
    "broken": ("action = { deny = 503 }", [(False, 503)] * 3),
    "forbidden": ('action = "deny"\nstatus = 403', [(False, 403)] * 3),
    "slowed": ('action = { slow = "3/h" }', [(True, 429), (False, 429), (False, 429)]),
    "tagged": ('action = "tag"', [(True, 429)] * 3),
}


@pytest.fixture
def engine(migrated_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(migrated_url)
    yield engine
    engine.dispose()


def second_fourth_and_fifth(gate: Gate, caller: str) -> list[Decision]:
    decisions = [gate.check(caller) for _ in range(5)]
    return [decisions[1], decisions[3], decisions[4]]


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("transport", ["sql", "http"])
def test_the_action_of_a_policy_decides_the_requests_of_a_locked_caller(
    engine: sa.Engine, migrated_url: str, tmp_path: Path, name: str, transport: str
) -> None:
    more, expected = ACTIONS[name]
    (tmp_path / "gatelock.toml").write_text(
        f'[database]\nurl = "{migrated_url}"\n' + POLICY.format(name=name, per="caller", limit=10, more=more)
    )
    plan = load(tmp_path / "gatelock.toml").plan()
    store = SqlStore(engine, "here")
    store.activate(plan)
    flush(store, plan, [a_row(10, now_s(engine)), a_row(9, now_s(engine), "user:ann")])
    clock = ManualClock(datetime.now(UTC))
    source = open_source(migrated_url)
    try:
        if transport == "sql":
            decisions = decisions_of(source, clock)
        else:
            with feed_server(source) as url:
                decisions = decisions_of(url, clock)
    finally:
        source.close()
    assert [(decision.allowed, decision.status) for decision in decisions] == expected
    assert {decision.policy for decision in decisions} == {name}
    assert all(decision.tags == ((name,) if name == "tagged" else ()) for decision in decisions)
    assert all("10 requests per month (UTC), 10 counted" in decision.detail for decision in decisions)


def decisions_of(source: object, clock: ManualClock) -> list[Decision]:
    with Gate(source, clock=clock) as gate:
        assert gate.ready(10.0)
        assert gate.check("user:ann") is ALLOWED
        return second_fourth_and_fifth(gate, "api_key:acme")


def test_a_policy_by_caller_and_resource_locks_that_resource_for_that_caller(
    engine: sa.Engine, migrated_url: str, tmp_path: Path
) -> None:
    text = POLICY.format(name="exports", per="caller+resource", limit=2, more="")
    (tmp_path / "gatelock.toml").write_text(f'[database]\nurl = "{migrated_url}"\n{text}')
    plan = load(tmp_path / "gatelock.toml").plan()
    store = SqlStore(engine, "here")
    store.activate(plan)
    flush(store, plan, [a_row(2, now_s(engine), resource="/v1/export/{id}")])
    with Gate(migrated_url, clock=ManualClock(datetime.now(UTC))) as gate:
        assert gate.ready(10.0)
        assert gate.check("api_key:acme", resource="/v1/export/{export_id}").policy == "exports"
        assert gate.check("api_key:acme", resource="/v1/items") is ALLOWED
        assert gate.check("user:ann", resource="/v1/export/{id}") is ALLOWED


def test_a_changed_action_reaches_the_gates_within_a_poll(
    engine: sa.Engine, migrated_url: str, tmp_path: Path
) -> None:
    """Also for a lock that is in force, for example from a refusal to a tag."""
    file = tmp_path / "gatelock.toml"
    clock = ManualClock(datetime.now(UTC))
    store = SqlStore(engine, "here")
    seen = []
    with Gate(migrated_url, clock=clock) as gate:
        for name in ACTIONS:
            text = POLICY.format(name="p", per="caller", limit=10, more=ACTIONS[name][0])
            file.write_text(f'[database]\nurl = "{migrated_url}"\n{text}')
            plan = load(file).plan()
            store.activate(plan)
            if not seen:
                flush(store, plan, [a_row(10, now_s(engine))])
            assert gate.ready(10.0)
            clock.advance(0.44)
            last = [gate.check("api_key:acme") for _ in range(4)][-1]
            seen.append((last.allowed, last.status, last.tags))
    assert seen == [
        (False, 429, ()), (False, 503, ()), (False, 403, ()), (False, 429, ()), (True, 429, ("p",)),
    ]  # fmt: skip
