"""Notices of thresholds: each raised once per series and window, by flushes, the warden and activations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.callers import caller_changes
from analyzer.faces.signals.status import installation_status
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Subject
from analyzer.judging.earned_notices import LASTS_S, Notice
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.judging.sql import plans, stored_notices
from analyzer.judging.sql.raised_notices import raised_notices
from analyzer.kernel.database.engine import writing
from analyzer.kernel.database.revisions import head
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import buckets, lock_changes, notices
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Grace, Policy, Quota, RollingQuota, Surge
from analyzer.plan.windows import Rolling, window_at
from gatekeeper.model import Set
from gatekeeper.sources.sql import SqlSource
from tests.store.flushing import (
    ACME,
    ANN,
    a_row,
    counts,
    flush,
    locked,
    now_s,
    plan,
    quota,
    run_together,
)
from tests.support.upkeep import Upkeep

HALVES = (500, 800, 1_000)


def raise_by(store: SqlStore, by_plan: Plan, *rows: CountRow) -> Sequence[Notice]:
    """Flushes rows; returns the notices that were raised."""
    with store.transaction() as tx:
        now = tx.check_plan(by_plan, store.active_plan()[0])
        return tx.apply(by_plan, store.active_plan()[0], counts(sorted(rows)), now).notices


def thresholds(raised: Sequence[Notice]) -> list[tuple[str, int]]:
    return sorted((notice.at.key, notice.at.threshold) for notice in raised)


def stored(engine: sa.Engine) -> list[tuple[str, int]]:
    return thresholds([raised.notice for raised in raised_notices(engine)])


def judged_again(engine: sa.Engine) -> Any:
    return Upkeep(engine, lambda: "mark").judge_waiting()


def test_each_threshold_is_noticed_once(store: SqlStore, engine: sa.Engine) -> None:
    by_plan = plan(quota(10, notify=HALVES))
    store.activate(by_plan)
    at_s = now_s(engine)
    found = [
        thresholds(raise_by(store, by_plan, a_row(value, at_s), a_row(1, at_s, ANN)))
        for value in (4, 1, 1, 3, 1, 7)
    ]
    assert found == [[], [(ACME, 500)], [], [(ACME, 800)], [(ACME, 1_000), (ANN, 500)], []]
    assert list(locked(engine)) == [(ACME, "daily")]
    (newest, *_) = raised_notices(engine, caller=ACME)
    assert (newest.notice.used, newest.notice.limit) == (10, 10)
    assert newest.notice.detail == "100% of 10 requests per month (UTC), 10 counted"


def test_several_thresholds_are_reached_at_once(store: SqlStore, engine: sa.Engine) -> None:
    by_plan = plan(quota(10, notify=HALVES))
    store.activate(by_plan)
    assert thresholds(raise_by(store, by_plan, a_row(9, now_s(engine)))) == [(ACME, 500), (ACME, 800)]


def test_a_restart_and_another_plan_raise_no_notice_again(store: SqlStore, engine: sa.Engine) -> None:
    before, after = plan(quota(10, notify=HALVES)), plan(quota(10, notify=HALVES), quota(99, name="other"))
    store.activate(before)
    at_s = now_s(engine)
    assert raise_by(store, before, a_row(6, at_s))
    store.activate(after)
    restarted = SqlStore(engine, "another process")
    assert raise_by(restarted, after, a_row(1, at_s)) == []
    assert thresholds(raise_by(restarted, after, a_row(1, at_s))) == [(ACME, 800)]


def test_a_limit_that_changes_raises_what_is_reached_by_it_and_was_not_raised(
    store: SqlStore, engine: sa.Engine
) -> None:
    """A threshold is a share of the limit: that it was reached at another limit counts."""
    store.activate(plan(quota(100, notify=HALVES)))
    flush(store, plan(quota(100, notify=HALVES)), [a_row(60, now_s(engine))])
    assert stored(engine) == [(ACME, 500)]
    store.activate(plan(quota(70, notify=HALVES)))  # without traffic
    assert stored(engine) == [(ACME, 500), (ACME, 800)]
    store.activate(plan(quota(1_000, notify=HALVES)))
    assert raise_by(store, plan(quota(1_000, notify=HALVES)), a_row(440, now_s(engine))) == []


def test_thresholds_that_are_added_are_noticed_by_the_activation(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(plan(quota(10)))
    flush(store, plan(quota(10)), [a_row(9, now_s(engine)), a_row(4, now_s(engine), ANN)])
    with writing(engine) as db:
        activated = plans.activate(db, plan(quota(10, notify=HALVES)), lambda: "mark")
    assert thresholds(activated.judged.notices) == [(ACME, 500), (ACME, 800)] == stored(engine)


@pytest.mark.parametrize("policy", [{"action": "notify"}, {"action": "notify", "notify": (500,)}])
def test_a_soft_quota_raises_notices_and_no_lock(
    store: SqlStore, engine: sa.Engine, policy: dict[str, Any]
) -> None:
    by_plan = plan(quota(10, **policy))
    store.activate(by_plan)
    raised = raise_by(store, by_plan, a_row(25, now_s(engine)))
    assert thresholds(raised) == [(ACME, policy.get("notify", (1_000,))[0])]
    assert locked(engine) == {}


def test_late_records_of_a_window_that_is_over_raise_nothing(store: SqlStore, engine: sa.Engine) -> None:
    by_plan = plan(quota(10, "day", notify=HALVES))
    store.activate(by_plan)
    over_s = window_at(by_plan.policies[0].window, now_s(engine)).start_s - 60
    assert raise_by(store, by_plan, a_row(25, over_s)) == []


def test_a_window_that_has_not_begun_raises_its_notices_when_it_begins(
    store: SqlStore, engine: sa.Engine
) -> None:
    by_plan = plan(quota(10, "day", notify=HALVES))
    store.activate(by_plan)
    tomorrow_s = window_at(by_plan.policies[0].window, now_s(engine)).until_s
    with store.transaction() as tx:
        now = tx.check_plan(by_plan, 1)
        assert tx.apply(by_plan, 1, counts([a_row(6, tomorrow_s)]), now).notices == []
        assert tx._db.execute(sa.text("select due_ms from postponed")).scalar_one() == tomorrow_s * 1000


def test_a_grace_by_volume_locks_beyond_the_limit(store: SqlStore, engine: sa.Engine) -> None:
    for number, grace in enumerate((Grace(thousandths=100), Grace(amount=2))):
        by_plan = plan(quota(20, grace=grace, name=f"daily-{number}"))
        store.activate(by_plan)
        key = f"user:{number}"
        flush(store, by_plan, [a_row(21, now_s(engine), key)])
        assert (key, f"daily-{number}") not in locked(engine)
        flush(store, by_plan, [a_row(1, now_s(engine), key)])
        shown = ("10%", "2")[number]
        detail = f"20 requests per month (UTC) and a grace of {shown}, 22 counted"
        assert locked(engine)[key, f"daily-{number}"] == detail


def test_a_grace_by_time_locks_when_it_is_over_without_traffic(store: SqlStore, engine: sa.Engine) -> None:
    by_plan = plan(quota(10, grace=Grace(time_s=900)))
    store.activate(by_plan)
    raised = raise_by(store, by_plan, a_row(12, now_s(engine)))
    assert thresholds(raised) == [(ACME, 1_000)]
    assert (list(judged_again(engine).judged.changes), locked(engine)) == ([], {})
    pass_time(engine, 600)
    assert judged_again(engine).rows == 0
    flush(store, by_plan, [a_row(5, now_s(engine))])
    assert locked(engine) == {}
    pass_time(engine, 301)
    done = judged_again(engine)
    judged = done.judged
    assert [change.lock.policy for change in judged.changes if isinstance(change, Set)] == ["daily"]
    assert (done.rows, list(judged.notices)) == (1, [])
    assert locked(engine) == {(ACME, "daily"): "10 requests per month (UTC) and a grace of 15m, 17 counted"}


def test_a_grace_by_time_survives_a_change_of_plan(store: SqlStore, engine: sa.Engine) -> None:
    grace = quota(10, grace=Grace(time_s=900))
    store.activate(plan(grace))
    flush(store, plan(grace), [a_row(12, now_s(engine))])
    pass_time(engine, 600)
    store.activate(plan(grace, quota(99, name="other")))
    flush(store, plan(grace, quota(99, name="other")), [a_row(1, now_s(engine))])
    pass_time(engine, 301)
    assert len(judged_again(engine).judged.changes) == 1


def test_of_analyzers_that_reach_a_threshold_together_one_raises_its_notice(
    store: SqlStore, engine: sa.Engine, new_engine: Any
) -> None:
    by_plan = plan(quota(10, notify=HALVES))
    store.activate(by_plan)
    stores = [SqlStore(new_engine(), f"analyzer {number}") for number in range(4)]
    at_s = now_s(engine)
    answers = run_together(*(lambda at=one: raise_by(at, by_plan, a_row(3, at_s)) for one in stores))
    raised = [notice for answer in answers for notice in answer]
    assert thresholds(raised) == [(ACME, 500), (ACME, 800), (ACME, 1_000)] == stored(engine)


def test_notices_are_kept_for_longer_than_their_window_and_then_deleted(
    store: SqlStore, engine: sa.Engine
) -> None:
    by_plan = plan(quota(10, notify=HALVES))
    store.activate(by_plan)
    flush(store, by_plan, [a_row(6, now_s(engine))])
    upkeep = Upkeep(engine, lambda: "mark")
    kept = timedelta(milliseconds=stored_notices.KEPT_MS)
    assert kept > timedelta(days=31)
    pass_time(engine, int(kept.total_seconds()) - 60)
    upkeep.prune()
    assert stored(engine) == [(ACME, 500)]
    pass_time(engine, 120)
    upkeep.prune()
    assert stored(engine) == []


def pass_time(engine: sa.Engine, seconds: int) -> None:
    """Lets time pass for what is stored: its times go back."""
    with writing(engine) as db:
        moved = {"at_ms": notices.c.at_ms - 1_000 * seconds, "until_s": notices.c.until_s - seconds}
        db.execute(sa.update(notices).values(moved))
        db.exec_driver_sql(f"update postponed set due_ms = due_ms - {1_000 * seconds}")


def test_the_names_of_a_policy_and_its_windows_tell_notices_apart(store: SqlStore, engine: sa.Engine) -> None:
    by_plan = plan(*(Quota(name, 4, quota(1).window, notify=(500,)) for name in ("a", "b")))
    store.activate(by_plan)
    raised = raise_by(store, by_plan, a_row(2, now_s(engine)))
    assert len({notice.at.id for notice in raised}) == 2


def test_a_limit_of_a_caller_alone_moves_its_thresholds(store: SqlStore, engine: sa.Engine) -> None:
    by_plan = plan(quota(100, notify=HALVES))
    store.activate(by_plan)
    flush(store, by_plan, [a_row(45, now_s(engine)), a_row(45, now_s(engine), ANN)])
    asked = caller_changes.OverrideRequest("limit", Subject("caller", ACME), "daily", 50)
    _, judged = caller_changes.add_override(engine, asked, "ann", "asked for", lambda: "mark")
    assert thresholds(judged.notices) == [(ACME, 500), (ACME, 800)] == stored(engine)
    (latest, *_) = raised_notices(engine, caller=ACME)
    assert (latest.notice.limit, latest.notice.used) == (50, 45)


def rolling(kind: str) -> Policy:
    """Returns a policy that a series of 70 requests within a minute reaches, and that sets no lock."""
    if kind == "surge":
        return Surge(name="watched", limit=60, window=Rolling(7_200), action="notify", lock_for_s=(600,))
    return RollingQuota(name="watched", limit=60, window=Rolling(7_200), action="notify")


@pytest.mark.parametrize("kind", ["quota", "surge"])
def test_a_rolling_window_raises_one_notice_while_its_lock_would_last(
    store: SqlStore, engine: sa.Engine, kind: str
) -> None:
    by_plan = make_plan([], [], [rolling(kind)])
    store.activate(by_plan)
    (notice,) = raise_by(store, by_plan, a_row(70, now_s(engine)))
    assert (notice.at.policy, notice.at.key, notice.at.threshold) == ("watched", ACME, 1_000)
    assert (notice.used, notice.limit, notice.scope) == (70, 60, "caller")
    assert "locked" not in notice.detail
    assert "70 counted" in notice.detail
    for _ in range(3):
        assert not raise_by(store, by_plan, a_row(5, now_s(engine)))
    assert changes_of_feed(engine) == []


def look_of_warden(engine: sa.Engine) -> Sequence[Notice]:
    """Judges what waits, as if its time had come; returns the notices that were raised."""
    with writing(engine) as db:
        db.exec_driver_sql("update postponed set due_ms = 0")
    return Upkeep(engine, lambda: "mark").judge_waiting().judged.notices


def row_of(engine: sa.Engine, threshold: int) -> tuple[int, int]:
    """Returns when the last notice of a threshold was raised, and until when it lasts."""
    with engine.connect() as db:
        found = sa.select(notices.c.window_s, notices.c.until_s).where(notices.c.threshold == threshold)
        row = db.execute(found.order_by(notices.c.window_s.desc()).limit(1)).one()
    return row.window_s, row.until_s


def empty_window(engine: sa.Engine) -> None:
    """Lets all that was counted leave its window."""
    with writing(engine) as db:
        db.execute(sa.update(buckets).values(value_0=0))


def forget_raises(engine: sa.Engine, seconds: int) -> None:
    """Lets time pass since notices were raised."""
    with writing(engine) as db:
        past = {"window_s": notices.c.window_s - seconds, "at_ms": notices.c.at_ms - 1_000 * seconds}
        db.execute(sa.update(notices).values(past))


def test_a_threshold_of_a_rolling_window_is_raised_again_only_after_the_sum_was_below_it(
    store: SqlStore, engine: sa.Engine
) -> None:
    policy = RollingQuota("hourly", 100, Rolling(7_200), notify=(500, 800))
    by_plan = make_plan([], [], [policy])
    store.activate(by_plan)
    assert thresholds(raise_by(store, by_plan, a_row(60, now_s(engine)))) == [(ACME, 500)]
    assert thresholds(raise_by(store, by_plan, a_row(25, now_s(engine)))) == [(ACME, 800)]
    again = SqlStore(engine, "another")
    assert not raise_by(again, by_plan, a_row(1, now_s(engine)))
    forget_raises(engine, 2 * 7_200)
    assert not look_of_warden(engine), "the sum has not been below it"
    assert row_of(engine, 500)[1] == LASTS_S
    empty_window(engine)
    assert not look_of_warden(engine)
    assert abs(row_of(engine, 500)[1] - now_s(engine)) <= 2, "it was found below"
    assert thresholds(raise_by(again, by_plan, a_row(60, now_s(engine)))) == [(ACME, 500)]
    assert len(stored(engine)) == 3


def test_a_threshold_of_a_rolling_window_is_raised_once_in_the_length_of_the_window(
    store: SqlStore, engine: sa.Engine
) -> None:
    by_plan = make_plan([], [], [RollingQuota("hourly", 100, Rolling(7_200), notify=(500,))])
    store.activate(by_plan)
    assert raise_by(store, by_plan, a_row(60, now_s(engine)))
    began_s, _ = row_of(engine, 500)
    for _ in range(2):
        empty_window(engine)
        look_of_warden(engine)
        assert row_of(engine, 500)[1] < LASTS_S
        assert not raise_by(store, by_plan, a_row(60, now_s(engine)))
        assert row_of(engine, 500) == (began_s, LASTS_S), "it continues"
    forget_raises(engine, 7_200)
    assert not look_of_warden(engine), "it has not been below since"
    empty_window(engine)
    look_of_warden(engine)
    assert raise_by(store, by_plan, a_row(60, now_s(engine)))


def test_a_soft_quota_of_a_rolling_window_has_one_notice_and_no_row_of_a_lock(
    store: SqlStore, engine: sa.Engine
) -> None:
    by_plan = make_plan([], [], [rolling("quota")])
    store.activate(by_plan)
    assert thresholds(raise_by(store, by_plan, a_row(70, now_s(engine)))) == [(ACME, 1_000)]
    assert not locked(engine)


@pytest.mark.parametrize(
    ("grace", "below", "beyond"),
    [(Grace(thousandths=100), 65, 66), (Grace(amount=20), 79, 80)],
    ids=["percentage", "amount"],
)
def test_the_lock_of_a_rolling_quota_begins_beyond_its_grace(
    store: SqlStore, engine: sa.Engine, grace: Grace, below: int, beyond: int
) -> None:
    by_plan = make_plan([], [], [RollingQuota("hourly", 60, Rolling(7_200), grace=grace)])
    store.activate(by_plan)
    flush(store, by_plan, [a_row(below, now_s(engine))])
    assert not locked(engine)
    flush(store, by_plan, [a_row(beyond - below, now_s(engine))])
    assert list(locked(engine)) == [(ACME, "hourly")]


def test_a_grace_of_time_in_a_rolling_window_begins_when_the_limit_is_reached(
    store: SqlStore, engine: sa.Engine
) -> None:
    policy = RollingQuota("hourly", 60, Rolling(7_200), grace=Grace(time_s=900))
    by_plan = make_plan([], [], [policy])
    store.activate(by_plan)
    assert thresholds(raise_by(store, by_plan, a_row(60, now_s(engine)))) == [(ACME, 1_000)]
    flush(store, by_plan, [a_row(60, now_s(engine))])
    assert not locked(engine)
    forget_raises(engine, 890)
    look_of_warden(engine)
    assert not locked(engine)
    empty_window(engine)
    look_of_warden(engine)
    forget_raises(engine, 10)
    (again,) = raise_by(store, by_plan, a_row(60, now_s(engine)))
    assert again.at.threshold == 1_000, "it has been below the limit: its grace begins again"
    look_of_warden(engine)
    assert not locked(engine)
    forget_raises(engine, 900)
    look_of_warden(engine)
    assert list(locked(engine)) == [(ACME, "hourly")]
    store.activate(make_plan([], [], [policy, quota(10**6)]))
    assert list(locked(engine)) == [(ACME, "hourly")], "another plan does not begin the grace again"


def test_no_gate_learns_of_a_lock_that_is_not_enforced(store: SqlStore, engine: sa.Engine) -> None:
    by_plan = make_plan(
        [], [], [rolling("surge"), RollingQuota(name="hard", limit=60, window=Rolling(7_200))]
    )
    store.activate(by_plan)
    flush(store, by_plan, [a_row(70, now_s(engine))])
    assert [policy for _, policy in locked(engine)] == ["hard", "watched"]
    assert changes_of_feed(engine) == [("set", "hard", ACME)]
    with closing(SqlSource(str(engine.url.render_as_string(hide_password=False)))) as source:
        snapshot = source.fetch(None)
    assert [change.at.policy for change in snapshot.changes] == ["hard"]
    assert installation_status(engine, head()).active_locks == {"hard": 1}
    assert [lock.policy for lock in locks_in_force(engine)] == ["hard"]


def test_a_policy_that_stops_enforcing_opens_the_gates_and_one_that_begins_closes_them(
    store: SqlStore, engine: sa.Engine
) -> None:
    soft, hard = (
        make_plan([], [], [RollingQuota(name="hourly", limit=60, window=Rolling(7_200), action=action)])
        for action in ("notify", "deny")
    )
    store.activate(soft)
    flush(store, soft, [a_row(70, now_s(engine))])
    assert changes_of_feed(engine) == []
    store.activate(hard)
    assert [(op, key) for op, _, key in changes_of_feed(engine)] == [("set", ACME)]
    store.activate(soft)
    assert [(op, key) for op, _, key in changes_of_feed(engine)] == [("set", ACME), ("clear", ACME)]
    assert len(stored(engine)) == 1, "it was raised by the first plan, and has not ended"


def changes_of_feed(engine: sa.Engine) -> list[tuple[str, str, str]]:
    """Returns the changes of the feed: op, policy and key."""
    columns = (lock_changes.c.op, lock_changes.c.policy, lock_changes.c.key)
    with engine.connect() as db:
        rows = db.execute(sa.select(*columns).order_by(lock_changes.c.version, lock_changes.c.number))
        return [tuple(row) for row in rows]


def test_a_notice_that_lasts_ends_with_its_policy_or_its_sum(store: SqlStore, engine: sa.Engine) -> None:
    def sliding(name: str) -> RollingQuota:
        return RollingQuota(name=name, limit=10, window=Rolling(7_200), notify=(500,))

    def ends() -> dict[str, int]:
        with engine.connect() as db:
            rows = db.execute(sa.select(notices.c.policy, notices.c.until_s))
            return {row.policy: row.until_s for row in rows}

    two, one = (
        make_plan([], [], [sliding(name) for name in names]) for names in (("gone", "kept"), ("kept",))
    )
    store.activate(two)
    assert len(raise_by(store, two, a_row(6, now_s(engine)))) == 2
    assert ends() == {"gone": LASTS_S, "kept": LASTS_S}
    store.activate(one)
    assert ends()["gone"] <= now_s(engine)
    assert ends()["kept"] == LASTS_S
    store.activate(plan(quota(99)))
    assert ends()["kept"] <= now_s(engine)
