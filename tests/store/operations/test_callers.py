"""Callers with other limits: a change holds at once, up and down, with traffic and without."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from analyzer.callers import caller_changes as callers
from analyzer.callers import changed_limits
from analyzer.callers.caller_changes import OverrideRequest, StatedByPlan, UnknownPolicy
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Profile, Subject
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.lock_history import HISTORY_KEPT_MS
from analyzer.judging.sql import plans
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.tables.schema import buckets, directory_versions, overrides, totals
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import RollingQuota, StatedOverride, Surge
from analyzer.plan.windows import Rolling
from tests.store.flushing import ACME, ANN, a_row, flush, locked, now_s, plan, quota
from tests.support.upkeep import Upkeep

BOB = "user:bob"
DAILY = quota(100)
BY_PLAN = quota(100, plan_limits=(("free", 10), ("pro", 1_000)))


class Installation:
    """A store with a plan, in which callers are counted, changed and judged."""

    def __init__(self, engine: sa.Engine, store: SqlStore, by_plan: Plan) -> None:
        self.engine, self.store, self.plan = engine, store, by_plan
        self.upkeep = Upkeep(engine, new_mark)
        store.activate(by_plan)

    def count(self, value: int, key: str = ACME, **rest: Any) -> None:
        flush(self.store, self.plan, [a_row(value, now_s(self.engine), key, **rest)])

    def override(self, kind: Any, amount: int = 0, subject: Subject | None = None, **rest: Any) -> str:
        policy = "" if kind == "exempt" else "daily"
        asked = OverrideRequest(kind, subject or Subject("caller", ACME), policy, amount, **rest)
        return callers.add_override(self.engine, asked, "ann", "asked for", new_mark)[0].id

    def end(self, id_: str) -> bool:
        kinds = ("limit", "grant", "exempt")
        return callers.end_override(self.engine, id_, kinds, "ann", "over", new_mark) is not None

    def set(self, caller: str, plan_: str = "", tenant: str = "") -> None:
        callers.set_callers(self.engine, {caller: Profile(plan_, tenant)}, "ann", "sold", new_mark)

    @property
    def locked(self) -> dict[str, str]:
        """The sentence of each lock, by caller."""
        return {key: detail for (key, _), detail in locked(self.engine).items()}


@pytest.fixture
def daily(engine: sa.Engine, store: SqlStore) -> Installation:
    return Installation(engine, store, plan(DAILY))


@pytest.fixture
def by_plan(engine: sa.Engine, store: SqlStore) -> Installation:
    return Installation(engine, store, plan(BY_PLAN))


def sentence(limit: str, used: int) -> str:
    return f"{limit} requests per month (UTC), {used} counted"


def test_a_lower_limit_locks_without_traffic_and_its_end_frees(daily: Installation) -> None:
    daily.count(50)
    id_ = daily.override("limit", 40)
    assert daily.locked == {ACME: sentence("40", 50)}
    assert daily.end(id_)
    assert daily.locked == {}
    assert not daily.end(id_)


def test_a_higher_limit_frees_and_locks_again_when_it_is_reached(daily: Installation) -> None:
    daily.count(150)
    daily.count(150, ANN)
    daily.override("limit", 200)
    assert daily.locked == {ANN: sentence("100", 150)}
    daily.count(49)
    assert ACME not in daily.locked
    daily.count(1)
    assert daily.locked[ACME] == sentence("200", 200)


def test_a_lock_that_stays_names_the_new_limit(daily: Installation) -> None:
    daily.count(150)
    daily.override("limit", 60)
    assert daily.locked == {ACME: sentence("60", 150)}


def test_a_lower_limit_holds_for_totals_that_are_below_it(daily: Installation) -> None:
    """The `next` of the total is written again: it was 100."""
    daily.count(10)
    daily.override("limit", 20)
    daily.count(9)
    assert daily.locked == {}
    daily.count(1)
    assert daily.locked == {ACME: sentence("20", 20)}


def test_an_override_holds_for_the_first_total_of_a_caller(daily: Installation) -> None:
    daily.override("limit", 20)
    daily.count(20)
    daily.count(20, ANN)
    assert daily.locked == {ACME: sentence("20", 20)}


def test_the_limit_is_that_of_the_callers_plan(by_plan: Installation) -> None:
    by_plan.set(ACME, "pro")
    by_plan.set(ANN, "free")
    for caller in (ACME, ANN, BOB):
        by_plan.count(100, caller)
    assert by_plan.locked == {ANN: sentence("10", 100), BOB: sentence("100", 100)}
    by_plan.set(ACME, "free")
    by_plan.set(ANN, "pro")
    assert by_plan.locked == {ACME: sentence("10", 100), BOB: sentence("100", 100)}


def test_a_plan_without_a_limit_has_that_of_all(by_plan: Installation) -> None:
    by_plan.set(ACME, "gold")
    by_plan.count(100)
    assert by_plan.locked == {ACME: sentence("100", 100)}


def test_grants_add_up_to_the_limit(by_plan: Installation) -> None:
    by_plan.set(ACME, "free")
    first, _ = by_plan.override("grant", 20), by_plan.override("grant", 5)
    by_plan.count(34)
    assert by_plan.locked == {}
    by_plan.count(1)
    assert by_plan.locked == {ACME: sentence("35", 35)}
    by_plan.override("limit", 50)
    assert by_plan.locked == {}
    by_plan.count(25)
    assert by_plan.locked == {}
    by_plan.end(first)
    assert by_plan.locked == {ACME: sentence("55", 60)}


def test_an_exempt_caller_is_never_locked_and_is_judged_when_it_ends(daily: Installation) -> None:
    daily.count(150)
    id_ = daily.override("exempt")
    assert daily.locked == {}
    daily.count(150)
    assert daily.locked == {}
    daily.end(id_)
    assert daily.locked == {ACME: sentence("100", 300)}


def test_an_override_of_a_tenant_is_for_each_of_its_callers(daily: Installation) -> None:
    daily.set(ACME, tenant="shop")
    daily.set(ANN, tenant="shop")
    for caller in (ACME, BOB):
        daily.count(50, caller)
    id_ = daily.override("limit", 30, Subject("tenant", "shop"))
    assert daily.locked == {ACME: sentence("30", 50)}
    daily.count(29, ANN)
    assert ANN not in daily.locked
    daily.count(1, ANN)
    assert daily.locked == {ACME: sentence("30", 50), ANN: sentence("30", 30)}
    daily.set(ACME, tenant="other")
    assert daily.locked == {ANN: sentence("30", 30)}
    daily.end(id_)
    assert daily.locked == {}


def test_totals_of_a_tenant_that_grew_before_get_the_lower_limit(daily: Installation) -> None:
    """No row of the tenant's callers is named by the command: they are judged when they grow next."""
    daily.set(ACME, tenant="shop")
    daily.count(10)
    daily.override("limit", 30, Subject("tenant", "shop"))
    daily.count(20)
    assert daily.locked == {ACME: sentence("30", 30)}


