"""From a policy's words in the configuration, through SQL, to what a request is answered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.store.database.engine import open_engine
from analyzer.store.transaction.sql_store import SqlStore
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

# What the policy says, and what the second, fourth and fifth request of a caller who is locked are answered.
WORDS = {
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


def answers(gate: Gate, caller: str, **asked: str) -> list[Decision]:
    said = [gate.check(caller, **asked) for _ in range(5)]
    return [said[1], said[3], said[4]]


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("way", ["sql", "http"])
def test_what_a_policy_says_is_what_a_request_is_answered(
    engine: sa.Engine, migrated_url: str, tmp_path: Path, name: str, way: str
) -> None:
    more, wanted = WORDS[name]
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
        if way == "sql":
            said = asked_of(source, clock)
        else:
            with feed_server(source) as url:
                said = asked_of(url, clock)
    finally:
        source.close()
    assert [(each.allowed, each.status) for each in said] == wanted
    assert {each.policy for each in said} == {name}
    assert all(each.tags == ((name,) if name == "tagged" else ()) for each in said)
    assert all("10 requests per month (UTC), 10 counted" in each.detail for each in said)


def asked_of(source: object, clock: ManualClock) -> list[Decision]:
    with Gate(source, clock=clock) as gate:
        assert gate.ready(10.0)
        assert gate.check("user:ann") is ALLOWED
        return answers(gate, "api_key:acme")


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


def test_an_action_that_changes_in_the_configuration_changes_at_the_gates(
    engine: sa.Engine, migrated_url: str, tmp_path: Path
) -> None:
    """The lock that stands is another one within a poll: from a refusal to a tag."""
    file = tmp_path / "gatelock.toml"
    clock = ManualClock(datetime.now(UTC))
    store = SqlStore(engine, "here")
    said = []
    with Gate(migrated_url, clock=clock) as gate:
        for name in WORDS:
            text = POLICY.format(name="p", per="caller", limit=10, more=WORDS[name][0])
            file.write_text(f'[database]\nurl = "{migrated_url}"\n{text}')
            plan = load(file).plan()
            store.activate(plan)
            if not said:
                flush(store, plan, [a_row(10, now_s(engine))])
            assert gate.ready(10.0)
            clock.advance(0.44)
            last = [gate.check("api_key:acme") for _ in range(4)][-1]
            said.append((last.allowed, last.status, last.tags))
    assert said == [
        (False, 429, ()), (False, 503, ()), (False, 403, ()), (False, 429, ()), (True, 429, ("p",)),
    ]  # fmt: skip
