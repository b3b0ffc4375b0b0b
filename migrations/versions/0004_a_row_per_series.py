"""One row for all meters of a series and bucket, small numbers for names, totals by window.

Totals are rewritten here, because no lock is raised without them: 6 seconds for a million. Buckets are
not: where there are any, their table becomes `old_buckets`, and analyzers of the new version move its rows in
the background while they count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
PLACES = range(8)
VALUES = [f"{kind}_{place}" for kind in ("value", "denied") for place in PLACES]
OLD_KEY = ("grouping", "meter", "width_s", "bucket_s", "key", "resource")


def upgrade() -> None:
    _catalog()
    numbers = _give_numbers()
    _set_buckets_aside()
    _buckets()
    _days()
    _rewrite_totals(numbers.get("sum", {}))
    op.add_column("plans", sa.Column("pending", sa.Text(), nullable=False, server_default=""))
    _deactivate_plan_offline()


def downgrade() -> None:
    _deactivate_plan_offline()
    op.drop_column("plans", "pending")
    _forget_renames()
    numbers = _numbers()
    _restore_totals(numbers.get("sum", {}))
    _restore_buckets(numbers)
    for table in ("proofs", "day_counts", "catalog"):
        op.drop_table(table)


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _names(*columns: str) -> list[sa.Column[Any]]:
    return [sa.Column(column, NAME, nullable=False) for column in columns]


def _numbers_of(*columns: str, kind: Any = sa.BigInteger, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(column, kind(), autoincrement=False, nullable=nullable) for column in columns]


def _catalog() -> None:
    op.create_table(
        "catalog",
        *_names("kind", "name"),
        *_numbers_of("number"),
        sa.Column("join", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_catalog")),
    )


def _give_numbers() -> dict[str, dict[str, int]]:
    """Gives a number to what the plan in force names, and to every grouping and meter that has buckets."""
    if context.is_offline_mode():
        return {}
    joins, plan = _joins(), _plan_in_force()
    counted = _distinct("buckets", ("grouping", "meter"))
    groupings = sorted({row[0] for row in counted} | {*plan.get("groupings", ())})
    meters = sorted({row[1] for row in counted} | {meter["name"] for meter in plan.get("meters", ())})
    sums = sorted(
        {
            f"{policy['per']} {policy['meter']} {policy['window']['per']} {policy['window']['zone']}"
            for policy in plan.get("policies", ())
        }
    )
    rows: list[dict[str, Any]] = [
        *({"kind": "grouping", "name": name, "number": n} for n, name in enumerate(groupings, 1)),
        *({"kind": "meter", "name": name, "number": n} for n, name in enumerate(meters)),
        *({"kind": "sum", "name": name, "number": n} for n, name in enumerate(sums, 1)),
    ]
    for row in rows:
        row["join"] = joins.get(row["name"], "sum") if row["kind"] == "meter" else ""
    if rows:
        op.get_bind().execute(sa.insert(_table("catalog", "kind", "name", "number", "join")), rows)
    return _numbers()


def _table(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


def _numbers() -> dict[str, dict[str, int]]:
    if context.is_offline_mode():
        return {}
    found: dict[str, dict[str, int]] = {}
    for kind, name, number in op.get_bind().execute(sa.text("SELECT kind, name, number FROM catalog")):
        found.setdefault(kind, {})[name] = number
    return found


def _distinct(name: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Returns the values of the first columns of a primary key: one look at the index for each."""
    table = _table(name, *columns)
    key = [table.c[column] for column in columns]
    found: list[tuple[Any, ...]] = []
    while True:
        statement = sa.select(*key).order_by(*key).limit(1)
        if found:
            statement = statement.where(sa.tuple_(*key) > sa.tuple_(*map(sa.literal, found[-1])))
        row = op.get_bind().execute(statement).first()
        if row is None:
            return found
        found.append(tuple(row))


def _plan_in_force() -> dict[str, Any]:
    """Returns groupings, meters and policies, the latter without their tags; empty when there is no plan."""
    text = op.get_bind().execute(sa.text("SELECT body FROM plans WHERE active = 1")).scalar()
    try:
        document = json.loads(text or "{}")
    except ValueError:
        return {}  # no version of the program can read it
    if isinstance(document, dict):
        return document
    body: dict[str, Any] = document[1]
    return body | {"policies": [policy for _, policy in body["policies"]]}


def _joins() -> dict[str, str]:
    """The join of each meter, from the newest plan that has it."""
    joins: dict[str, str] = {}
    rows = op.get_bind().execute(sa.text("SELECT body FROM plans WHERE body <> '' ORDER BY version"))
    for (text,) in rows:
        try:
            document = json.loads(text)
            body = document if isinstance(document, dict) else document[1]
            joins |= {meter["name"]: meter["join"] for meter in body["meters"]}
        except (ValueError, KeyError, TypeError, IndexError):
            continue  # no version of the program can read it
    return joins


