"""Surges and rolling quotas, from log lines to a refused request, and to one that is admitted again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.judging.sql.raised_notices import raised_notices
from analyzer.kernel.model import Record
from analyzer.kernel.tables.schema import postponed, slots, totals
from tests.scenarios.conftest import OpenWorld
from tests.support.whole_loop import World

SOURCE = """
[[sources]]
topic = "access-log"
name = "log"
caller = ["api_key", "address"]
deny_if = { status = 429 }
[sources.fields]
time = { path = "ts", unit = "ms" }
api_key = "key"
status = "status"
address = { path = "ip", prefix6 = 64 }
"""
FLOOD = """
[[policies]]
name = "flood"
kind = "surge"
limit = 60
window = { rolling = "60s" }
lock_for = ["2m", "10m"]
forget_after = "1h"
"""
HOURLY = """
[[policies]]
name = "ten-minutes"
limit = 60
window = { rolling = "10m" }
"""
LONG = """
[[policies]]
name = "six-hours"
limit = 60
window = { rolling = "6h" }
"""

NewWorld = Callable[[str], World]  # by the policies


@pytest.fixture
def new_world(open_world: OpenWorld) -> NewWorld:
    return lambda policies: open_world(SOURCE + policies)


def send(world: World, per_s: int, seconds: int, key: str = "ann") -> list[bool]:
    """Sends requests in even steps; returns the gate's answers."""
    answers: list[bool] = []
    for _ in range(seconds):
        answers += [world.request(key) for _ in range(per_s)]
        world.pass_s(1)
    return answers


def locks_of(world: World) -> int:
    with world.engine.connect() as db:
        return int(db.execute(sa.text("select count(*) from locks")).scalar_one())


def test_a_flood_is_refused_and_the_second_one_for_longer(new_world: NewWorld) -> None:
    world = new_world(FLOOD)
    assert all(send(world, 1, 50)), "50 requests in 50 s are below the limit"
    answers = send(world, 10, 5)
    assert not answers[-1]
    decision = world.gate.check("api_key:ann")
    assert decision.policy == "flood"
    assert decision.reason == "abnormal-usage-detected"
    assert decision.detail.startswith("60 requests in any 1m, ")
    assert world.gate.allow("api_key:bob")
    world.clock.jump(110)
    world.pass_s(11)
    assert world.gate.allow("api_key:ann"), "the lock of the first offence lasts two minutes"
    assert locks_of(world) == 0
    send(world, 30, 4)
    again = world.gate.check("api_key:ann")
    assert "offence 2 within 1h, locked for 10m" in again.detail
    world.clock.jump(590)
    world.pass_s(2)
    assert not world.gate.allow("api_key:ann")
    world.pass_s(10)
    assert world.gate.allow("api_key:ann")


def test_a_flood_that_is_only_watched_is_one_notice_and_the_next_one_another(new_world: NewWorld) -> None:
    world = new_world(FLOOD + 'action = "notify"\n')
    for _ in range(2):
        assert all(send(world, 30, 6)), "nothing is refused"
        assert world.gate.version == 0, "no gate gets anything"
        world.clock.jump(700)
        world.pass_s(2)
    assert locks_of(world) == 0, "they have ended by their time"
    found = raised_notices(world.engine)
    assert [one.notice.at.policy for one in found] == ["flood"] * 2
    assert all(one.notice.detail.startswith("60 requests in any 1m, ") for one in found)
    assert all("locked" not in one.notice.detail for one in found)


def test_notices_of_a_flood_come_less_often_with_each_offence(new_world: NewWorld) -> None:
    """The first one stands for two minutes, the next one for ten."""
    world = new_world(FLOOD + 'action = "notify"\n')
    raised_s = []
    began = world.clock.now()
    for _ in range(11):
        send(world, 30, 4)
        raised_s = [(one.at - began).total_seconds() for one in raised_notices(world.engine)]
        world.clock.jump(50)
        world.pass_s(2)
    last, first = raised_s
    assert 120 <= last - first < 250
    [latest, _] = raised_notices(world.engine)
    assert latest.notice.detail.endswith("offence 2 within 1h")