def test_the_callers_own_override_comes_before_its_tenants(daily: Installation) -> None:
    daily.set(ACME, tenant="shop")
    daily.override("limit", 30, Subject("tenant", "shop"))
    daily.override("limit", 60)
    daily.count(59)
    assert daily.locked == {}
    daily.count(1)
    assert daily.locked == {ACME: sentence("60", 60)}


def test_an_exempt_range_protects_callers_and_series_inside_it(engine: sa.Engine, store: SqlStore) -> None:
    inside, outside = "address:10.1.2.3", "address:11.1.2.3"
    both = make_plan(
        ["address"], [], [DAILY, quota(100, name="one", grouping="address"),
                          quota(100, name="net", grouping="address/24")],
    )  # fmt: skip
    here = Installation(engine, store, both)

    def count() -> None:
        at_s = now_s(engine)
        rows = [a_row(150, at_s, caller) for caller in (inside, outside)]
        for grouping, keys in (
            ("address", ("10.1.2.3", "11.1.2.3")),
            ("address/24", ("10.1.2.0/24", "11.1.2.0/24")),
        ):
            rows += [a_row(150, at_s, key)._replace(grouping=grouping) for key in keys]
        flush(store, both, rows)

    count()
    assert len(here.locked) == 6
    id_ = here.override("exempt", subject=Subject("address", "10.0.0.0/8"))
    expected = {outside, "11.1.2.3", "11.1.2.0/24"}
    assert here.locked.keys() == expected
    count()
    assert here.locked.keys() == expected
    here.end(id_)
    assert len(here.locked) == 6


