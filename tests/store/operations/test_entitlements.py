"""Limits of 0 and none: who may have nothing is locked without a count, and who has no limit never."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec
import pytest
import sqlalchemy as sa

from analyzer.callers import caller_changes as callers
from analyzer.callers.caller_changes import OverrideRequest
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.activation_steps import FillStep, decode_steps
from analyzer.judging.caller_limits import Profile, Subject
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql import plans
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import locks
from analyzer.kernel.tables.schema import plans as plans_table
from analyzer.plan.meter_units import UNLIMITED
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota, RollingQuota
from analyzer.plan.windows import Rolling
from gatekeeper.model import WITHOUT_END
from gatekeeper.testing import ManualClock
from tests.store.flushing import ACME, ANN, a_row, flush, now_s, quota
from tests.support.upkeep import Upkeep
from tests.support.whole_loop import DatabaseClock

BOB = "user:bob"
DAY_S = 86_400
NOTHING = "no requests are allowed"
LIMITS = (("free", 0), ("internal", UNLIMITED), ("pro", 10))
DAILY = quota(UNLIMITED, "day", plan_limits=LIMITS)
TENANTS = quota(UNLIMITED, "day", "organisations", grouping="tenant", plan_limits=LIMITS)
ROLLING = RollingQuota("daily", 5, Rolling(7_200), plan_limits=LIMITS)


class Shop:
    """A store on a manual clock, callers with plans, and the locks that come of them."""

    def __init__(self, engine: sa.Engine, clock: ManualClock) -> None:
        self.engine, self.clock = engine, clock
        self.store, self.upkeep = SqlStore(engine, "here"), Upkeep(engine, new_mark)

    def activate(
        self, *policies: Quota | RollingQuota, rows_max: int | None = None, is_finished: bool = True
    ) -> None:
        self.plan = make_plan([], [], policies)
        if rows_max is None:
            self.store.activate(self.plan)
        else:
            with writing(self.engine) as db:
                plans.activate(db, self.plan, new_mark, rows_max=rows_max)
        while is_finished and self.upkeep.continue_activation():
            pass

    def sell(self, name: str, plan_: str, tenant: str = "") -> None:
        callers.set_callers(self.engine, {name: Profile(plan_, tenant)}, "ann", "sold", new_mark)
        while self.upkeep.continue_activation():
            pass

    def override(self, subject: Subject, amount: int) -> str:
        request = OverrideRequest("limit", subject, "daily", amount)
        return callers.add_override(self.engine, request, "ann", "owes", new_mark)[0].id

    def count(self, value: int, key: str = ACME) -> None:
        flush(self.store, self.plan, [a_row(value, now_s(self.engine), key)])

    def pass_time(self, seconds: int) -> None:
        self.clock.jump(seconds)
        self.upkeep.end_locks()
        self.upkeep.judge_waiting()

    @property
    def locked(self) -> dict[str, str]:
        """The sentence of each lock without an end, by its key."""
        end_ms = int(WITHOUT_END.timestamp()) * 1000
        with self.engine.connect() as db:
            rows = db.execute(sa.select(locks)).all()
        assert {row.until_ms for row in rows} <= {end_ms}
        return {row.key: row.detail for row in rows}

    @property
    def is_filling(self) -> bool:
        with self.engine.connect() as db:
            texts = db.scalars(sa.select(plans_table.c.pending)).all()
        return any(isinstance(step, FillStep) for text in texts for step in decode_steps(text))

    @property
    def statuses(self) -> dict[str, int]:
        with self.engine.connect() as db:
            return {row.key: row.status for row in db.execute(sa.select(locks))}


@pytest.fixture
def shop(engine: sa.Engine) -> Iterator[Shop]:
    clock = ManualClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    database_clock = DatabaseClock(clock)
    database_clock.install()
    yield Shop(engine, clock)
    database_clock.remove()


@pytest.mark.parametrize("policy", [DAILY, ROLLING], ids=["calendar", "rolling"])
def test_a_plan_that_allows_nothing_locks_without_a_request(shop: Shop, policy: Quota) -> None:
    shop.activate(policy)
    shop.sell(ACME, "free")
    shop.sell(ANN, "internal")
    assert shop.locked == {ACME: NOTHING}
    shop.sell(ACME, "pro")
    assert shop.locked == {}
    shop.count(9)
    assert shop.locked == {}


def test_the_lock_lasts_over_windows_and_another_plan_of_the_file_writes_it_again(shop: Shop) -> None:
    shop.activate(DAILY)
    shop.sell(ACME, "free")
    shop.pass_time(3 * DAY_S)
    assert shop.locked == {ACME: NOTHING}
    shop.activate(msgspec.structs.replace(DAILY, status=402))
    assert (shop.locked, shop.statuses) == ({ACME: NOTHING}, {ACME: 402})
    shop.activate(quota(UNLIMITED, "day", plan_limits=(("free", 1),)))
    assert shop.locked == {}


@pytest.mark.parametrize("rows_max", [1, 2, None])
def test_a_new_plan_locks_callers_and_tenants_that_are_known_and_no_other(
    shop: Shop, rows_max: int | None
) -> None:
    shop.activate()
    shop.sell("tenant:acme", "free")
    shop.sell("tenant:zoo", "pro")
    for name, plan_, tenant in (
        (ACME, "free", ""), (ANN, "internal", "acme"), (BOB, "", "acme"), ("user:dan", "pro", ""),
        ("user:eve", "", "zoo"), ("user:fay", "", ""),
    ):  # fmt: skip
        shop.sell(name, plan_, tenant)
    shop.activate(DAILY, TENANTS, rows_max=rows_max)
    assert shop.locked == {ACME: NOTHING, BOB: NOTHING, "acme": NOTHING}


def test_the_plan_of_a_tenant_locks_and_frees_its_callers_without_one(shop: Shop) -> None:
    shop.activate(DAILY, TENANTS)
    shop.sell(BOB, "", "acme")
    assert shop.locked == {}
    shop.sell("tenant:acme", "free")
    assert shop.locked == {BOB: NOTHING, "acme": NOTHING}
    shop.sell(BOB, "pro", "acme")
    assert shop.locked == {"acme": NOTHING}
    shop.sell("tenant:acme", "internal")
    assert shop.locked == {}


def test_an_override_of_0_locks_a_caller_and_one_of_none_frees_it(shop: Shop) -> None:
    shop.activate(DAILY)
    owing = shop.override(Subject("caller", ACME), 0)
    assert shop.locked == {ACME: NOTHING}
    shop.pass_time(DAY_S)
    shop.override(Subject("caller", ACME), UNLIMITED)
    assert shop.locked == {}
    shop.count(1_000)
    assert shop.locked == {}
    kinds = ("limit",)
    assert callers.end_override(shop.engine, owing, kinds, "ann", "paid", new_mark) is not None


def test_an_override_of_a_tenant_by_0_locks_each_caller_that_is_known_of_it(shop: Shop) -> None:
    shop.activate(DAILY)
    shop.sell(BOB, "pro", "acme")
    shop.sell(ANN, "pro", "zoo")
    id_ = shop.override(Subject("tenant", "acme"), 0)
    assert shop.locked == {BOB: NOTHING}
    callers.end_override(shop.engine, id_, ("limit",), "ann", "paid", new_mark)
    assert shop.locked == {}


def test_others_that_may_have_nothing_are_locked_by_their_first_request(shop: Shop) -> None:
    shop.activate(quota(0, "day", plan_limits=(("pro", 10),)))
    shop.sell(ANN, "pro")
    shop.count(1, ANN)
    assert shop.locked == {}
    shop.count(1, BOB)
    assert shop.locked == {BOB: NOTHING}
    shop.sell(BOB, "pro")
    assert shop.locked == {}
    shop.sell(BOB, "")
    assert shop.locked == {BOB: NOTHING}


def test_a_caller_that_becomes_known_is_locked_though_its_limit_was_0_before(shop: Shop) -> None:
    shop.activate(quota(0, "day", plan_limits=(("free", 0), ("pro", 10))))
    assert shop.locked == {}
    shop.sell(BOB, "free")
    shop.sell(ANN, "pro")
    assert shop.locked == {BOB: NOTHING}


def test_a_caller_that_may_have_nothing_is_locked_while_the_totals_of_its_policy_are_filled(
    shop: Shop,
) -> None:
    shop.activate(quota(1_000, "day", "other"))
    for number in range(5):
        shop.count(1, f"user:{number}")
    shop.activate(quota(10, "month"), rows_max=1, is_finished=False)
    assert shop.is_filling
    shop.override(Subject("caller", ACME), 0)
    assert shop.locked == {ACME: NOTHING}


def test_a_plan_without_a_limit_is_never_judged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, new_engine: Callable[[], sa.Engine]
) -> None:
    shop.activate(DAILY)
    shop.sell(ANN, "internal")
    judged: list[object] = []
    monkeypatch.setattr("analyzer.judging.judge.policy_kind", judged.append)
    for _ in range(3):
        shop.count(1_000_000, ANN)
        shop.count(1_000_000, "user:other")
    assert not judged