def test_tags_of_a_flood_last_longer_with_each_offence(new_world: NewWorld) -> None:
    world = new_world(FLOOD + 'action = "tag"\n')
    for lasts_s in (120, 600):
        send(world, 30, 4)
        decision = world.gate.check("api_key:ann")
        assert decision.allowed
        assert decision.tags == ("flood",)
        world.clock.jump(lasts_s - 10)
        world.pass_s(2)
        assert world.gate.check("api_key:ann").tags == ("flood",)
        world.pass_s(11)
        assert world.gate.check("api_key:ann").tags == ()


def test_offences_are_forgotten(new_world: NewWorld) -> None:
    world = new_world(FLOOD)
    send(world, 30, 4)
    assert not world.gate.allow("api_key:ann")
    world.clock.jump(125)
    world.pass_s(2)
    world.clock.jump(3700)
    world.pass_s(2)
    send(world, 30, 4)
    assert "offence" not in world.gate.check("api_key:ann").detail


def test_steady_traffic_below_the_limit_is_never_refused(new_world: NewWorld) -> None:
    """50 in any minute: the sum grows far beyond the limit, and the window never holds it."""
    world = new_world(FLOOD)
    for _ in range(6):
        assert all(send(world, 5, 10))
        world.clock.jump(60)
    with world.engine.connect() as db:
        assert db.execute(sa.select(totals.c.used)).scalar_one() == 300


def test_a_restarted_analyzer_knows_what_was_in_the_window(new_world: NewWorld) -> None:
    world = new_world(FLOOD)
    assert all(send(world, 10, 5))
    world.restart_analyzer()
    assert not send(world, 10, 3)[-1]


def test_a_rolling_quota_ends_when_less_is_in_the_window(new_world: NewWorld) -> None:
    world = new_world(HOURLY)
    assert all(send(world, 1, 30))
    world.clock.jump(240)
    assert not send(world, 10, 5)[-1], "the window of ten minutes holds both"
    world.clock.jump(240)
    world.pass_s(2)
    assert not world.gate.allow("api_key:ann"), "the first 30 are in the window still"
    world.clock.jump(145)
    world.pass_s(5)
    assert world.gate.allow("api_key:ann"), "the first 30 have left it"
    assert locks_of(world) == 0


@pytest.mark.parametrize(("policy", "slot_s"), [(HOURLY, 50), (LONG, 900)])
def test_a_client_reads_the_end_of_what_is_counted_while_its_lock_lasts(
    new_world: NewWorld, policy: str, slot_s: int
) -> None:
    """The requests still count: their application asks no gate, and logs no verdict."""
    world = new_world(policy)
    window_s = 12 * slot_s if policy is HOURLY else 6 * 3600
    send(world, 10, 7)
    world.clock.jump(window_s - 3 * slot_s)
    for _ in range(30):
        world.log.write(key="ann", status=200)
    world.pass_s(2)
    first = world.gate.check("api_key:ann")
    assert not first.allowed
    version = world.gate.version
    for _ in range(200):
        world.log.write(key="ann", status=200)
    world.pass_s(2)
    decision = world.gate.check("api_key:ann")
    assert first.until is not None
    assert decision.until is not None
    assert (decision.until - first.until).total_seconds() >= window_s - 5 * slot_s
    assert decision.retry_after is not None
    assert decision.retry_after >= window_s - slot_s
    for _ in range(20):
        world.log.write(key="ann", status=200)
        world.pass_s(1)
    assert world.gate.version == version + 1, "the end moves with slots, not with requests"


def test_a_rolling_quota_of_hours_is_read_from_the_buckets(new_world: NewWorld) -> None:
    world = new_world(LONG)
    assert all(send(world, 1, 40))
    world.clock.jump(4 * 3600)
    world.pass_s(2)
    assert not send(world, 10, 4)[-1]
    world.clock.jump(3600)
    world.pass_s(2)
    assert not world.gate.allow("api_key:ann")
    world.clock.jump(5400)
    world.pass_s(3)
    assert world.gate.allow("api_key:ann")


