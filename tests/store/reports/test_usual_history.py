"""Which policies by the usual load have not enough weeks of counts yet, as the doctor says."""

from __future__ import annotations

import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.sql.usual_history import policies_without_history
from analyzer.kernel.model import CountRow
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import UsualShare
from analyzer.plan.windows import HOUR_S, Rolling
from tests.store.flushing import now_s, quota
from tests.support.stored_counts import put_counts

WEEK_S = 7 * 24 * HOUR_S
UNUSUAL = UsualShare("unusual", 3_000, 90, Rolling(60), per="caller+resource")


def count(engine: sa.Engine, at_s: int, width_s: int = 60) -> None:
    """Stores a request of some time ago."""
    at_s -= at_s % width_s
    row = CountRow("caller+resource", "user:ann", "/a", "requests", width_s, at_s, 1, 0)
    with engine.begin() as db:
        put_counts(db, [row])


def test_a_policy_has_its_weeks_two_weeks_after_the_first_count(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(make_plan([], [], [UNUSUAL, quota(10)]))
    [unready] = policies_without_history(engine)
    assert (unready.policy, unready.ready_at) == ("unusual", None)
    assert unready.sentence.endswith(", and has none")
    first_s = now_s(engine) - WEEK_S
    count(engine, now_s(engine))
    count(engine, first_s)
    [unready] = policies_without_history(engine)
    assert unready.ready_at is not None
    assert unready.ready_at.timestamp() == first_s // HOUR_S * HOUR_S + 2 * WEEK_S
    assert unready.sentence.endswith("Z on")
    count(engine, now_s(engine) - 3 * WEEK_S, width_s=900)
    assert list(policies_without_history(engine)) == []


def test_without_such_a_policy_the_report_is_empty(store: SqlStore, engine: sa.Engine) -> None:
    assert list(policies_without_history(engine)) == []
    store.activate(make_plan([], [], [quota(10)]))
    assert list(policies_without_history(engine)) == []
