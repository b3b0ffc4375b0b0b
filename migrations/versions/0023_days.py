"""Closed days: what was counted before they were cut, and what was booked since.

Triggers refuse every change of the rows of a closed day, by any program and any user who may not drop the
triggers themselves.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
PARTITION = (("cluster", NAME), ("topic_id", NAME), ("partition", sa.BigInteger()))
DIGESTS = ("digest", "digest_before", "digest_key")
AMOUNTS = tuple(f"{kind}_{at}" for kind in ("value", "denied") for at in range(8))
FROZEN = "the day is closed: its rows cannot be changed"
KEPT = "corrections are never changed: book another one"

# Of each table: the day whose rows an operation would change.
DAY_OF = {"days": "id", "day_positions": "day", "frozen_counts": "day", "adjustments": "booked"}


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", NAME, nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "days",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        *_texts("zone", "date"),
        *_numbers("begin_s", "end_s"),
        *_texts("state", "groupings", "meters"),
        sa.Column("cut_ms", sa.BigInteger()),
        sa.Column("closed_ms", sa.BigInteger()),
        *_numbers("rows", "requests"),
        *_texts("given", *DIGESTS),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_days")),
    )
    op.create_index(op.f("ix_days_zone_begin_s"), "days", ["zone", "begin_s"], unique=True)
    is_cut = sa.text("state != 'open'")
    op.create_index("ix_days_cut", "days", ["end_s"], postgresql_where=is_cut, sqlite_where=is_cut)
    op.create_table(
        "day_positions",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, kind, autoincrement=False, nullable=False) for name, kind in PARTITION),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("target", sa.BigInteger()),
        sa.Column("cut", sa.BigInteger()),
        sa.Column("left_out", sa.Text(), nullable=False, server_default=""),
        sa.Column("who", sa.Text(), nullable=False, server_default=""),
        sa.Column("is_gone", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("day", *(name for name, _ in PARTITION), name=op.f("pk_day_positions")),
    )
    _create_counts("frozen_counts", "day")
    _create_counts("adjustments", "day", "booked")
    op.create_index(op.f("ix_adjustments_booked"), "adjustments", ["booked"])
    op.create_table(
        "corrections",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        *_numbers("day", "booked"),
        *_texts("grouping", "reference", "resource", "meter"),
        *_numbers("amount"),
        *_texts("who", "reason"),
        *_numbers("at_ms"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_corrections")),
    )
    for column in ("booked", "day"):
        op.create_index(op.f(f"ix_corrections_{column}"), "corrections", [column])
    op.create_table(
        "referenced_names",
        sa.Column("reference", NAME, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("reference", name=op.f("pk_referenced_names")),
    )
    for statement in _guards(op.get_bind().dialect.name):
        op.execute(statement)


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _create_counts(table: str, *days: str) -> None:
    op.create_table(
        table,
        *(sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False) for name in days),
        *(
            sa.Column(name, sa.SmallInteger(), autoincrement=False, nullable=False)
            for name in ("grouping", "page")
        ),
        *(sa.Column(name, NAME, nullable=False) for name in ("reference", "resource")),
        *(sa.Column(name, sa.BigInteger()) for name in AMOUNTS),
        sa.PrimaryKeyConstraint(*days, "grouping", "page", "reference", "resource", name=op.f(f"pk_{table}")),
        sqlite_with_rowid=False,
    )


def _guards(dialect: str) -> list[str]:
    """Returns the statements that create the triggers."""
    return _guards_of_postgresql() if dialect == "postgresql" else _guards_of_sqlite()


def _guards_of_postgresql() -> list[str]:
    made = [
        f"""
        create function refuse_closed_days() returns trigger language plpgsql as $$
        declare
            of_old bigint;
            of_new bigint;
        begin
            if tg_op = 'TRUNCATE' then
                raise exception '{FROZEN}';
            end if;
            if tg_table_name = 'days' then
                if tg_op <> 'INSERT' and old.state = 'closed' then
                    raise exception '{FROZEN}';
                end if;
            else
                if tg_op <> 'INSERT' then
                    of_old := (to_jsonb(old) ->> tg_argv[0])::bigint;
                end if;
                if tg_op <> 'DELETE' then
                    of_new := (to_jsonb(new) ->> tg_argv[0])::bigint;
                end if;
                if exists (select from days where id in (of_old, of_new) and state = 'closed') then
                    raise exception '{FROZEN}';
                end if;
            end if;
            return case tg_op when 'DELETE' then old else new end;
        end $$
        """,
        f"""
        create function refuse_changed_corrections() returns trigger language plpgsql as $$
        begin
            raise exception '{KEPT}';
        end $$
        """,
    ]
    for table, column in DAY_OF.items():
        made += [
            f"create trigger closed_days before insert or update or delete on {table} "
            f"for each row execute function refuse_closed_days('{column}')",
            f"create trigger closed_days_kept before truncate on {table} "
            "for each statement execute function refuse_closed_days()",
        ]
    return [
        *made,
        "create trigger corrections_kept before update or delete on corrections "
        "for each row execute function refuse_changed_corrections()",
        "create trigger corrections_not_truncated before truncate on corrections "
        "for each statement execute function refuse_changed_corrections()",
    ]


def _guards_of_sqlite() -> list[str]:
    made = []
    for table, column in DAY_OF.items():
        for act, rows in (("insert", ("new",)), ("update", ("old", "new")), ("delete", ("old",))):
            if table == "days":
                if act == "insert":
                    continue
                condition = "old.state = 'closed'"
            else:
                named = ", ".join(f"{row}.{column}" for row in rows)
                condition = f"exists (select 1 from days where id in ({named}) and state = 'closed')"  # noqa: S608 - names of ours
            made.append(
                f"create trigger {table}_closed_{act} before {act} on {table} when {condition} "
                f"begin select raise(abort, '{FROZEN}'); end"
            )
    made += [
        f"create trigger corrections_kept_{act} before {act} on corrections "
        f"begin select raise(abort, '{KEPT}'); end"
        for act in ("update", "delete")
    ]
    return made


def downgrade() -> None:
    for table in ("referenced_names", "corrections", "adjustments", "frozen_counts", "day_positions", "days"):
        op.drop_table(table)
    op.drop_table("secrets")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("drop function refuse_closed_days()")
        op.execute("drop function refuse_changed_corrections()")