def test_a_backlog_locks_no_caller(new_world: NewWorld) -> None:
    """A day of innocent requests that arrives within seconds; the clock of the records counts."""
    world = new_world(FLOOD)
    now_ms = world.clock.wall_ns() // 1_000_000
    late = [
        Record(
            offset,
            now_ms,
            b'{"ts": %d, "key": "ann", "status": 200}' % (now_ms - 86_400_000 + offset * 20_000),
        )
        for offset in range(4_000)
    ]
    world.log.records.extend(late)
    world.pass_s(5)
    assert world.gate.allow("api_key:ann")
    assert locks_of(world) == 0


def test_a_clock_that_is_ahead_locks_when_its_time_has_come(new_world: NewWorld) -> None:
    """Requests that say they are of in two minutes: no window that holds the present has them."""
    world = new_world(FLOOD)
    now_ms = world.clock.wall_ns() // 1_000_000
    for offset in range(80):
        value = b'{"ts": %d, "key": "ann", "status": 200}' % (now_ms + 120_000)
        world.log.records.append(Record(offset, now_ms, value))
    world.pass_s(5)
    assert world.gate.allow("api_key:ann")
    with world.engine.connect() as db:
        assert len(db.execute(sa.select(postponed.c.due_ms)).all()) == 1
    world.pass_s(70)
    assert not world.gate.allow("api_key:ann"), "without a further record"


def test_denied_requests_never_extend_a_lock(new_world: NewWorld) -> None:
    world = new_world(FLOOD)
    send(world, 30, 3)
    for _ in range(11):
        assert not any(send(world, 20, 1))
        world.clock.jump(9)
    world.pass_s(12)
    assert world.gate.allow("api_key:ann")


def test_slots_of_past_generations_are_emptied(new_world: NewWorld) -> None:
    world = new_world(FLOOD)
    send(world, 1, 3)
    for _ in range(4):
        world.clock.jump(7200)
        world.pass_s(2)
        world.clock.advance(61)
        world.pass_s(1)
    with world.engine.connect() as db:
        assert [db.execute(sa.select(sa.func.count()).select_from(table)).scalar() for table in slots] == [
            0
        ] * 3
    world.request("bob")  # that the first total has not grown shows only when something newer is counted
    world.clock.advance(61)
    world.pass_s(3)
    with world.engine.connect() as db:
        assert db.execute(sa.select(totals.c.key)).scalars().all() == ["api_key:bob"]


NETWORKS = """
[[policies]]
name = "network"
kind = "surge"
per = "address/24"
limit = 60
window = { rolling = "60s" }
"""


def write_from(world: World, addresses: int, requests: int, first: int = 1) -> None:
    """Logs requests that the addresses of a network share evenly."""
    for number in range(requests):
        world.log.write(ip=f"192.0.2.{first + number % addresses}", status=200)
    world.pass_s(2)


def test_a_network_is_locked_for_what_many_addresses_do(new_world: NewWorld) -> None:
    world = new_world(NETWORKS)
    write_from(world, 14, 50)
    assert world.gate.check(address="192.0.2.99")
    write_from(world, 14, 40)
    decision = world.gate.check(address="192.0.2.99")
    assert decision.detail == "60 requests in any 1m, 90 counted from 14 addresses; locked for 10m"
    assert world.gate.check(address="198.51.100.1")


def test_a_network_is_not_locked_by_a_new_plan_for_what_one_address_does(
    new_world: NewWorld, tmp_path: Path
) -> None:
    """The policy's action changes while the window still holds the requests."""
    world = new_world(NETWORKS)
    write_from(world, 1, 200)
    world.pass_s(1)
    (tmp_path / "gatelock.toml").write_text(SOURCE + NETWORKS + 'action = "tag"\n')
    world.plan = load(tmp_path / "gatelock.toml").plan()
    world.restart_analyzer()
    world.pass_s(3)
    assert locks_of(world) == 0


def test_a_network_is_not_locked_for_what_one_address_does(new_world: NewWorld) -> None:
    world = new_world(NETWORKS)
    write_from(world, 1, 200)
    write_from(world, 7, 28, first=40)
    assert world.gate.check(address="192.0.2.1"), "without the busiest, 28 are less than half the limit"
    write_from(world, 7, 4, first=40)
    world.pass_s(6)
    decision = world.gate.check(address="192.0.2.99")
    assert decision.detail.startswith("60 requests in any 1m, 232 counted from 8 addresses")
