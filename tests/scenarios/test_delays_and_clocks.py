"""Records that come late, and clocks that are wrong: measured by the loop, stored, and shown."""

from __future__ import annotations

import json

from analyzer.build import MeasuringObserver
from analyzer.counting.measured_delays import DelayLimits, alarms
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from tests.scenarios.conftest import OpenWorld
from tests.support.whole_loop import World

SOURCE = """
[[sources]]
name = "log"
topic = "access-log"
format = "json"
caller = ["api_key"]
[sources.fields]
time = { path = "ts", unit = "ms" }
api_key = "key"
[[policies]]
name = "hourly"
limit = 100
window = { per = "hour" }
"""


LIMITS = DelayLimits(30.0, 2.0)


def watched(world: World) -> Health:
    health = Health(Metrics("1"), lambda: world.clock.wall_ns() / 1e9)
    world.daemon.observer = health
    observer: MeasuringObserver = health
    assert observer.measured.sources == {}
    return health


def write(world: World, request_ms_ago: int, kafka_ms_ago: int = 0) -> None:
    now_ms = world.clock.wall_ns() // 1_000_000
    value = json.dumps({"ts": now_ms - request_ms_ago, "key": "ann"}).encode()
    world.log.append(value, now_ms - kafka_ms_ago)


def test_a_slow_shipper_raises_an_alarm_that_ends_with_it(open_world: OpenWorld) -> None:
    world = open_world(SOURCE)
    health = watched(world)
    for _ in range(20):
        write(world, request_ms_ago=150)
    world.pass_s(2)
    assert health.measured.sources["log"].p99_ms == 150
    assert alarms(health.measured, LIMITS) == {}
    for _ in range(20):
        write(world, request_ms_ago=45_000)
    world.pass_s(2)
    assert health.measured.sources["log"].p50_ms == 150
    assert health.measured.sources["log"].p99_ms == 45_000
    assert alarms(health.measured, LIMITS).keys() == {"shipping-delay"}
    for _ in range(13):
        world.clock.jump(10)
        write(world, request_ms_ago=150)
        world.pass_s(1)
    assert alarms(health.measured, LIMITS) == {}


def test_a_clock_that_is_ahead_is_proved_by_its_records(open_world: OpenWorld) -> None:
    world = open_world(SOURCE)
    health = watched(world)
    write(world, request_ms_ago=0, kafka_ms_ago=0)
    world.pass_s(2)
    assert alarms(health.measured, LIMITS) == {}
    write(world, request_ms_ago=-5_000, kafka_ms_ago=-5_000)
    world.pass_s(2)
    clock = health.measured.clocks["access-log[0]"]
    assert 3_000 <= clock.ahead_ms <= 5_000, "less what reading takes"
    assert clock.least_ms == 0
    assert "has Kafka times" in alarms(health.measured, LIMITS)["clock-skew"]


def test_requests_from_the_future_of_their_record_are_an_alarm(open_world: OpenWorld) -> None:
    world = open_world(SOURCE)
    health = watched(world)
    write(world, request_ms_ago=-4_000)
    world.pass_s(2)
    assert health.measured.clocks["access-log[0]"].least_ms == -4_000
    assert "requests 4.0 s ahead of their Kafka times" in alarms(health.measured, LIMITS)["clock-skew"]
