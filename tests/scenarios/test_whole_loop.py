"""The whole loop in one thread, under one clock: from a record to a refused request and back.

Once with flushes that commit before the next records are counted, and once after.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.flush.flush_executors import InlineFlushes
from analyzer.kernel.model import Record
from analyzer.plan.mapping import Condition, SourceMapping, TextField, TimeField
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.support.flush_orders import LateFlushes
from tests.support.fresh_databases import migrated_sqlite
from tests.support.whole_loop import World

LIMIT = 5
MAPPING = SourceMapping(
    time=TimeField(("ts",), "ms"),
    caller=("api_key",),
    fields={"api_key": TextField(("key",)), "status": TextField(("status",))},
    deny_if=(Condition("status", ("429",)),),
)
PLAN = make_plan([], [], [Quota("hourly", LIMIT, Calendar("hour", "Asia/Kolkata"))]).with_sources(
    {"log": MAPPING}
)


@pytest.fixture(params=[InlineFlushes, LateFlushes])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    url = migrated_sqlite(tmp_path)
    world = World(url, request.param(), PLAN)
    yield world
    world.close()


def test_a_caller_is_refused_from_its_limit_until_the_window_ends(world: World) -> None:
    #   09:59:58          10:00 (Kolkata)                          11:00
    #      |  3 requests    |  5: the limit, refused from here on    |  allowed again
    world.gate.ready(1)
    assert [world.request("acme") for _ in range(3)] == [True] * 3
    world.pass_s(3)
    assert [world.request("acme") for _ in range(LIMIT)] == [True] * LIMIT
    assert world.request("ann")
    world.pass_s(0.7)  # one flush and one poll
    assert not world.request("acme")
    assert world.request("ann")
    decision = world.gate.check("api_key:acme")
    assert decision.policy == "hourly"
    assert decision.detail == "5 requests per hour (Asia/Kolkata), 5 counted"
    assert decision.until == datetime(2026, 11, 21, 5, 30, tzinfo=UTC)
    world.clock.jump(decision.retry_after or 0)
    assert world.gate.allow("api_key:acme")


def test_after_a_kill_counting_continues_from_what_was_stored(world: World) -> None:
    world.gate.ready(1)
    world.pass_s(3)
    for _ in range(LIMIT - 1):
        world.request("acme")
    world.pass_s(0.3)
    world.request("acme")
    list(world.log.take(0))  # read by the killed analyzer, and not stored
    world.restart_analyzer()
    world.pass_s(0.7)
    assert not world.gate.allow("api_key:acme")


def test_refused_requests_do_not_extend_a_lock_and_the_warden_ends_it(world: World) -> None:
    world.gate.ready(1)
    world.pass_s(3)
    for _ in range(LIMIT):
        world.request("acme")
    for _ in range(20):
        world.pass_s(1)
        world.request("acme")
    world.pass_s(0.2)
    with world.engine.connect() as db:
        assert db.execute(
            sa.text("select value_0, denied_0 from buckets where width_s = 60 order by bucket_s")
        ).all() == [(LIMIT, 20)]
    world.clock.jump(timedelta(hours=1).total_seconds())
    world.pass_s(2)
    with world.engine.connect() as db:
        assert db.execute(sa.text("select count(*) from locks")).scalar_one() == 0
        assert db.execute(sa.text("select op from lock_changes order by version")).scalars().all() == [
            "set",
            "clear",
        ]
    assert world.gate.allow("api_key:acme")


def test_rejected_records_are_logged_at_most_once_a_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong mapping must not silently turn a whole log into dead letters."""
    for _ in range(3):
        world.log.records.append(Record(len(world.log.records), world.clock.wall_ns() // 1_000_000, b"{no"))
        world.pass_s(0.3)
    lines = [record.getMessage() for record in caplog.records if "rejected" in record.getMessage()]
    expected = "1 of 1 records were rejected (gatelock upkeep rejects list); the first is access-log[0]@0"
    assert lines == [f"{expected}: bad-json: b'{{no'"]
