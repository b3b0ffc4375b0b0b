"""A noisy neighbour, from log lines to a refused request, and back to an admitted one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.faces.signals.status import installation_status
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.judging.sql.raised_notices import raised_notices
from analyzer.kernel.database.revisions import head
from analyzer.kernel.model import CountRow, Lag
from analyzer.kernel.tables.schema import holds, locks, postponed
from analyzer.plan.plan import Plan
from analyzer.plan.windows import DAY_S
from gatekeeper.adapters.route_patterns import RoutePatterns
from tests.support.fresh_databases import migrated_sqlite
from tests.support.stored_counts import put_counts
from tests.support.whole_loop import PART, World

EXPORT, SEARCH = "/v1/export", "/v1/search"
CONFIGURATION = """
[[sources]]
topic = "access-log"
name = "log"
deny_if = { status = 429 }
[sources.fields]
time = { path = "ts", unit = "ms" }
api_key = "key"
status = "status"
resource = { path = "path", routes = ["/v1/export", "/v1/search"], else = "other" }
[[policies]]
name = "neighbour"
kind = "share"
per = "caller"
of = "resource"
limit = 0.40
floor = "1/s"
hold = "10s"
release = 0.25
window = { rolling = "60s" }
action = "deny"
"""


def plan_with(folder: Path, without: str = "", **changed: str) -> Plan:
    """Returns the plan of the configuration, with other keys of the policy, and without one."""
    sources, policy = CONFIGURATION.split("[[policies]]\n")
    keys = dict(line.split(" = ", 1) for line in policy.splitlines()) | changed
    keys.pop(without, None)
    text = "".join(f"{key} = {value}\n" for key, value in keys.items())
    (folder / "gatelock.toml").write_text(f"{sources}[[policies]]\n{text}")
    return load(folder / "gatelock.toml").plan()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    url = migrated_sqlite(tmp_path)
    world = World(url, InlineFlushes(), plan_with(tmp_path), step_s=0.5)
    world.gate.ready(1)
    world.pass_s(2)
    yield world
    world.close()


def load_s(world: World, seconds: int, noisy: int, others: int, path: str = EXPORT) -> int:
    """Sends so many requests per second of one caller, and of ten others together.

    Returns the second in which the first one was refused, or -1.
    """
    refused_s = -1
    for second in range(seconds):
        for _ in range(noisy):
            admits = is_admitted(world, path)
            refused_s = second if not admits and refused_s < 0 else refused_s
            world.log.write(key="noisy", path=path, status=200 if admits else 429)
        for number in range(others):
            world.log.write(key=f"other-{(second * others + number) % 10}", path=path, status=200)
        world.pass_s(1)
    return refused_s


def put_in_force(world: World, plan: Plan) -> None:
    """Restarts the analyzer with another configuration."""
    world.plan = plan
    world.restart_analyzer()


def is_admitted(world: World, path: str = EXPORT, key: str = "noisy") -> bool:
    return bool(world.gate.check(f"api_key:{key}", resource=path))


def count(world: World, table: sa.Table) -> int:
    with world.engine.connect() as db:
        return db.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def test_a_caller_with_more_than_its_share_is_refused_on_this_resource_until_it_has_less(
    world: World,
) -> None:
    # 60 requests are there after 15 s, and the hold lasts for 10 s more.
    assert 24 <= load_s(world, 30, noisy=4, others=4) <= 27
    assert not is_admitted(world)
    assert is_admitted(world, SEARCH)
    assert is_admitted(world, key="other-0")
    decision = world.gate.check("api_key:noisy", resource=EXPORT)
    assert decision.policy == "neighbour"
    assert decision.reason == "abnormal-usage-detected"
    assert decision.detail.startswith("50 % of all requests of the resource in 1m, ")
    load_s(world, 70, noisy=0, others=4)
    assert is_admitted(world)
    assert (count(world, locks), count(world, holds)) == (0, 0)


def test_a_neighbour_that_is_only_watched_is_one_notice_as_long_as_it_lasts(
    world: World, tmp_path: Path
) -> None:
    put_in_force(world, plan_with(tmp_path, action='"notify"'))
    assert load_s(world, 150, noisy=4, others=4) == -1
    (raised,) = raised_notices(world.engine)
    assert (raised.notice.at.key, raised.notice.at.resource) == ("api_key:noisy", EXPORT)
    assert raised.notice.used >= raised.notice.limit >= 60
    assert raised.notice.detail.startswith("50 % of all requests of the resource in 1m, ")
    load_s(world, 70, noisy=0, others=4)
    assert (count(world, locks), count(world, holds)) == (0, 0)
    assert world.gate.version == 0, "no gate got anything"


def test_a_lock_ends_although_the_caller_continues_because_refused_requests_do_not_count(
    world: World,
) -> None:
    load_s(world, 30, noisy=4, others=4)
    assert not is_admitted(world)
    load_s(world, 70, noisy=4, others=4)
    with world.engine.connect() as db:
        cleared = sa.text("select count(*) from lock_history where cause = 'cleared'")
        assert db.execute(cleared).scalar_one() == 1


def test_a_caller_that_is_slowed_stays_slowed_while_what_is_let_through_is_too_much(
    world: World, tmp_path: Path
) -> None:
    put_in_force(world, plan_with(tmp_path, action='{ slow = "2/s" }'))
    load_s(world, 150, noisy=4, others=4)
    with world.engine.connect() as db:
        # Extended each 30 s, as versions of one lock.
        assert db.execute(sa.select(sa.func.count()).select_from(locks)).scalar_one() == 1
        assert db.execute(sa.text("select count(*) from lock_changes where op = 'clear'")).scalar_one() == 0
        began, until = db.execute(sa.select(locks.c.began_ms, locks.c.until_ms)).one()
    assert until - began > 120_000
    admitted = sum(is_admitted(world) for _ in range(4))
    assert 0 < admitted < 4


def test_no_caller_is_locked_that_is_above_the_share_for_less_than_the_hold(world: World) -> None:
    for _ in range(4):
        assert load_s(world, 6, noisy=9, others=1) == -1
        assert load_s(world, 12, noisy=0, others=20) == -1
    assert count(world, locks) == 0


def test_a_large_share_below_the_floor_costs_no_judgement(world: World, tmp_path: Path) -> None:
    put_in_force(world, plan_with(tmp_path, floor='"2/s"'))
    assert load_s(world, 90, noisy=1, others=0) == -1
    assert count(world, postponed) == 0


def test_a_restart_forgets_neither_the_hold_nor_the_lock(world: World) -> None:
    load_s(world, 22, noisy=4, others=4)
    assert count(world, holds) == 1
    world.restart_analyzer()
    assert load_s(world, 6, noisy=4, others=4) in (2, 3, 4, 5)
    world.restart_analyzer()
    world.pass_s(3)
    assert not is_admitted(world)


def test_gates_open_by_themselves_when_no_analyzer_works(world: World) -> None:
    load_s(world, 30, noisy=4, others=4)
    assert not is_admitted(world)
    world.clock.advance(61)
    assert is_admitted(world)


def test_no_caller_is_locked_while_the_analyzers_are_behind_and_the_status_counts_them(world: World) -> None:
    world.log.lags = lambda: {PART: Lag(9, 60.0)}
    assert load_s(world, 40, noisy=4, others=4) == -1
    assert installation_status(world.engine, head()).waiting_judgements == 1
    del world.log.lags
    assert 9 <= load_s(world, 20, noisy=4, others=4) <= 13
    assert installation_status(world.engine, head()).waiting_judgements == 0


def test_records_that_are_older_than_the_window_cause_no_lock(world: World) -> None:
    late_ms = world.clock.wall_ns() // 1_000_000 - 300_000
    for number in range(600):
        world.log.write(ts=late_ms + number, key="noisy", path=EXPORT, status=200)
    world.pass_s(30)
    assert is_admitted(world)
    assert count(world, locks) == 0


def test_a_changed_action_is_in_the_lock_within_seconds_and_a_policy_that_is_gone_has_none(
    world: World, tmp_path: Path
) -> None:
    load_s(world, 30, noisy=4, others=4)
    assert not is_admitted(world)
    put_in_force(world, plan_with(tmp_path, action='"tag"'))
    world.pass_s(3)
    assert is_admitted(world)
    assert world.gate.check("api_key:noisy", resource=EXPORT).tags == ("neighbour",)
    put_in_force(world, plan_with(tmp_path, name='"other"'))
    world.pass_s(3)
    assert count(world, locks) == 0


def test_the_heaviest_of_5_000_callers_is_the_only_one_that_is_locked_for_an_overload(
    world: World, tmp_path: Path
) -> None:
    # Within 25 s more than in a minute at capacity; without the heaviest caller not even within 40 s.
    put_in_force(world, plan_with(tmp_path, "limit", capacity='{ "/v1/export" = "120/s" }', release="0.75"))
    send_among_5_000(world)
    assert locked_ever(world) == [("api_key:noisy", EXPORT)]


def test_of_5_000_callers_only_the_one_far_above_its_usual_load_is_locked(
    world: World, tmp_path: Path
) -> None:
    # Both are above the floor; the large one always is. In a minute a 60th of the hour is usual.
    hour_s = world.clock.wall_ns() // 10**9 // 3600 * 3600
    with world.engine.begin() as db:
        put_counts(
            db,
            [
                CountRow("caller+resource", key, EXPORT, "requests", 900, hour_s - week * 7 * DAY_S, value, 0)
                for key, value in (("api_key:noisy", 6_000), ("api_key:large", 180_000))
                for week in (1, 2, 3)
            ],
        )
    put_in_force(world, plan_with(tmp_path, "limit", usual="3", floor='"10/s"', release="0.75"))
    send_among_5_000(world)
    assert locked_ever(world) == [("api_key:noisy", EXPORT)]


def test_a_noisy_neighbour_among_5_000_callers_is_the_only_one_that_is_locked(world: World) -> None:
    send_among_5_000(world)
    assert locked_ever(world) == [("api_key:alone", SEARCH), ("api_key:noisy", EXPORT)]


def send_among_5_000(world: World) -> None:
    """Sends 40 s of requests: of 5,000 small callers, a large one, a noisy one, one elsewhere."""
    for second in range(40):
        for number in range(125):
            world.log.write(key=f"caller-{second * 125 + number:04}", path=EXPORT, status=200)
        for key, requests, path in (("noisy", 120, EXPORT), ("large", 50, EXPORT), ("alone", 5, SEARCH)):
            for _ in range(requests if second < 30 or key != "alone" else 0):
                world.log.write(key=key, path=path, status=200 if is_admitted(world, path, key) else 429)
        world.pass_s(1)


def locked_ever(world: World) -> list[tuple[str, str]]:
    """Returns the callers and resources that have, or had, a lock."""
    with world.engine.connect() as db:
        found = db.execute(
            sa.text("select distinct key, resource from lock_history where policy <> ''")
        ).all()
    return sorted((key, resource) for key, resource in found)


def test_without_routes_the_path_is_the_resource_that_guards_ask_for(world: World, tmp_path: Path) -> None:
    plan_with(tmp_path)
    file = tmp_path / "gatelock.toml"
    file.write_text(re.sub(r", routes = .*?\], else = \"other\"", "", file.read_text()))
    put_in_force(world, load(file).plan())
    load_s(world, 30, noisy=4, others=4, path="/invoices?page=2")
    assert not is_admitted(world, RoutePatterns([]).match("/invoices"))
    assert is_admitted(world, SEARCH)