def test_the_warden_begins_and_ends_overrides_by_their_time(daily: Installation) -> None:
    daily.count(50)
    now_ms = now_s(daily.engine) * 1000
    id_ = daily.override("limit", 40, from_ms=now_ms + 60_000, until_ms=now_ms + 90_000)
    assert not daily.upkeep.change_overrides()
    assert daily.locked == {}
    shift(daily, id_, from_ms=now_ms - 1, due_ms=now_ms - 1)
    assert daily.upkeep.change_overrides().rows == 1
    assert daily.locked == {ACME: sentence("40", 50)}
    assert not daily.upkeep.change_overrides()
    shift(daily, id_, until_ms=now_ms - 1, due_ms=now_ms - 1)
    assert daily.upkeep.change_overrides().rows == 1
    assert daily.locked == {}
    assert not daily.upkeep.change_overrides()


def shift(here: Installation, id_: str, **times: int) -> None:
    with here.engine.begin() as db:
        db.execute(sa.update(overrides).where(overrides.c.id == id_).values(times))


def test_an_analyzer_that_has_the_directory_reads_what_changed_since(daily: Installation) -> None:
    daily.override("limit", 20)
    daily.count(1)
    daily.override("limit", 30, Subject("caller", ANN))
    id_ = daily.override("limit", 5, Subject("caller", BOB))
    daily.end(id_)
    for caller in (ACME, ANN, BOB):
        daily.count(29, caller)
    assert daily.locked == {ACME: sentence("20", 30)}
    daily.count(1, ANN)
    assert daily.locked[ANN] == sentence("30", 30)


def test_a_directory_that_was_restored_is_read_again(daily: Installation) -> None:
    daily.override("limit", 20)
    daily.count(1)
    with daily.engine.begin() as db:  # another directory under the number that the analyzer knows
        db.execute(sa.update(overrides).values(amount=10))
        db.exec_driver_sql("update directory_versions set mark = 'restored'")
        db.execute(sa.update(totals).values(plan=0))
    daily.count(9)
    assert daily.locked == {ACME: sentence("10", 10)}


def test_policies_by_resource_have_the_limit_of_their_caller(engine: sa.Engine, store: SqlStore) -> None:
    by_resource = plan(quota(100, grouping="caller+resource"))
    here = Installation(engine, store, by_resource)
    here.count(50, resource="/a")
    here.count(20, resource="/b")
    here.override("limit", 40)
    with engine.connect() as db:
        rows = db.exec_driver_sql("select key, resource from locks").all()
    assert [tuple(row) for row in rows] == [(ACME, "/a")]


def test_rolling_quotas_follow_and_surges_last_for_their_time(engine: sa.Engine, store: SqlStore) -> None:
    rolling = RollingQuota(name="hourly", limit=100, window=Rolling(7200))
    both = make_plan(
        [], [], [rolling, Surge(name="flood", limit=60, window=Rolling(7200), lock_for_s=(900,))]
    )
    here = Installation(engine, store, both)
    here.count(70)

    def names() -> set[str]:
        return {policy for _, policy in locked(engine)}

    assert names() == {"flood"}
    asked = OverrideRequest("limit", Subject("caller", ACME), "hourly", 50)
    callers.add_override(engine, asked, "ann", "", new_mark)
    assert names() == {"flood", "hourly"}
    asked = OverrideRequest("limit", Subject("caller", ACME), "flood", 500)
    callers.add_override(engine, asked, "ann", "", new_mark)
    assert names() == {"flood", "hourly"}, "a surge's lock lasts for its time"
    here.override("exempt")
    assert names() == set()


