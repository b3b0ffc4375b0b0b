"""A producer that sends records twice: nothing is doubled, and it is named."""

from __future__ import annotations

from analyzer.counting.repeated_records import KeptIds, kept_ids, repeated_records
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Measurements, Metrics
from analyzer.maintenance.audit import audit
from analyzer.plan.meters import DUPLICATES, MINUTE_S
from tests.scenarios.conftest import OpenWorld
from tests.support.whole_loop import World

CONFIGURATION = """
[[sources]]
name = "log"
topic = "access-log"
id = "id"
[sources.fields]
time = { path = "ts", unit = "ms" }
api_key = "key"
id = "request_id"
[[policies]]
name = "daily"
limit = 150
window = { per = "day" }
"""
ACME = "api_key:acme"


def write(world: World, ids: range, key: str = "acme") -> None:
    for number in ids:
        world.log.write(key=key, request_id=f"r{number}")
    world.pass_s(2)


def test_records_that_are_sent_again_do_not_count_after_a_restart_either(open_world: OpenWorld) -> None:
    world = open_world(CONFIGURATION)
    write(world, range(140))
    world.restart_analyzer()
    write(world, range(140))
    assert world.gate.allow(ACME), "140 of 150 requests"
    found = audit(world.engine)
    assert found.equal
    [ledger] = found.partitions
    assert (ledger.seen, ledger.counted, ledger.duplicate) == (280, 140, 140)
    query = UsageQuery("caller", MINUTE_S, key=ACME)
    assert {row.meter for row in usage_rows(world.engine, query)} == {"requests"}, (
        "shown when it is asked for"
    )
    assert sum(row.value for row in usage_rows(world.engine, query._replace(meter=DUPLICATES.name))) == 140
    write(world, range(140, 151))
    assert not world.gate.allow(ACME)


def test_a_caller_whose_records_come_twice_is_reported(open_world: OpenWorld) -> None:
    world = open_world(CONFIGURATION)
    write(world, range(140))
    write(world, range(99))
    write(world, range(3), "bob")
    write(world, range(3), "bob")
    assert repeated_records(world.engine) == [], "a hundred are reported"
    write(world, range(99, 100))
    [one] = repeated_records(world.engine)
    assert (one.caller, one.duplicates, one.counted) == (ACME, 100, 140)
    sentence = f"{ACME}: 100 of its 240 records in the last 10 minutes are duplicates (42%), and left out"
    assert str(one) == sentence
    world.clock.jump(660)
    assert repeated_records(world.engine) == []


def test_the_share_counts_and_not_the_number_alone(open_world: OpenWorld) -> None:
    world = open_world(CONFIGURATION)
    write(world, range(2_000))
    write(world, range(100))
    assert repeated_records(world.engine) == [], "less than 5 %"


def test_the_horizon_really_kept_is_stored(open_world: OpenWorld) -> None:
    world = open_world(CONFIGURATION.replace('id = "id"\n', 'id = "id"\nids_max = 1_000\n', 1))
    write(world, range(1_000))
    assert kept_ids(world.engine) == [KeptIds("log", "access-log", 0, 3_600_000)]
    write(world, range(1_000, 1_200))
    [kept] = kept_ids(world.engine)
    assert kept.kept_ms < 10_000
    assert str(kept) == "access-log[0]"


def test_metrics_have_the_ids_of_partitions_and_records_without_one(open_world: OpenWorld) -> None:
    world = open_world(CONFIGURATION)
    health = Health(Metrics("1"), world.clock.uptime_s)
    world.daemon.observer = health
    write(world, range(5))
    write(world, range(2))
    world.log.write(key="acme")
    world.pass_s(2)
    measurements = Measurements(
        health.current_lags, None, None, (), None, None, remembered=health.current_ids
    )
    text = health.metrics.exposition(measurements, "")[0].decode()
    labels = '{partition="0",source="log",topic="access-log"}'
    assert f"gatelock_event_ids{labels} 5.0" in text
    assert f"gatelock_event_id_horizon_seconds{labels} 3600.0" in text
    assert 'gatelock_records_without_id_total{source="log"} 1.0' in text
    assert 'gatelock_records_total{result="duplicate",source="log"} 2.0' in text
