"""One running total per sum, shared by the policies with that sum; columns renamed as the code names them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic import context, op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
RENAMED = {  # columns of `offsets`
    "witness": "resume_token",
    "run": "reject_run",
    "rejects_to": "rejects_accepted_to",
    "behind_hour": "behind_run",
}


class Quota(NamedTuple):
    """A policy of the plan in force, as far as its totals are concerned."""

    name: str
    grouping: str
    meter: str
    period: str
    limit: int

    @property
    def sum(self) -> dict[str, str]:
        return {"grouping": self.grouping, "meter": self.meter, "period": self.period}


def upgrade() -> None:
    # `batch_alter_table` would copy the table on SQLite; both databases rename a column in place.
    for old, new in RENAMED.items():
        op.execute(f"ALTER TABLE offsets RENAME COLUMN {old} TO {new}")
    _named_callers("named_callers", "named")
    op.rename_table("totals", "old_totals")
    _drop_constraints_of_old_totals()
    _shared_totals()
    for quota in _first_of_each_sum():
        op.get_bind().execute(sa.text(SHARE), quota.sum | {"policy": quota.name, "next": quota.limit})
    op.drop_table("old_totals")
    _deactivate_plan_offline()


def downgrade() -> None:
    op.rename_table("totals", "old_totals")
    _drop_constraints_of_old_totals()
    _totals_of_policies()
    for quota in _quotas():
        op.get_bind().execute(sa.text(SPLIT), quota.sum | {"policy": quota.name})
    op.drop_table("old_totals")
    _deactivate_plan_offline()
    _rewrite_plans_in_format_1()
    _named_callers("named", "named_callers")
    for old, new in RENAMED.items():
        op.execute(f"ALTER TABLE offsets RENAME COLUMN {new} TO {old}")


# `plan` = 0 makes the next flush that adds to a total judge it and compute its `next`.
SHARE = """
    INSERT INTO totals (grouping, meter, period, key, resource, window_s, until_s, used, next, plan)
    SELECT :grouping, :meter, :period, key, resource, window_s, until_s, used, :next, 0
    FROM old_totals WHERE policy = :policy
"""
SPLIT = """
    INSERT INTO totals (policy, key, resource, window_s, until_s, used)
    SELECT :policy, key, resource, window_s, until_s, used
    FROM old_totals WHERE grouping = :grouping AND meter = :meter AND period = :period
"""


def _deactivate_plan_offline() -> None:
    """A script that is printed cannot read the plan, and so copies no totals.

    Without a plan in force, the next analyzer fills them from the buckets when it starts.
    """
    if context.is_offline_mode():
        op.execute("UPDATE plans SET active = 0")


def _drop_constraints_of_old_totals() -> None:
    """The new table gets the names of its index and its primary key."""
    op.drop_index("ix_totals_until_s", table_name="old_totals")
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint("pk_totals", "old_totals", type_="primary")


def _shared_totals() -> None:
    op.create_table(
        "totals",
        *(
            sa.Column(name, NAME, nullable=False)
            for name in ("grouping", "meter", "period", "key", "resource")
        ),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("window_s", "until_s", "used", "next", "plan")
        ),
        sa.PrimaryKeyConstraint(
            "grouping", "meter", "period", "key", "resource", "window_s", name=op.f("pk_totals")
        ),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(op.f("ix_totals_until_s"), "totals", ["until_s"], unique=False)


def _totals_of_policies() -> None:
    op.create_table(
        "totals",
        *(sa.Column(name, NAME, nullable=False) for name in ("policy", "key", "resource")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("window_s", "until_s", "used")),
        sa.PrimaryKeyConstraint("policy", "key", "resource", "window_s", name=op.f("pk_totals")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(op.f("ix_totals_until_s"), "totals", ["until_s"], unique=False)


def _named_callers(table: str, old: str) -> None:
    """Copied rather than renamed, so that the primary key's name follows; a few rows per partition."""
    op.create_table(
        table,
        *(sa.Column(name, NAME, nullable=False) for name in ("cluster", "topic_id")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("partition", "hour")),
        sa.Column("how", NAME, nullable=False),
        sa.Column("next", sa.BigInteger(), nullable=False),
        sa.Column("callers", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "cluster", "topic_id", "partition", "hour", "how", "next", name=op.f(f"pk_{table}")
        ),
    )
    op.execute(f"INSERT INTO {table} SELECT * FROM {old}")  # noqa: S608 - both names are literals above
    op.drop_table(old)


def _first_of_each_sum() -> Iterator[Quota]:
    """One policy per sum, with the least limit: policies with the same sum have equal totals."""
    seen: dict[tuple[str, ...], Quota] = {}
    for quota in _quotas():
        key = tuple(quota.sum.values())
        least = min(quota.limit, seen[key].limit) if key in seen else quota.limit
        seen[key] = seen.get(key, quota)._replace(limit=least)
    yield from seen.values()


def _quotas() -> list[Quota]:
    body = _plans()[-1][1] if _plans() else {}
    found = body.get("policies", ())
    return [
        Quota(
            policy["name"],
            policy["per"],
            policy["meter"],
            f"{policy['window']['per']} {policy['window']['zone']}",
            policy["limit"],
        )
        for policy in found
    ]


def _plans() -> list[tuple[int, dict[str, Any]]]:
    """Version and body of each stored plan, the one in force last; policies without their tags."""
    if context.is_offline_mode():
        return []
    rows = op.get_bind().execute(sa.text("SELECT version, body FROM plans WHERE body <> '' ORDER BY active"))
    plans = []
    for version, text in rows:
        try:
            document = json.loads(text)
        except ValueError:
            continue  # no version of the program can read it
        body = document if isinstance(document, dict) else document[1]
        untagged = [policy if isinstance(policy, dict) else policy[1] for policy in body["policies"]]
        plans.append((version, body | {"policies": untagged}))
    return plans


def _rewrite_plans_in_format_1() -> None:
    """Version 0002 reads a plan as one object, in which each meter has the width of its buckets."""
    for version, body in _plans():
        meters = [meter | {"width_s": 60} for meter in body["meters"]]
        text = json.dumps(body | {"meters": meters}, separators=(",", ":"))
        statement = sa.text("UPDATE plans SET body = :body WHERE version = :version")
        op.get_bind().execute(statement, {"body": text, "version": version})
