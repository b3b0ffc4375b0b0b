"""A day of many innocent callers and a few floods: counted late it locks no caller, live just the floods.

In `make test` the day has six hours.

The variable BACKLOG_CALLERS=100000 plays it with more callers than the usual 2,000.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.kernel.model import Record
from analyzer.kernel.tables.schema import lock_history, offsets
from tests.support.depth import IS_DEEP
from tests.support.fresh_databases import migrated_sqlite
from tests.support.whole_loop import START, World

CALLERS = int(os.environ.get("BACKLOG_CALLERS", "2000"))
DAY_S = 86_400 if IS_DEEP else 6 * 3_600
LIMIT, WINDOW_S, SLOT_S = 60, 60, 5
FLOODS = 5
LIVE_STEP_S = 20
CONFIGURATION = f"""
[[sources]]
topic = "access-log"
name = "log"
caller = "api_key"
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
resource = {{ path = "path", routes = ["/search", "/export"], else = "other" }}
[[policies]]
name = "flood"
kind = "surge"
limit = {LIMIT}
window = {{ rolling = "{WINDOW_S}s" }}
lock_for = "10m"
[[policies]]
name = "neighbour"
kind = "share"
of = "resource"
per = "caller"
limit = 0.5
release = 0.25
floor = "1/s"
hold = "20s"
window = {{ rolling = "60s" }}
"""


class Request(NamedTuple):
    at_ms: int
    caller: str
    path: str


def requests_of_a_day(callers: int, began_s: int) -> list[Request]:
    """Returns innocent requests all day, a busy but innocent caller, and floods of a few callers."""
    chance = Random(11)
    found = [
        Request(began_s * 1000 + chance.randrange(DAY_S * 1000), f"user-{number}", "/search")
        for number in range(callers)
        for _ in range(chance.choice((1, 1, 3)))
    ]
    # Below the limit in every minute, all day long: in a backlog its requests come within a second.
    found += [
        Request((began_s + second) * 1000, "busy", "/search") for second in range(3_600, DAY_S - 3_600, 60)
    ]
    for number in range(FLOODS):
        first_s = began_s + chance.randrange(3_600, DAY_S - 3_600)
        found += [Request(first_s * 1000 + 200 * n, f"flood-{number}", "/export") for n in range(150)]
    return sorted(found)


def most_in(requests: Sequence[Request], window_s: int) -> Mapping[str, int]:
    """Returns the most requests of each caller within `window_s`, recounted from the requests alone."""
    times = defaultdict[str, list[int]](list)
    for request in requests:
        times[request.caller].append(request.at_ms)
    return {
        caller: max(
            number + 1 - bisect_left(of_caller, at_ms - window_s * 1000)
            for number, at_ms in enumerate(of_caller)
        )
        for caller, of_caller in times.items()
    }


def records_of(requests: Sequence[Request]) -> list[Record]:
    return [
        Record(offset, one.at_ms, b'{"ts": %d, "key": "%s", "path": "%s"}' % (
            one.at_ms, one.caller.encode(), one.path.encode()
        ))
        for offset, one in enumerate(requests)
    ]  # fmt: skip


def locked(world: World) -> dict[str, set[str]]:
    """Returns the callers that were locked at any time, by policy."""
    with world.engine.connect() as db:
        rows = db.execute(sa.select(lock_history.c.policy, lock_history.c.key).distinct()).all()
    return {
        name: {key.removeprefix("api_key:") for policy, key in rows if policy == name}
        for name in ("flood", "neighbour")
    }


def counted(world: World) -> int:
    with world.engine.connect() as db:
        return int(db.execute(sa.select(sa.func.sum(offsets.c.counted))).scalar_one())


@pytest.fixture
def requests() -> list[Request]:
    return requests_of_a_day(CALLERS, int(START.timestamp()))


def new_world(folder: Path, starts_after_s: int) -> World:
    url = migrated_sqlite(folder)
    (folder / "gatelock.toml").write_text(CONFIGURATION)
    plan = load(folder / "gatelock.toml").plan()
    return World(url, InlineFlushes(), plan, START + timedelta(seconds=starts_after_s))


def test_a_backlog_of_a_day_locks_no_caller(tmp_path: Path, requests: list[Request]) -> None:
    """The analyzer was away all day. Also the floods are over: who is refused now has done nothing now."""
    world = new_world(tmp_path, DAY_S + 60)
    try:
        world.log.taken_max = 5_000
        world.log.records.extend(records_of(requests))
        while counted(world) < len(requests):
            world.pass_s(1)
        world.pass_s(90)
        assert locked(world) == {"flood": set(), "neighbour": set()}
        assert world.gate.allow("api_key:flood-0")
    finally:
        world.close()


def test_the_same_day_live_locks_exactly_the_floods(tmp_path: Path, requests: list[Request]) -> None:
    exactly, a_slot_longer = (most_in(requests, seconds) for seconds in (WINDOW_S, WINDOW_S + SLOT_S))
    floods = {caller for caller, most in exactly.items() if most >= LIMIT}
    assert floods == {f"flood-{number}" for number in range(FLOODS)}
    assert floods == {caller for caller, most in a_slot_longer.items() if most >= LIMIT}, "none is doubtful"
    world = new_world(tmp_path, 0)
    try:
        records, written = records_of(requests), 0
        times_ms = [request.at_ms for request in requests]
        while written < len(records):
            world.clock.jump(LIVE_STEP_S)
            present = bisect_left(times_ms, world.clock.wall_ns() // 1_000_000)
            world.log.records.extend(records[written:present])
            written = present
            world.pass_s(0.3)
        assert counted(world) == len(requests)
        assert locked(world)["flood"] == floods
        assert locked(world)["neighbour"] <= floods, "alone on its route, and above the floor"
    finally:
        world.close()
