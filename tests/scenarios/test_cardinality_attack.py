"""An attacker with more names than a partition counts by name: it is locked, and others are counted exactly.

In small: 100 names per hour and kind instead of 100,000, and attacks that are as much larger as real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import IPv6Address
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.kernel.tables.schema import buckets, locks
from tests.support.fresh_databases import migrated_sqlite
from tests.support.whole_loop import World

LIMIT = 50
CALLERS_PER_HOUR = 100
CONFIGURATION = f"""
[[sources]]
topic = "access-log"
name = "log"
callers_per_hour = {CALLERS_PER_HOUR}
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
address = "address"
[[policies]]
name = "daily"
limit = {LIMIT}
window = {{ per = "day" }}
"""
NEWCOMER = {"address": "192.0.2.77"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    url = migrated_sqlite(tmp_path)
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION)
    world = World(url, InlineFlushes(), load(tmp_path / "gatelock.toml").plan())
    world.log.taken_max = 1_000  # a flood must not become a backlog
    world.gate.ready(1)
    yield world
    world.close()


def locked(world: World) -> set[str]:
    with world.engine.connect() as db:
        return set(db.execute(sa.select(locks.c.key)).scalars())


def counted(world: World, caller: str) -> int:
    with world.engine.connect() as db:
        amounts = sa.select(sa.func.sum(buckets.c.value_0)).where(buckets.c.key == caller)
        return db.execute(amounts).scalar_one() or 0


def flood(world: World, requests: int, name: Callable[[int], dict[str, str]]) -> None:
    """Writes requests in steps, so that they are in several flushes."""
    for number in range(requests):
        world.log.write(**name(number))
        if number % 500 == 499:
            world.pass_s(0.2)
    world.pass_s(1)


def household(number: int) -> dict[str, str]:
    """Returns one of the 2^64 addresses of an IPv6 customer."""
    return {"address": str(IPv6Address("2001:db8:1:2::") + number * 0x9E3779B97F4A7C15 % 2**64)}


def invented_key(number: int) -> dict[str, str]:
    return {"key": f"invented-{number}", "address": "198.51.100.9"}


def test_a_customer_with_a_network_of_addresses_is_locked_and_takes_no_room_of_others(world: World) -> None:
    flood(world, 1_000, household)
    assert locked(world) == {"address:2001:db8:1:2::/64"}
    flood(world, LIMIT - 1, lambda _: NEWCOMER)
    assert locked(world) == {"address:2001:db8:1:2::/64"}
    world.log.write(**NEWCOMER)
    world.pass_s(1)
    assert locked(world) == {"address:2001:db8:1:2::/64", "address:192.0.2.77"}
    assert counted(world, "overflow:") == 0


@pytest.mark.parametrize(
    ("attack", "other"),
    [
        (invented_key, NEWCOMER),
        (lambda n: {"address": f"10.0.{n >> 8}.{n & 255}"}, {"key": "a-customer"}),
    ],
    ids=["invented keys", "a botnet's addresses"],
)
def test_names_of_one_kind_take_no_room_of_another(
    world: World, attack: Callable[[int], dict[str, str]], other: dict[str, str]
) -> None:
    flood(world, 3_000, attack)
    assert counted(world, "overflow:") > 2_000
    flood(world, LIMIT, lambda _: other)
    assert len(locked(world)) == 1
    assert locked(world) <= {"address:192.0.2.77", "api_key:a-customer"}


@pytest.mark.parametrize(
    "restarts",
    [
        pytest.param(False, id="one analyzer", marks=pytest.mark.deep("a replaced one has the harder story")),
        pytest.param(True, id="an analyzer that is replaced"),
    ],
)
def test_a_caller_in_the_overflow_that_keeps_calling_is_named_and_locked(
    world: World, restarts: bool
) -> None:
    """Also when more callers were drawn in this hour than have room; those that call once stay unlocked."""
    random, requests = Random(5), 0
    flood(world, 200_000, invented_key)  # 195 draws, for 100 names
    while not locked(world) and requests < 8_000 + LIMIT:
        requests += 1
        world.log.write(key="heavy")
        for _ in range(random.randrange(4)):
            world.log.write(key=f"once-{random.getrandbits(64)}")
        if requests % 100 == 0:
            world.pass_s(0.2)
        if restarts and requests % 500 == 0:
            world.restart_analyzer()
    world.pass_s(1)
    assert locked(world) == {"api_key:heavy"}
    with world.engine.connect() as db:
        names = {key for (key,) in db.execute(sa.select(buckets.c.key)) if key.startswith("api_key:")}
    assert len(names) < 2 * CALLERS_PER_HOUR + 300, "one row for 1,024 requests of the overflow"


def test_invented_paths_are_bounded_and_no_policy_judges_the_rest(world: World, tmp_path: Path) -> None:
    by_path = CONFIGURATION.replace('address = "address"', 'address = "address"\nresource = "path"')
    (tmp_path / "gatelock.toml").write_text(by_path + 'per = "caller+resource"\n')
    world.plan = load(tmp_path / "gatelock.toml").plan()
    world.restart_analyzer()
    world.log.write(key="ann", path="/before")
    flood(world, 3_000, lambda n: {"key": "ann", "path": f"/{n}?page=1"})
    flood(world, LIMIT - 1, lambda _: {"key": "ann", "path": "/before"})
    with world.engine.connect() as db:
        names = set(db.execute(sa.select(buckets.c.resource).where(buckets.c.resource != "")).scalars())
        (locked,) = db.execute(sa.select(locks.c.key, locks.c.resource)).all()
    assert tuple(locked) == ("api_key:ann", "/before"), "and not `overflow:`, which had many more"
    assert {"/before", "/0", "overflow:"} <= names
    assert len(names) < 2 * CALLERS_PER_HOUR