def test_an_override_needs_a_policy_of_the_plan(daily: Installation) -> None:
    asked = OverrideRequest("limit", Subject("caller", ACME), "dayly", 1)
    with pytest.raises(UnknownPolicy, match="daily"):
        callers.add_override(daily.engine, asked, "ann", "", new_mark)


def test_callers_may_be_stored_before_there_is_a_plan(engine: sa.Engine, store: SqlStore) -> None:
    callers.set_callers(engine, {ANN: Profile("free")}, "ann", "", new_mark)
    here = Installation(engine, store, plan(BY_PLAN))
    here.count(10, ANN)
    assert here.locked == {ANN: sentence("10", 10)}


def stating(*overrides: StatedOverride) -> Plan:
    return make_plan([], [], [DAILY], overrides=overrides)


def test_overrides_of_the_configuration_come_and_go_with_the_plan(daily: Installation) -> None:
    daily.count(50)
    daily.count(150, ANN)
    lower = StatedOverride("limit", "caller", ACME, "daily", 40)
    exempt = StatedOverride("exempt", "caller", ANN)
    daily.store.activate(stating(lower, exempt))
    assert daily.locked == {ACME: sentence("40", 50)}
    with pytest.raises(StatedByPlan):
        daily.end(next(iter(stated_ids(daily))))
    daily.store.activate(stating(exempt))
    assert daily.locked == {}
    daily.store.activate(plan(DAILY))
    assert daily.locked == {ANN: sentence("100", 150)}
    assert stated_ids(daily) == set()
    daily.store.activate(stating(lower))
    assert daily.locked == {ACME: sentence("40", 50), ANN: sentence("100", 150)}


def test_overrides_of_the_configuration_leave_locks_that_last_for_their_time(
    engine: sa.Engine, store: SqlStore
) -> None:
    """The window of the flood has passed, its lock has not."""
    flood = Surge(name="flood", limit=60, window=Rolling(7200), lock_for_s=(86_400,))
    here = Installation(engine, store, make_plan([], [], [flood]))
    here.count(70)
    here.count(70, ANN)
    with engine.begin() as db:
        db.execute(sa.delete(buckets))
    lower = StatedOverride("limit", "caller", "user:zed", "flood", 10)
    store.activate(make_plan([], [], [flood], overrides=[lower]))
    assert here.locked.keys() == {ACME, ANN}
    exempt = StatedOverride("exempt", "caller", ANN)
    store.activate(make_plan([], [], [flood], overrides=[lower, exempt]))
    assert here.locked.keys() == {ACME}
    store.activate(make_plan([], [], [msgspec.structs.replace(flood, limit=600)], overrides=[lower, exempt]))
    assert here.locked == {}, "the policy itself has changed"


@pytest.mark.parametrize("clock_was_ahead", [False, True])
def test_a_lock_that_lasts_for_its_time_ends_when_all_is_judged_again_after_a_wrong_clock_alone(
    engine: sa.Engine, store: SqlStore, *, clock_was_ahead: bool
) -> None:
    flood = Surge(name="flood", limit=60, window=Rolling(7200), lock_for_s=(86_400,))
    here = Installation(engine, store, make_plan([], [], [flood]))
    here.count(70)
    with engine.begin() as db:
        db.execute(sa.delete(buckets))
        plans.judge_again(db, clock_was_ahead=clock_was_ahead)
    while here.upkeep.continue_activation():
        pass
    assert here.locked.keys() == (set() if clock_was_ahead else {ACME})


