"""`gatelock locks`: the switch that opens every gate, from the command line to the gates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.faces.signals.status import installation_status
from analyzer.judging.locks import lock_feed
from analyzer.judging.locks.suspension import suspended_until
from analyzer.kernel.database.engine import writing
from analyzer.kernel.database.revisions import head
from analyzer.kernel.tables.schema import locks
from gatekeeper import Gate
from gatekeeper.model import SUSPENSION, Lock, Rate, Set
from gatekeeper.testing import ManualClock
from tests.support.serving import feed_server
from tests.support.upkeep import Upkeep

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

ACME = "api_key:acme"
WHY = "--reason", "the flood was our own"
A_POLL_S = 0.4 * 1.1


@pytest.fixture
def engine(engine: sa.Engine) -> sa.Engine:
    with writing(engine) as db:
        began = datetime.now(UTC).replace(microsecond=0)
        lock = Lock("caller", ACME, "daily", began, began + timedelta(days=9), detail="too many")
        lock_feed.publish(db, [Set(lock)], "m1")
    return engine


@pytest.fixture
def clock() -> ManualClock:
    """A clock that begins at the time of the database, which tests cannot move."""
    return ManualClock(datetime.now(UTC))


def gates(url: str, clock: ManualClock) -> list[Gate]:
    found = [Gate(url, clock=clock, stale_after=10**6) for _ in range(3)]
    assert all(gate.ready(5.0) for gate in found)
    return found


def test_every_gate_opens_within_one_poll_and_enforces_its_locks_again_within_one(
    gatelock: Gatelock, engine: sa.Engine, migrated_url: str, clock: ManualClock
) -> None:
    fleet = gates(migrated_url, clock)
    assert [gate.allow(ACME) for gate in fleet] == [False] * 3
    result = gatelock("locks", "suspend", "--for", "1h", *WHY)
    assert (result.exit_code, result.output[:25]) == (0, "every gate is open until ")
    clock.advance(A_POLL_S)
    assert [(gate.allow(ACME), gate.off) for gate in fleet] == [(True, "fleet")] * 3
    assert [bool(gate.check(ACME)) for gate in fleet] == [True] * 3
    assert gatelock("locks", "resume", *WHY).exit_code == 0
    clock.advance(A_POLL_S)
    assert [(gate.allow(ACME), gate.off) for gate in fleet] == [(False, "")] * 3
    for gate in fleet:
        gate.close()


def test_a_gate_over_http_opens_too(gatelock: Gatelock, engine: sa.Engine, migrated_url: str) -> None:
    """On the real clock, by a long poll."""
    from gatekeeper.sources import open_source

    with (
        closing(open_source(migrated_url)) as source,
        feed_server(source) as url,
        Gate(url) as gate,
    ):
        assert gate.ready(10.0)
        assert not gate.allow(ACME)
        gatelock("locks", "suspend", "--for", "1h", *WHY)
        end = datetime.now(UTC) + timedelta(seconds=10)
        while not gate.allow(ACME):
            assert datetime.now(UTC) < end
        assert gate.off == "fleet"


def test_the_suspension_ends_in_gates_that_cannot_poll(
    gatelock: Gatelock, engine: sa.Engine, migrated_url: str, clock: ManualClock
) -> None:
    gatelock("locks", "suspend", "--for", "1h", *WHY)
    [gate, *others] = gates(migrated_url, clock)
    with engine.begin() as db:
        db.exec_driver_sql("alter table feed rename to gone")
    clock.jump(3590)
    assert gate.allow(ACME)
    clock.jump(20)
    assert (gate.allow(ACME), gate.off) == (False, "")
    with engine.begin() as db:
        db.exec_driver_sql("alter table gone rename to feed")
    for opened in (gate, *others):
        opened.close()


def test_the_warden_removes_the_suspension_at_its_end(gatelock: Gatelock, engine: sa.Engine) -> None:
    gatelock("locks", "suspend", "--for", "1h", *WHY)
    with engine.begin() as db:
        db.execute(sa.update(locks).where(locks.c.policy == SUSPENSION.policy).values(until_ms=1))
    assert suspended_until(engine) is None
    Upkeep(engine, lambda: "m9").end_locks()
    with engine.begin() as db:
        assert [row.policy for row in db.execute(sa.select(locks))] == ["daily"]


def test_the_last_suspension_replaces_the_one_before_and_each_action_is_logged(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    gatelock("locks", "suspend", "--for", "2h", *WHY)
    gatelock("locks", "suspend", "--for", "5m", "--reason", "that was too long")
    until = suspended_until(engine)
    assert until is not None
    assert timedelta(minutes=4) < until - datetime.now(UTC) <= timedelta(minutes=5)
    gatelock("locks", "resume", "--reason", "resolved")
    events = [json.loads(line) for line in gatelock("upkeep", "events", "list", "--json").output.splitlines()]
    assert [(event["act"], event["why"]) for event in events] == [
        ("locks resume", "resolved"),
        ("locks suspend", "that was too long"),
        ("locks suspend", WHY[1]),
    ]
    assert all("@" in event["who"] for event in events)
    assert re.fullmatch(r"until 20\d\d-.*Z", events[1]["about"])


def test_the_list_of_locks_says_that_they_are_suspended(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert gatelock("locks", "list").stderr == ""
    gatelock("locks", "suspend", "--for", "1h", *WHY)
    result = gatelock("locks", "list")
    assert result.stderr.startswith("no lock is enforced until 20")
    assert WHY[1] in result.stdout
    by_policy = {
        row["policy"]: row for row in map(json.loads, gatelock("locks", "list", "--json").stdout.splitlines())
    }
    assert (by_policy[":suspended"]["action"], by_policy["daily"]["action"]) == ("suspend", "deny")


def test_the_status_does_not_count_the_suspension_as_a_lock(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert installation_status(engine, head())[1:4] == ({"daily": 1}, 1, None)
    gatelock("locks", "suspend", "--for", "1h", *WHY)
    assert installation_status(engine, head())[1:4] == ({"daily": 1}, 2, suspended_until(engine))


def test_the_help_shows_suspend_and_resume_in_one_line_each(gatelock: Gatelock) -> None:
    listed = gatelock("locks", "--help").output
    for line in ("suspend  Open every gate for a time: the off switch.", "resume   End `suspend`:"):
        assert line in listed


def test_resuming_without_a_suspension_exits_with_1(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("locks", "resume", *WHY)
    assert (result.exit_code, result.stderr) == (1, "the locks are not suspended: the gates enforce them\n")
    assert gatelock("upkeep", "events", "list").output == "no act was recorded\n"


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--for", "soon", *WHY], "--for: soon: write a length"),
        (["--for", "0s", *WHY], "--for: 0s: write a length"),
        (["--for", "31d", *WHY], "--for: 31d: write a length such as 30m, 12h or 7d; at most 30d"),
        (["--for", "1h", "--reason", " "], "--reason: write a reason"),
    ],
)
def test_impossible_arguments_exit_with_2(
    gatelock: Gatelock, engine: sa.Engine, arguments: list[str], sentence: str
) -> None:
    result = gatelock("locks", "suspend", *arguments)
    assert (result.exit_code, result.stderr.startswith(sentence)) == (2, True)
    assert suspended_until(engine) is None


@pytest.mark.parametrize("database", ["sqlite"])
def test_the_list_shows_the_action_of_each_lock(gatelock: Gatelock, engine: sa.Engine) -> None:
    began = datetime.now(UTC)
    with writing(engine) as db:
        kinds = [{"action": "slow", "slow": Rate(1_000, 60.0)}, {"action": "tag"}, {"status": 503}]
        added = [
            Lock("range", f"10.{n}.0.0/16", "p", began, began + timedelta(days=1), **kind)
            for n, kind in enumerate(kinds)
        ]
        lock_feed.publish(db, [Set(lock) for lock in added], "m2")
    listed = gatelock("locks", "list").output
    for does in ("slow 1,000/60s", "\ttag\t", "deny 503", "deny 429"):
        assert does in listed
