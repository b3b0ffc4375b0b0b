"""The outcomes of policies: the sums of the database equal those of the locks, read one by one."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.judging.locks.lock_outcomes import lock_outcomes, outcomes_by_policy, policy_outcomes
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import UNKNOWN, lock_history
from tests.store.flushing import now_s
from tests.store.simulated_analyzers import empty_tables
from tests.support.depth import deeper

HOUR_MS = 3_600_000
HOURS = st.integers(1, 6)
ROW = st.fixed_dictionaries({
    "key": st.sampled_from(["user:ann", "user:bob"]),
    "resource": st.sampled_from(["", "/a"]),
    "policy": st.sampled_from(["daily", "hourly"]),
    "action": st.sampled_from(["deny", "shadow"]),
    "began": st.integers(-6, -1),
    "lasts": HOURS,
    "ended": st.none() | HOURS,
    "used_began": st.sampled_from([UNKNOWN, 0, 5]),
    "used_ended": st.sampled_from([UNKNOWN, 3, 2**40]),
})  # fmt: skip


@settings(
    max_examples=deeper(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # fmt: skip
@given(rows=st.lists(ROW, max_size=12), since=st.integers(-8, 0))
def test_sums_of_the_database_equal_those_of_the_locks(
    engine: sa.Engine, rows: list[dict[str, Any]], since: int
) -> None:
    empty_tables(engine)
    now_ms = now_s(engine) * 1_000 + 60_000  # no lock ends while the test runs
    stored = {}
    for row in rows:
        began_ms = now_ms + row["began"] * HOUR_MS
        columns = {
            "scope": "caller", "key": row["key"], "resource": row["resource"], "policy": row["policy"],
            "action": row["action"], "began_ms": began_ms, "until_ms": began_ms + row["lasts"] * HOUR_MS,
            "ended_ms": None if row["ended"] is None else began_ms + row["ended"] * HOUR_MS,
            "cause": "", "detail": "", "plan": 1,
            "used_began": row["used_began"], "used_ended": row["used_ended"],
        }  # fmt: skip
        stored[tuple(columns[column.name] for column in lock_history.primary_key)] = columns
    if stored:
        with writing(engine) as db:
            db.execute(sa.insert(lock_history), list(stored.values()))
    since_ms = now_ms + since * HOUR_MS
    expected = policy_outcomes(lock_outcomes(engine, since_ms))
    assert outcomes_by_policy(engine, since_ms) == expected
    assert outcomes_by_policy(engine, since_ms, ["daily"]) == [
        outcome for outcome in outcomes_by_policy(engine, since_ms) if outcome.policy == "daily"
    ]
