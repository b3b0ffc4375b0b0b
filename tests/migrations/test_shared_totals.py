"""Migration 0003 on tables with rows: one total per sum in place of one per policy, renamed columns, plans.

Up from the tables as version 0002 of the program wrote them, and down to them again.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.judging.sql import plans
from analyzer.kernel.database import migrate
from analyzer.kernel.database.engine import reading, writing

Rows = list[dict[str, Any]]
DAY_S, MONTH_S = (1_763_766_000, 1_763_852_400), (1_761_951_600, 1_764_543_600)


def quota(name: str, limit: int, per: str = "day", grouping: str = "caller") -> dict[str, Any]:
    """Returns a policy as format 1 of the plan has it."""
    window = {"per": per, "zone": "Europe/Berlin"}
    return {
        "name": name, "limit": limit, "window": window, "meter": "requests", "per": grouping,
        "action": "deny", "status": 429, "on_stale": "keep", "slow": None,
    }  # fmt: skip


def plan_body(*policies: dict[str, Any]) -> str:
    """Returns a plan of format 1, as version 0002 stored it."""
    meter = {"name": "requests", "field": None, "join": "sum", "where": [], "width_s": 60}
    groupings = ["caller", "caller+resource"]
    document = {"groupings": groupings, "meters": [meter], "policies": policies}
    return json.dumps(document, separators=(",", ":"))


IN_FORCE = plan_body(
    quota("daily", 100),
    quota("items", 10, grouping="caller+resource"),
    quota("monthly", 2000, "month"),
    quota("warned", 50),
)
PLANS: Rows = [
    {"version": 1, "digest": "a", "body": plan_body(quota("retired", 7)), "active": 0, "at_ms": 1},
    {"version": 2, "digest": "b", "body": IN_FORCE, "active": 1, "at_ms": 2},
    {"version": 3, "digest": "c", "body": "", "active": 0, "at_ms": 3},
]


def total(policy: str, key: str, used: int, window: tuple[int, int] = DAY_S, resource: str = "") -> Any:
    start_s, until_s = window
    return {
        "policy": policy, "key": key, "resource": resource,
        "window_s": start_s, "until_s": until_s, "used": used,
    }  # fmt: skip


# "daily" and "warned" sum the same, so their totals are equal. "retired" is a policy of an earlier plan.
TOTALS: Rows = [
    total("daily", "api_key:acme", 70),
    total("daily", "user:ann", 3),
    total("items", "api_key:acme", 4, resource="/v1/items/{id}"),
    total("monthly", "api_key:acme", 900, MONTH_S),
    total("retired", "api_key:acme", 5),
    total("warned", "api_key:acme", 70),
    total("warned", "user:ann", 3),
]
OFFSET = {
    "cluster": "c", "topic_id": "t", "partition": 3, "source": "log", "topic": "access-log", "next": 44,
    "witness": "5:w", "seen": 9, "counted": 6, "duplicate": 0, "dead": 2, "late": 1, "owner": "one",
    "beat_ms": 8, "behind_ms": 10, "behind_records": 11, "run": 2, "rejects_to": 40, "behind_hour": 13,
    "hour": 14, "hour_before": None,
}  # fmt: skip
RENAMED = {
    "witness": "resume_token",
    "run": "reject_run",
    "rejects_to": "rejects_accepted_to",
    "behind_hour": "behind_run",
}
NAMED: Rows = [
    {"cluster": "c", "topic_id": "t", "partition": 3, "hour": 14, "how": how, "next": 44, "callers": callers}
    for how, callers in (("drawn", "user:ann"), ("new", "api_key:acme\nuser:bob"))
]


def insert(db: sa.Connection, table: str, rows: Rows) -> None:
    columns = [sa.column(name) for name in rows[0]]
    db.execute(sa.insert(sa.table(table, *columns)), rows)


def rows_of(engine: sa.Engine, table: str) -> Rows:
    """Returns the rows of a table as it is in the database now, in the order of its primary key."""
    with engine.connect() as db:
        reflected = sa.Table(table, sa.MetaData(), autoload_with=db)
        statement = sa.select(reflected).order_by(*reflected.primary_key)
        return [dict(row) for row in db.execute(statement).mappings()]


@pytest.fixture
def upgraded(database_url: str, engine: sa.Engine) -> sa.Engine:
    """A database that version 0002 wrote, at version 0003."""
    migrate.upgrade(database_url, "0002")
    with writing(engine) as db:
        insert(db, "offsets", [OFFSET])
        insert(db, "named", NAMED)
        insert(db, "totals", TOTALS)
        insert(db, "plans", PLANS)
    migrate.upgrade(database_url, "0003")
    return engine


def test_policies_that_sum_the_same_share_totals_after_the_upgrade(upgraded: sa.Engine) -> None:
    """With the least of their limits as `next`, and no plan: the next flush judges each total it adds to."""
    berlin = {"day": "day Europe/Berlin", "month": "month Europe/Berlin"}
    found = [tuple(row.values()) for row in rows_of(upgraded, "totals")]
    assert found == [
        ("caller", "requests", berlin["day"], "api_key:acme", "", *DAY_S, 70, 50, 0),
        ("caller", "requests", berlin["day"], "user:ann", "", *DAY_S, 3, 50, 0),
        ("caller", "requests", berlin["month"], "api_key:acme", "", *MONTH_S, 900, 2000, 0),
        ("caller+resource", "requests", berlin["day"], "api_key:acme", "/v1/items/{id}", *DAY_S, 4, 10, 0),
    ]


def test_positions_ledgers_and_the_counters_state_survive_the_upgrade(upgraded: sa.Engine) -> None:
    assert rows_of(upgraded, "offsets") == [
        {RENAMED.get(column, column): value for column, value in OFFSET.items()}
    ]
    assert rows_of(upgraded, "named_callers") == NAMED


def test_the_plan_in_force_stays_in_force_after_the_upgrade(database_url: str, upgraded: sa.Engine) -> None:
    """An analyzer that proposes the same plan changes no version, lock or total."""
    migrate.upgrade(database_url)
    with reading(upgraded) as db:
        version, plan = plans.active(db)
    assert version == 2
    assert [policy.name for policy in plan.policies] == ["daily", "items", "monthly", "warned"]
    before = rows_of(upgraded, "totals")
    with writing(upgraded) as db:
        assert plans.activate(db, plan, lambda: "mark").version == 2
        assert plans.active(db) == (2, plan)
    assert rows_of(upgraded, "totals") == before


def test_a_downgrade_gives_each_policy_its_totals_again(database_url: str, upgraded: sa.Engine) -> None:
    migrate.downgrade(database_url, "0002")
    assert rows_of(upgraded, "totals") == [row for row in TOTALS if row["policy"] != "retired"]
    assert rows_of(upgraded, "offsets") == [OFFSET]
    assert rows_of(upgraded, "named") == NAMED
    assert rows_of(upgraded, "plans") == PLANS


def test_a_downgrade_rewrites_plans_of_this_version_in_format_1(
    database_url: str, upgraded: sa.Engine
) -> None:
    migrate.upgrade(database_url)
    with writing(upgraded) as db:
        _, plan = plans.active(db)
        plans.activate(db, plan, lambda: "mark")
    assert rows_of(upgraded, "plans")[1]["body"].startswith("[3,")
    migrate.downgrade(database_url, "0002")
    found = rows_of(upgraded, "plans")[1]["body"]
    assert json.loads(found) == json.loads(IN_FORCE)
    assert rows_of(upgraded, "totals") == [row for row in TOTALS if row["policy"] != "retired"]


def test_after_a_downgrade_the_upgrade_gives_the_same_totals(database_url: str, upgraded: sa.Engine) -> None:
    before = rows_of(upgraded, "totals")
    migrate.downgrade(database_url, "0002")
    migrate.upgrade(database_url, "0003")
    assert rows_of(upgraded, "totals") == before


def test_without_a_plan_in_force_no_totals_are_kept(database_url: str, engine: sa.Engine) -> None:
    """The first analyzer that starts fills them from the buckets."""
    migrate.upgrade(database_url, "0002")
    with writing(engine) as db:
        insert(db, "totals", TOTALS)
    migrate.upgrade(database_url)
    assert rows_of(engine, "totals") == []
    with reading(engine) as db, pytest.raises(LookupError):
        plans.active(db)
