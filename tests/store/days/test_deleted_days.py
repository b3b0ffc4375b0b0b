"""Deletion of closed days after their retention: their rows go whole, their digests stay."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa

from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_digest import content_digest
from analyzer.billing.days.day_rows import Day, add_day, stored_days
from analyzer.billing.days.deleted_days import DayDeletion, DeletedBy
from analyzer.billing.reports.day_report import NotFrozen, read_report
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import DayAltered
from analyzer.kernel.jobs.step_sizes import SizedSteps
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    day_positions,
    days,
    deleted_days,
    frozen_counts,
)
from analyzer.kernel.tables.schema import events
from analyzer.plan.plan import make_plan
from tests.store.flushing import a_row, flush, now_s
from tests.support.small_steps import small_steps

DAY_S = 86_400
PLAN = make_plan([], [], [])
KEY = DigestKey(b"sixteen bytes or more")
KEPT_S = 62 * DAY_S
OLD_DAYS, YOUNG_DAYS = 64, 2


@pytest.fixture
def chain(engine: sa.Engine, store: SqlStore) -> list[Day]:
    """Two old days and a young one, closed in this order, each with late counts of the one before."""
    store.activate(PLAN)
    closing = DayClosing(
        engine,
        Billing(grace_s=0.0, key=KEY),
        lambda _: {},
        map("{}".format, itertools.count()).__next__,
        lambda: now_s(engine) * 1000,
    )
    today_s = now_s(engine) // DAY_S * DAY_S
    before_s = 0
    for age in (OLD_DAYS + 1, OLD_DAYS, YOUNG_DAYS):
        begin_s = today_s - age * DAY_S
        with writing(engine) as db:
            day = add_day(db, "UTC", begin_s, state="closing")
        flush(store, PLAN, [a_row(5, begin_s + 60 * n, f"user:{n}") for n in range(5)])
        if before_s:
            flush(store, PLAN, [a_row(1, before_s)])
        assert closing.close(day)
        before_s = begin_s
    with reading(engine) as db:
        return [day for day in stored_days(db) if day.state == "closed"]


def deletion(engine: sa.Engine, key: DigestKey = KEY, kept_s: int | None = KEPT_S) -> DayDeletion:
    return DayDeletion(engine, key, DeletedBy("one:1", kept_s), SizedSteps(engine, lambda: 0.0))


def rows_of(engine: sa.Engine, table: sa.Table, column: str) -> set[int]:
    with reading(engine) as db:
        return set(db.scalars(sa.select(table.c[column])))


def is_chained(engine: sa.Engine, day: Day) -> bool:
    with reading(engine) as db:
        return KEY.chained(content_digest(db, day), day.digest_before) == day.digest


def test_old_days_are_deleted_whole_and_their_digests_still_fit(
    engine: sa.Engine, chain: list[Day], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch, 2)
    *old, young = chain
    job, steps = deletion(engine), []
    while deleted := job.step():
        steps.append(deleted)
    assert max(steps) == 2, "in bounded steps"
    assert rows_of(engine, frozen_counts, "day") == {young.id}
    assert rows_of(engine, day_positions, "day") <= {young.id}
    assert not rows_of(engine, adjustments, "booked") & {day.id for day in old}
    assert rows_of(engine, deleted_days, "day") == {day.id for day in old}
    assert all(is_chained(engine, day) for day in chain)
    assert [day.digest_before for day in chain[1:]] == [day.digest for day in chain[:-1]]
    with reading(engine) as db:
        of_days = sa.select(events.c.about).where(
            events.c.act == "closed day deleted", events.c.who == "one:1"
        )
        assert set(db.scalars(of_days)) == {str(day) for day in old}
    with pytest.raises(NotFrozen, match="were deleted after their retention"):
        read_report(engine, "UTC", old[0].date, young.date, "caller")
    assert read_report(engine, "UTC", young.date, young.date, "caller").days


def test_a_deletion_that_was_killed_is_continued(engine: sa.Engine, chain: list[Day]) -> None:
    with writing(engine) as db:
        row = {"day": chain[0].id, "content": content_digest(db, chain[0]), "at_ms": 1}
        db.execute(sa.insert(deleted_days).values(row))
    job = deletion(engine)
    assert job.step() > 0
    assert chain[0].id not in rows_of(engine, frozen_counts, "day")
    assert chain[1].id in rows_of(engine, frozen_counts, "day")


def test_without_a_retention_nothing_is_deleted(engine: sa.Engine, chain: list[Day]) -> None:
    assert deletion(engine, kept_s=None).step() == 0
    assert deletion(engine, kept_s=100 * DAY_S).step() == 0
    assert len(rows_of(engine, frozen_counts, "day")) == len(chain)


def test_a_day_that_was_tampered_with_is_not_deleted(engine: sa.Engine, chain: list[Day]) -> None:
    """The rows are evidence; the job fails, which operators see."""
    with writing(engine) as db:
        if db.dialect.name == "postgresql":
            db.exec_driver_sql("set local session_replication_role = replica")
        else:
            db.exec_driver_sql("drop trigger frozen_counts_closed_update")
        tampered = frozen_counts.c.day == chain[0].id
        db.execute(sa.update(frozen_counts).where(tampered).values(value_0=1))
    with pytest.raises(DayAltered, match="nothing of it is deleted"):
        deletion(engine).step()
    assert rows_of(engine, deleted_days, "day") == set()


def test_the_database_refuses_every_other_deletion(engine: sa.Engine, chain: list[Day]) -> None:
    old, _, young = chain
    while deletion(engine).step():
        pass
    marker = {"content": "", "at_ms": 1}
    today_s = now_s(engine)
    with writing(engine) as db:
        open_id = add_day(db, "Europe/Berlin", today_s).id
    refused = [
        sa.insert(deleted_days).values(day=young.id, **marker),
        sa.insert(deleted_days).values(day=open_id, **marker),
        sa.delete(deleted_days),
        sa.update(deleted_days).values(content="other"),
        sa.delete(frozen_counts).where(frozen_counts.c.day == young.id),
        sa.insert(frozen_counts).values(day=old.id, grouping=1, page=0, reference="r", resource=""),
        sa.delete(days).where(days.c.id == old.id),
    ]
    for statement in refused:
        with pytest.raises(sa.exc.DBAPIError), writing(engine) as db:
            db.execute(statement)
    assert rows_of(engine, frozen_counts, "day") == {young.id}