def _set_buckets_aside() -> None:
    statements = ["ALTER TABLE buckets RENAME TO old_buckets"]
    if _is_postgresql():
        statements.append("ALTER INDEX pk_buckets RENAME TO pk_old_buckets")
    statements.append(
        """INSERT INTO catalog (kind, name, number, "join") VALUES ('moving', 'old_buckets', 0, '')"""
    )
    if context.is_offline_mode() and _is_postgresql():
        aside = "; ".join(statements)
        exists = "EXISTS (SELECT 1 FROM buckets)"
        op.execute(f"DO $$ BEGIN IF {exists} THEN {aside}; ELSE DROP TABLE buckets; END IF; END $$")
        return
    has_rows = (
        context.is_offline_mode()
        or op.get_bind().execute(sa.text("SELECT 1 FROM buckets LIMIT 1")).first() is not None
    )
    for statement in statements if has_rows else ["DROP TABLE buckets"]:
        op.execute(statement)


def _buckets() -> None:
    op.create_table(
        "buckets",
        *_numbers_of("grouping", "page", kind=sa.SmallInteger),
        *_numbers_of("width_s", kind=sa.Integer),
        *_numbers_of("bucket_s"),
        *_numbers_of(*VALUES, nullable=True),
        *_names("key", "resource"),
        sa.PrimaryKeyConstraint(
            "grouping", "page", "width_s", "bucket_s", "key", "resource", name=op.f("pk_buckets")
        ),
        postgresql_with={"fillfactor": 70},
        sqlite_with_rowid=False,
    )


def _days() -> None:
    op.create_table(
        "day_counts",
        *_names("cluster", "topic_id"),
        *_numbers_of("partition", "day_s", "requests"),
        sa.PrimaryKeyConstraint("cluster", "topic_id", "partition", "day_s", name=op.f("pk_day_counts")),
    )
    op.create_table(
        "proofs",
        *_numbers_of("day_s", "requests", "at_ms", "deleted"),
        sa.PrimaryKeyConstraint("day_s", name=op.f("pk_proofs")),
    )


def _rewrite_totals(sums: dict[str, int]) -> None:
    _set_totals_aside(has_index=True)
    op.create_table(
        "totals",
        *_numbers_of("sum", kind=sa.SmallInteger),
        *_numbers_of("window_s"),
        *_names("key", "resource"),
        *_numbers_of("used", "next", "plan"),
        sa.PrimaryKeyConstraint("sum", "window_s", "key", "resource", name=op.f("pk_totals")),
        postgresql_with={"fillfactor": 50},
        sqlite_with_rowid=False,
    )
    for name, number in sorted(sums.items()):
        op.get_bind().execute(sa.text(REWRITE), {"number": number, **_sum_of(name)})
    op.drop_table("old_totals")


# Windows that ended two days ago are never judged again; the rows of the others are few.
REWRITE = """
    INSERT INTO totals (sum, window_s, key, resource, used, next, plan)
    SELECT :number, window_s, key, resource, used, next, plan FROM old_totals
    WHERE grouping = :grouping AND meter = :meter AND period = :period
"""
# `plan` = 0 makes the next flush that adds to a total judge it and compute its `next`.
RESTORE = """
    INSERT INTO totals (grouping, meter, period, key, resource, window_s, until_s, used, next, plan)
    SELECT :grouping, :meter, :period, key, resource, window_s, :until_s, used, next, 0
    FROM old_totals WHERE sum = :number AND window_s = :window_s
"""


def _sum_of(name: str) -> dict[str, str]:
    grouping, meter, period = name.split(" ", 2)
    return {"grouping": grouping, "meter": meter, "period": period}


def _set_totals_aside(*, has_index: bool) -> None:
    op.rename_table("totals", "old_totals")
    if has_index:
        op.drop_index("ix_totals_until_s", table_name="old_totals")
    if _is_postgresql():
        op.drop_constraint("pk_totals", "old_totals", type_="primary")