def test_a_reason_that_changes_in_the_configuration_is_an_event_and_no_change_of_limits(
    daily: Installation,
) -> None:
    """The override began when it began: of several limits the one that began last holds."""
    daily.count(50)
    stated = StatedOverride("limit", "caller", ACME, "daily", 40, reason="asked for")
    daily.store.activate(stating(stated))
    daily.override("limit", 200)
    assert daily.locked == {}
    (known,) = stated_of(daily)
    daily.store.activate(stating(msgspec.structs.replace(stated, reason="migration")))
    assert daily.locked == {}, "the command's override began later"
    assert stated_of(daily) == [known._replace(reason="migration", who="here")]
    change = f"override of caller {ACME}: daily limit 40: reason asked for to migration"
    assert ("plan 3", change) in {(entry.about, entry.why) for entry in entries(daily.engine)}


def test_steps_of_changes_for_tenants_do_not_pile_up(
    daily: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks for the same steps, and the warden is slower than the operator."""
    monkeypatch.setattr(changed_limits, "ROWS_MAX", 0)
    pending = []
    for number in range(4):
        daily.override("limit", 40 + number, Subject("tenant", f"shop-{number}"))
        with daily.engine.connect() as db:
            in_force = plans.stored(db)
        assert in_force is not None
        pending.append(in_force.steps)
    assert len(pending[0]) == 3
    assert pending[3] == pending[0]


def test_an_override_of_the_configuration_ends_by_its_time(daily: Installation) -> None:
    daily.count(50)
    now = now_s(daily.engine)
    daily.store.activate(stating(StatedOverride("limit", "caller", ACME, "daily", 40, until_s=now + 60)))
    assert daily.locked == {ACME: sentence("40", 50)}
    [id_] = stated_ids(daily)
    shift(daily, id_, until_ms=now * 1000 - 1, due_ms=now * 1000 - 1)
    assert daily.upkeep.change_overrides().rows == 1
    assert daily.locked == {}


def test_ended_overrides_are_kept_as_long_as_the_history_of_locks(daily: Installation) -> None:
    def kept() -> set[str]:
        while daily.upkeep.prune():
            pass
        return {one.id for one in callers.stored_overrides(daily.engine, ("limit",), ended=True)}

    def age(ms: int) -> None:
        with daily.engine.begin() as db:
            older = directory_versions.c.at_ms - ms
            db.execute(sa.update(directory_versions).values(at_ms=older))

    ended, lasting = daily.override("limit", 40), daily.override("limit", 50, Subject("caller", ANN))
    assert daily.end(ended)
    age(HISTORY_KEPT_MS - 60_000)
    last = daily.override("limit", 60, Subject("caller", BOB))
    assert kept() == {ended, lasting, last}
    age(60_001)
    assert kept() == {lasting, last}
    age(HISTORY_KEPT_MS)
    assert kept() == {lasting, last}, "they have not ended"
    with daily.engine.connect() as db:
        assert len(db.execute(sa.select(directory_versions)).all()) == 1, "the newest stays"


def test_a_flush_that_knows_only_deleted_versions_learns_of_each_end(daily: Installation) -> None:
    """An analyzer that was suspended for weeks finds neither the end nor its version."""
    daily.count(1)
    ended = daily.override("limit", 10)
    daily.count(1)  # the store has the override in memory
    assert daily.end(ended)
    daily.override("limit", 60, Subject("caller", BOB))
    with daily.engine.begin() as db:
        newest = sa.select(sa.func.max(directory_versions.c.version)).scalar_subquery()
        db.execute(sa.update(directory_versions).where(directory_versions.c.version < newest).values(at_ms=0))
    while daily.upkeep.prune():
        pass
    daily.count(50)
    assert daily.locked == {}


def stated_of(here: Installation) -> list[callers.StoredOverride]:
    stated = callers.stored_overrides(here.engine, ("limit", "grant", "exempt"))
    return [one for one in stated if one.id.startswith("plan-")]


def stated_ids(here: Installation) -> set[str]:
    return {one.id for one in stated_of(here)}
