"""Runs of the scheduled jobs, and closed days whose rows are deleted.

Triggers permit the deletion of the rows of a day that has a row in `deleted_days`, which only a day that
ended 62 days ago may get.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
REPLACED = ("prune", "delete-days")  # by jobs of other names: their outcomes would look overdue


FROZEN = "the day is closed: its rows cannot be changed"
YOUNG = "a day is deleted when it is closed, and 62 days after its end at the earliest"
KEPT = "a deleted day stays deleted"
AGE_S = 62 * 86_400
DAY_OF = {"day_positions": "day", "frozen_counts": "day", "adjustments": "booked"}


def upgrade() -> None:
    op.create_table(
        "job_runs",
        sa.Column("job", NAME, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("scheduled_ms", sa.BigInteger(), nullable=False),
        sa.Column("began_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_job_runs")),
    )
    op.create_index(op.f("ix_job_runs_began_ms"), "job_runs", ["began_ms"])
    jobs = sa.table("jobs", sa.column("name"))
    op.execute(sa.delete(jobs).where(jobs.c.name.in_(REPLACED)))
    op.create_table(
        "deleted_days",
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", name=op.f("pk_deleted_days")),
    )
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for statement in _guards_of_postgresql() if is_postgresql else _guards_of_sqlite():
        op.execute(statement)


def _guard_of_postgresql(*, permits: str = "") -> str:
    """Returns the function of the triggers of closed days, which refuses all but what `permits` lets pass."""
    return f"""
        create or replace function refuse_closed_days() returns trigger language plpgsql as $$
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
                {permits}
                if exists (select from days where id in (of_old, of_new) and state = 'closed') then
                    raise exception '{FROZEN}';
                end if;
            end if;
            return case tg_op when 'DELETE' then old else new end;
        end $$
        """


PERMITS = """
                if tg_op = 'DELETE' and exists (select from deleted_days where day = of_old) then
                    return old;
                end if;"""


EARLY = f"""
        create function refuse_early_deletion() returns trigger language plpgsql as $$
        begin
            if tg_op <> 'INSERT' then
                raise exception '{KEPT}';
            end if;
            if not exists (
                select from days where id = new.day and state = 'closed'
                and end_s < extract(epoch from clock_timestamp()) - {AGE_S}
            ) then
                raise exception '{YOUNG}';
            end if;
            return new;
        end $$
        """  # noqa: S608 - a number and sentences of ours


def _guards_of_postgresql() -> list[str]:
    return [
        _guard_of_postgresql(permits=PERMITS),
        EARLY,
        "create trigger deleted_days_kept before insert or update or delete on deleted_days "
        "for each row execute function refuse_early_deletion()",
        "create trigger deleted_days_not_truncated before truncate on deleted_days "
        "for each statement execute function refuse_early_deletion()",
    ]


def _guards_of_sqlite() -> list[str]:
    made = []
    for table in DAY_OF:
        made += [f"drop trigger {table}_closed_delete", _delete_of_sqlite(table, is_permitted=True)]
    is_old = f"end_s < cast(strftime('%s', 'now') as integer) - {AGE_S}"
    is_closed = f"exists (select 1 from days where id = new.day and state = 'closed' and {is_old})"  # noqa: S608 - names of ours
    made.append(
        f"create trigger deleted_days_old before insert on deleted_days when not {is_closed} "
        f"begin select raise(abort, '{YOUNG}'); end"
    )
    made += [
        f"create trigger deleted_days_kept_{act} before {act} on deleted_days "
        f"begin select raise(abort, '{KEPT}'); end"
        for act in ("update", "delete")
    ]
    return made


def _delete_of_sqlite(table: str, *, is_permitted: bool) -> str:
    """Returns the trigger that refuses to delete rows of closed days, but for those of deleted ones."""
    day = f"old.{DAY_OF[table]}"
    condition = f"exists (select 1 from days where id = {day} and state = 'closed')"  # noqa: S608 - names of ours
    if is_permitted:
        condition += f" and not exists (select 1 from deleted_days where day = {day})"  # noqa: S608 - names of ours
    return (
        f"create trigger {table}_closed_delete before delete on {table} when {condition} "
        f"begin select raise(abort, '{FROZEN}'); end"
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_guard_of_postgresql())
        op.drop_table("deleted_days")
        op.execute("drop function refuse_early_deletion()")
    else:
        for table in DAY_OF:
            op.execute(f"drop trigger {table}_closed_delete")
            op.execute(_delete_of_sqlite(table, is_permitted=False))
        op.drop_table("deleted_days")
    op.drop_table("job_runs")
