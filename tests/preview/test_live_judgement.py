"""Locks of a look at a log, beside those that an analyzer with a database set on the same records."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from analyzer.config.single_tables import parse_mapping
from analyzer.forecast.look.log_scan import LogScan, ScannedFile
from analyzer.forecast.look.rehearsal import RehearsedLock, rehearse
from analyzer.kernel.tables.schema import locks
from analyzer.plan.policies import Surge
from tests.scenarios.conftest import OpenWorld, open_world
from tests.support.whole_loop import World

__all__ = ["open_world"]

SOURCE = """
[[sources]]
topic = "access-log"
name = "log"
caller = ["api_key", "address"]
[sources.fields]
time = { path = "ts", unit = "ms" }
api_key = "api_key"
address = { path = "ip", prefix6 = 64 }
[[policies]]
name = "surge"
kind = "surge"
"""
Lock = tuple[str, int, int]  # key, begin, end


def requests(seed: int, seconds: int) -> Iterator[list[tuple[str, str]]]:
    """Yields for each second its requests, as key and address: a steady caller, bursts, and a crowd."""
    chance = random.Random(seed)
    burst = 0
    for _ in range(seconds):
        burst = chance.randint(15, 60) if not burst and chance.random() < 0.01 else max(0, burst - 1)
        found = [("steady", "198.51.100.1")] if chance.random() < 0.75 else []
        found += [("bursts", "203.0.113.9")] * chance.randint(1, 6) if burst else []
        found += [
            (f"k{n}", f"203.0.113.{n}") for n in range(20) if chance.random() < (0.15 if burst else 0.01)
        ]
        yield found


def play(world: World, seed: int, seconds: int, step_s: int) -> tuple[list[bytes], list[Lock]]:
    """Plays a story; the analyzer runs in the last second of each `step_s`.

    Returns the lines of the log, and the locks that were there at any time.
    """
    world.log.taken_max = 10_000
    world.gate.close()  # its polls cost more than the analyzer, and nothing is refused
    world.clock.jump((-world.clock.wall_ns() // 10**9) % 300)
    seen: set[Lock] = set()
    for second in requests(seed, seconds):
        for key, ip in second:
            world.log.write(api_key=key, ip=ip)
        if (world.clock.wall_ns() // 10**9 + 1) % step_s:
            world.clock.jump(1)
            continue
        world.daemon.run_once()
        world.jobs.run_once()
        with world.engine.connect() as db:
            rows = db.execute(sa.select(locks.c.key, locks.c.began_ms, locks.c.until_ms)).all()
        seen |= {(key, began_ms // 1000, until_ms // 1000) for key, began_ms, until_ms in rows}
        world.clock.advance(1)
    return [record.value or b"" for record in world.log.records], sorted(seen)


def looked(lines: list[bytes], policy: Surge) -> list[RehearsedLock]:
    scan = LogScan(policy.per, policy.window, floor=1, now_ms=10**14, mapping_of=parse_mapping)
    for _ in scan.read(ScannedFile("log"), io.BytesIO(b"\n".join(lines))):
        pass
    return rehearse(policy, scan.profile.series())


def policy_text(per: str, limit: int, window: str, action: str) -> str:
    text = f'per = "{per}"\nlimit = {limit}\nwindow = {{ rolling = "{window}" }}\n'
    return SOURCE + text + 'lock_for = ["2m", "4m"]\nforget_after = "20m"\n' + f'action = "{action}"\n'


def surge_of(world: World) -> Surge:
    (policy,) = world.plan.policies
    assert isinstance(policy, Surge)
    return policy


@pytest.mark.parametrize(
    ("per", "limit", "window", "action", "seed"),
    [
        pytest.param("caller", 50, "1m", "notify", 1, marks=pytest.mark.deep("another story")),
        pytest.param("caller", 60, "1m", "deny", 2, marks=pytest.mark.deep("another story")),
        ("address/24", 120, "1m", "deny", 3),
        pytest.param("caller", 12, "12s", "notify", 4, marks=pytest.mark.deep("another story")),
    ],
)
def test_an_analyzer_that_runs_at_the_end_of_each_slot_sets_the_same_locks(
    open_world: OpenWorld, per: str, limit: int, window: str, action: str, seed: int
) -> None:
    world = open_world(policy_text(per, limit, window, action))
    policy = surge_of(world)
    lines, wanted = play(world, seed, 1_500 if policy.window.slot_s > 1 else 400, policy.window.slot_s)
    found = sorted((lock.key, lock.began_s, lock.until_s) for lock in looked(lines, policy))
    assert wanted, "a story without locks shows nothing"
    assert found == wanted


def test_an_analyzer_that_runs_each_second_is_at_most_a_slot_earlier(open_world: OpenWorld) -> None:
    world = open_world(policy_text("caller", 50, "1m", "deny"))
    policy = surge_of(world)
    lines, wanted = play(world, 5, 400, 1)
    found = sorted((lock.key, lock.began_s, lock.until_s) for lock in looked(lines, policy))
    assert len(wanted) == len(found) >= 2
    for (key, began_s, until_s), (of, began, until) in zip(wanted, found, strict=True):
        assert key == of
        most_s = policy.window.slot_s * len(found)  # each lock before may add a slot
        assert 0 <= began - began_s <= most_s
        assert 0 <= until - until_s <= most_s
