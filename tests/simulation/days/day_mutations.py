"""Mutations of closing and correcting, each of which makes a bill wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from analyzer.billing.days import adjustments, by_hand, closing
from analyzer.billing.days.adjustments import CutDay
from analyzer.billing.days.closing import DayClosing
from analyzer.billing.days.day_rows import Day
from analyzer.flush import flush
from analyzer.kernel.database.engine import slow_reading
from analyzer.plan.catalog import Catalog
from tests.faults.mutations import Patch
from tests.simulation.mutations import id_horizon_ignored


def cut_before_targets(patch: Patch) -> None:
    """A day is cut when it is due, though records of it are not counted yet."""
    patch.setattr(DayClosing, "find_awaited", lambda *_: [])


def flush_into_a_closed_day(patch: Patch) -> None:
    """Late counts of a day that is cut are added to the buckets alone."""
    patch.setattr(flush, "add_adjustments", lambda *_: 0)


def adjustment_without_date(patch: Patch) -> None:
    """Late counts of any day are booked as those of the newest day that is cut."""
    cut_days = adjustments._cut_days

    def newest(db: sa.Connection, earliest_s: int, latest_s: int) -> list[CutDay]:
        found = {cut.day.zone: cut for cut in cut_days(db, 0, latest_s)}
        first_s = [cut.day.begin_s for cut in cut_days(db, earliest_s, latest_s)]
        return [
            cut._replace(day=cut.day._replace(begin_s=min(first_s, default=cut.day.begin_s)))
            for cut in found.values()
        ]

    patch.setattr(adjustments, "_cut_days", newest)


def frozen_behind_the_cut(patch: Patch) -> None:
    """The rows of a day are added up when they are written, so that they contain adjustments as well."""
    freeze = DayClosing._freeze

    def freeze_later(
        self: DayClosing, _snapshot: sa.Connection, known: Catalog, day: Day, holder: str
    ) -> None:
        with slow_reading(self._snapshots) as late:
            freeze(self, late, known, day, holder)

    patch.setattr(DayClosing, "_freeze", freeze_later)


def earlier_attempt_kept(patch: Patch) -> None:
    """A closing that begins again keeps the adjustments that were booked since its first cut."""

    def cut(
        db: sa.Connection,
        snapshot: sa.Connection,
        known: Catalog,
        day: Day,
        by: Sequence[str],
        before: closing.ClosedBefore | None,
    ) -> Day:
        kept = list(db.execute(sa.select(closing.adjustments).where(closing.adjustments.c.day == day.id)))
        found = cut_day(db, snapshot, known, day, by, before)
        for row in kept:
            db.execute(sa.insert(closing.adjustments).values(row._mapping))
        return found

    cut_day = closing._cut
    patch.setattr(closing, "_cut", cut)


def closed_without_a_lease(patch: Patch) -> None:
    """A closing that another process has taken over continues to write."""
    everyones = SimpleNamespace(
        take=lambda *_: True, keep=lambda *_: True, is_held=lambda *_: False, release=lambda *_: None
    )
    patch.setattr(closing, "CLOSINGS", everyones)


def corrections_not_remembered(patch: Patch) -> None:
    """A correction is compared with what was counted alone, so that less than nothing may be left."""
    bounded_sum = by_hand.bounded_sum

    def none_before(column: sa.ColumnElement[int]) -> Any:
        is_amount = column is by_hand.corrections.c.amount
        return sa.literal(0) if is_amount else bounded_sum(column)

    patch.setattr(by_hand, "bounded_sum", none_before)


DAY_MUTATIONS: Mapping[str, Callable[[Patch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        cut_before_targets,
        flush_into_a_closed_day,
        adjustment_without_date,
        frozen_behind_the_cut,
        earlier_attempt_kept,
        closed_without_a_lease,
        corrections_not_remembered,
        id_horizon_ignored,
    )
}