def _restore_totals(sums: dict[str, int]) -> None:
    from analyzer.plan.windows import Calendar, window_at

    _set_totals_aside(has_index=False)
    op.create_table(
        "totals",
        *_names("grouping", "meter", "period", "key", "resource"),
        *_numbers_of("window_s", "until_s", "used", "next", "plan"),
        sa.PrimaryKeyConstraint(
            "grouping", "meter", "period", "key", "resource", "window_s", name=op.f("pk_totals")
        ),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(op.f("ix_totals_until_s"), "totals", ["until_s"], unique=False)
    for name, number in sorted(sums.items()):
        parts = _sum_of(name)
        per, zone = parts["period"].split(" ")
        windows = sa.text("SELECT DISTINCT window_s FROM old_totals WHERE sum = :number")
        for (window_s,) in op.get_bind().execute(windows, {"number": number}).all():
            until_s = window_at(Calendar(per, zone), window_s).until_s  # type: ignore[arg-type]  # a stored one
            values = {"number": number, "window_s": window_s, "until_s": until_s, **parts}
            op.get_bind().execute(sa.text(RESTORE), values)
    op.drop_table("old_totals")


def _restore_buckets(numbers: dict[str, dict[str, int]]) -> None:
    """Makes a row per meter again, and adds them to those that were never moved."""
    op.rename_table("buckets", "wide_buckets")
    if _is_postgresql():
        op.execute("ALTER INDEX pk_buckets RENAME TO pk_wide_buckets")
    if numbers.keys() & {"moving", "moved"}:
        op.rename_table("old_buckets", "buckets")
        if _is_postgresql():
            op.execute("ALTER INDEX pk_old_buckets RENAME TO pk_buckets")
    else:
        op.create_table(
            "buckets",
            *_names("grouping", "meter"),
            *_numbers_of("width_s", "bucket_s"),
            *_names("key", "resource"),
            *_numbers_of("value", "denied"),
            sa.PrimaryKeyConstraint(*OLD_KEY, name=op.f("pk_buckets")),
            postgresql_with={"fillfactor": 70},
        )
    for grouping, meter, place, combine in _old_rows(numbers):
        statement = NARROW.format(
            value=f"value_{place}", denied=f"denied_{place}", combine_value=combine.format("value"),
            combine_denied=combine.format("denied"),
        )  # fmt: skip
        op.get_bind().execute(sa.text(statement), grouping | meter)
    op.drop_table("wide_buckets")


# The WHERE keeps SQLite from taking ON CONFLICT for the ON of a join.
NARROW = """
    INSERT INTO buckets (grouping, meter, width_s, bucket_s, key, resource, value, denied)
    SELECT :grouping, :meter, width_s, bucket_s, key, resource, coalesce({value}, 0), coalesce({denied}, 0)
    FROM wide_buckets
    WHERE grouping = :grouping_number AND page = :page
        AND (coalesce({value}, 0) > 0 OR coalesce({denied}, 0) > 0)
    ON CONFLICT (grouping, meter, width_s, bucket_s, key, resource)
    DO UPDATE SET value = {combine_value}, denied = {combine_denied}
"""


def _old_rows(
    numbers: dict[str, dict[str, int]],
) -> Iterable[tuple[dict[str, Any], dict[str, Any], int, str]]:
    """Yields each grouping and meter with the parameters of its rows, its place on the page and its join."""
    if context.is_offline_mode():
        return
    joins = dict(
        op.get_bind().execute(sa.text("""SELECT name, "join" FROM catalog WHERE kind = 'meter'""")).all()
    )
    largest = "greatest" if _is_postgresql() else "max"
    combined = {
        "max": f"{largest}(buckets.{{0}}, excluded.{{0}})",
        "sum": "buckets.{0} + excluded.{0}",
    }
    for grouping, grouping_number in numbers.get("grouping", {}).items():
        for meter, number in numbers.get("meter", {}).items():
            page, place = divmod(number, 8)
            yield (
                {"grouping": grouping, "grouping_number": grouping_number},
                {"meter": meter, "page": page},
                place,
                combined[joins[meter]],
            )


def _forget_renames() -> None:
    """Version 0003 knows no meter with an earlier name."""
    if context.is_offline_mode():
        return
    for version, text in op.get_bind().execute(sa.text("SELECT version, body FROM plans")).all():
        try:
            document = json.loads(text)
        except ValueError:
            continue  # no version of the program can read it
        body = document if isinstance(document, dict) else document[1]
        if not any("renamed_from" in meter for meter in body.get("meters", ())):
            continue
        for meter in body["meters"]:
            meter.pop("renamed_from", None)
        statement = sa.text("UPDATE plans SET body = :body WHERE version = :version")
        body_text = json.dumps(document, separators=(",", ":"))
        op.get_bind().execute(statement, {"body": body_text, "version": version})


def _deactivate_plan_offline() -> None:
    """A script that is printed cannot read the tables, and so copies neither totals nor buckets.

    Without a plan in force, the next analyzer fills the totals from the buckets when it starts.
    """
    if context.is_offline_mode():
        op.execute("UPDATE plans SET active = 0")
