"""locks: the switch that opens every gate, thrown from the command line, seen by the gates."""

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

from analyzer.store.database.engine import writing
from analyzer.store.database.revisions import head
from analyzer.store.database.schema import locks
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.reports.status import installation_status, suspended_until
from analyzer.store.transaction import lock_feed
from gatekeeper import Gate
from gatekeeper.model import SUSPENSION, Lock, Rate, Set
from gatekeeper.testing import ManualClock
from tests.support.serving import feed_server

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
    """As late as it is in the database, whose clock is not ours to move."""
    return ManualClock(datetime.now(UTC))


def gates(url: str, clock: ManualClock) -> list[Gate]:
    found = [Gate(url, clock=clock, stale_after=10**6) for _ in range(3)]
    assert all(gate.ready(5.0) for gate in found)
    return found


def test_every_gate_opens_within_one_poll_and_follows_its_locks_again_within_one(
    gatelock: Gatelock, engine: sa.Engine, migrated_url: str, clock: ManualClock
) -> None:
    fleet = gates(migrated_url, clock)
    assert [gate.allow(ACME) for gate in fleet] == [False] * 3
    told = gatelock("locks", "suspend", "--for", "1h", *WHY)
    assert (told.exit_code, told.output[:25]) == (0, "every gate is open until ")
    clock.advance(A_POLL_S)
    assert [(gate.allow(ACME), gate.off) for gate in fleet] == [(True, "fleet")] * 3
    assert [bool(gate.check(ACME)) for gate in fleet] == [True] * 3
    assert gatelock("locks", "resume", *WHY).exit_code == 0
    clock.advance(A_POLL_S)
    assert [(gate.allow(ACME), gate.off) for gate in fleet] == [(False, "")] * 3
    for gate in fleet:
        gate.close()


def test_over_http_too(gatelock: Gatelock, engine: sa.Engine, migrated_url: str) -> None:
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


def test_it_ends_by_itself_in_gates_that_can_ask_nobody(
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
    for each in (gate, *others):
        each.close()


def test_the_warden_takes_it_away_when_its_time_is_over(gatelock: Gatelock, engine: sa.Engine) -> None:
    gatelock("locks", "suspend", "--for", "1h", *WHY)
    with engine.begin() as db:
        db.execute(sa.update(locks).where(locks.c.policy == SUSPENSION.policy).values(until_ms=1))
    assert suspended_until(engine) is None
    SqlUpkeep(engine, "here", lambda: "m9").end_locks()
    with engine.begin() as db:
        assert [row.policy for row in db.execute(sa.select(locks))] == ["daily"]


def test_the_new_end_counts_and_each_act_is_written_down(gatelock: Gatelock, engine: sa.Engine) -> None:
    gatelock("locks", "suspend", "--for", "2h", *WHY)
    gatelock("locks", "suspend", "--for", "5m", "--reason", "that was too long")
    until = suspended_until(engine)
    assert until is not None
    assert timedelta(minutes=4) < until - datetime.now(UTC) <= timedelta(minutes=5)
    gatelock("locks", "resume", "--reason", "mended")
    events = [json.loads(line) for line in gatelock("events", "list", "--json").output.splitlines()]
    assert [(event["act"], event["why"]) for event in events] == [
        ("gates resumed", "mended"),
        ("gates suspended", "that was too long"),
        ("gates suspended", WHY[1]),
    ]
    assert all("@" in event["who"] for event in events)
    assert re.fullmatch(r"until 20\d\d-.*Z", events[1]["about"])


def test_who_looks_at_the_locks_is_told(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert gatelock("locks", "list").stderr == ""
    gatelock("locks", "suspend", "--for", "1h", *WHY)
    told = gatelock("locks", "list")
    assert told.stderr.startswith("no lock is enforced until 20")
    assert WHY[1] in told.stdout
    by_policy = {
        row["policy"]: row for row in map(json.loads, gatelock("locks", "list", "--json").stdout.splitlines())
    }
    assert (by_policy[":suspended"]["action"], by_policy["daily"]["action"]) == ("suspend", "deny")


def test_a_glance_tells_it_apart_from_the_locks(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert installation_status(engine, head())[1:] == ({"daily": 1}, 1, None)
    gatelock("locks", "suspend", "--for", "1h", *WHY)
    assert installation_status(engine, head())[1:] == ({"daily": 1}, 2, suspended_until(engine))


def test_the_help_names_both_in_a_line(gatelock: Gatelock) -> None:
    listed = gatelock("locks", "--help").output
    for line in ("suspend  Open every gate for a time: the off switch.", "resume   End `suspend`:"):
        assert line in listed


def test_to_resume_what_is_not_suspended_is_1(gatelock: Gatelock, engine: sa.Engine) -> None:
    told = gatelock("locks", "resume", *WHY)
    assert (told.exit_code, told.stderr) == (1, "the gates follow their locks: nothing is suspended\n")
    assert gatelock("events", "list").output == "nothing was done by hand\n"


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--for", "soon", *WHY], "--for soon: write how long"),
        (["--for", "0s", *WHY], "--for 0s: write how long"),
        (["--for", "31d", *WHY], "--for 31d: write how long, as in 30m, 12h, 7d; at most 30d"),
        (["--for", "1h", "--reason", " "], "--reason: say why"),
    ],
)
def test_what_cannot_be_is_2(
    gatelock: Gatelock, engine: sa.Engine, arguments: list[str], sentence: str
) -> None:
    told = gatelock("locks", "suspend", *arguments)
    assert (told.exit_code, told.stderr.startswith(sentence)) == (2, True)
    assert suspended_until(engine) is None


@pytest.mark.parametrize("database", ["sqlite"])
def test_the_list_says_what_each_lock_does(gatelock: Gatelock, engine: sa.Engine) -> None:
    began = datetime.now(UTC)
    with writing(engine) as db:
        kinds = [{"action": "slow", "slow": Rate(1_000, 60.0)}, {"action": "tag"}, {"status": 503}]
        made = [
            Lock("range", f"10.{n}.0.0/16", "p", began, began + timedelta(days=1), **kind)
            for n, kind in enumerate(kinds)
        ]
        lock_feed.publish(db, [Set(lock) for lock in made], "m2")
    listed = gatelock("locks", "list").output
    for does in ("slow 1,000/60s", " tag ", "deny 503", "deny 429"):
        assert does in listed
