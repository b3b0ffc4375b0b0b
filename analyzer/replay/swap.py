"""The swap: the differences of a generation join the live one, in one transaction; see docs/decisions/0055.

Rows are locked in the order of a flush: offsets, plan, totals of callers, buckets, adjustments, rejected
records, shared totals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.adjustments import add_adjustments
from analyzer.billing.days.day_rows import stored_days
from analyzer.counting.buckets import AUDITED, add_days, note_changes, quarters_of, records_by_day
from analyzer.judging.activation_steps import FillStep, decode_steps
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import plans
from analyzer.judging.sql.directory import read_limits
from analyzer.judging.totals import totals_growth
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.engine import NowMs, slow_reading, slow_writing
from analyzer.kernel.database.partition_keys import is_partition, key_tuple, partition_values
from analyzer.kernel.errors import ReplayLost, ReplayRefused
from analyzer.kernel.model import CountTable
from analyzer.kernel.tables.billing_tables import days
from analyzer.kernel.tables.replay_tables import replay_positions, replayed_counts, replayed_rejects, replays
from analyzer.kernel.tables.schema import offsets, rejects
from analyzer.kernel.tables.table_columns import COLUMNS_PER_PAGE
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog
from analyzer.plan.counted_stretches import counted_stretches
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import MINUTE_S
from analyzer.plan.plan import Plan
from analyzer.replay import generations
from analyzer.replay.changed_buckets import add_differences
from analyzer.replay.changed_totals import change_totals
from analyzer.replay.count_differences import make_count_table
from analyzer.replay.generations import Replay, ReplayPosition
from analyzer.replay.replayed_plan import counting_digest

SWAPPED = "replay swapped in"  # the act in the audit log
# Rows of buckets that one swap may change. The partitions that are replayed wait for it: a second or two.
ROWS_MAX = 50_000


class SwapOutcome(NamedTuple):
    """The outcome of a swap.

    Attributes:
        replay: As it is stored now.
        rows: Of buckets.
        adjusted: Rows of adjustments of closed days.
    """

    replay: Replay
    rows: int
    adjusted: int


def stored_differences(db: sa.Connection, number: int, numbers: Catalog) -> list[CountTable]:
    """Returns the differences of a generation, a table for each grouping."""
    counts, columns = (
        replayed_counts.c,
        {(meter.page, meter.place): meter for meter in numbers.meters.values()},
    )
    series_by_grouping: dict[str, dict[tuple[int, str, str], list[int]]] = {}
    meters = sorted(numbers.meters.values(), key=lambda meter: meter.number)
    names, index_by_meter = (
        [meter.name for meter in meters],
        {meter.name: index for index, meter in enumerate(meters)},
    )
    statement = sa.select(replayed_counts).where(counts.replay == number)
    with db.execute(statement, execution_options={"yield_per": 1_000}) as rows:
        for row in rows.mappings():
            series = series_by_grouping.setdefault(numbers.grouping_names[row["grouping"]], {})
            amounts = series.setdefault(
                (row["bucket_s"], row["key"], row["resource"]), [0] * (2 * len(meters))
            )
            for place in range(COLUMNS_PER_PAGE):
                meter = columns.get((row["page"], place))
                if meter is not None:
                    index = index_by_meter[meter.name]
                    amounts[index] += row[f"value_{place}"] or 0
                    amounts[index + len(meters)] += row[f"denied_{place}"] or 0
    tables = []
    for grouping, series in sorted(series_by_grouping.items()):
        kept = {key: amounts for key, amounts in series.items() if any(amounts)}
        tables.append(_without_unused(make_count_table(grouping, names, kept)))
    return [table for table in tables if table.keys]


def _without_unused(table: CountTable) -> CountTable:
    """Returns a table without the meters of which nothing changes."""
    used = [
        index
        for index, column in enumerate(table.admitted)
        if any(column) or (table.denied and any(table.denied[index]))
    ]
    return table._replace(
        width_s=MINUTE_S,
        meters=[table.meters[index] for index in used],
        admitted=[table.admitted[index] for index in used],
        denied=[table.denied[index] for index in used] if table.denied else (),
    )


def swap(
    engine: sa.Engine,
    number: int,
    who: str,
    reason: str,
    *,
    is_judged: bool = False,
    is_dry: bool = False,
    rows_max: int = ROWS_MAX,
) -> SwapOutcome:
    """Swaps a generation in: all of it, or nothing.

    With `is_judged` the warden makes all locks agree with the changed totals. With `is_dry` everything is
    tried, and nothing is changed. Raises ReplayRefused, ReplayLost, StoreAway, SchemaBehind.
    """
    replay = generations.stored(engine, number)
    if replay.state != "counted":
        raise ReplayRefused(f"replay {number} is {replay.state}: {_CURES[replay.state]}")
    with slow_reading(engine) as db:
        tables = stored_differences(db, number, catalog.load(db))
    rows = sum(len(table.keys) for table in tables)
    if rows > rows_max:
        raise ReplayRefused(
            f"{rows:,} rows would change, and at most {rows_max:,} do at once, because the partitions wait: "
            "replay shorter times one after the other, or permit more by --rows"
        )
    with slow_writing(engine) as db:
        trial = db.begin_nested()
        adjusted = _swap(db, replay, tables, who, reason, is_judged=is_judged)
        if is_dry:
            trial.rollback()
            return SwapOutcome(replay, rows, adjusted)
        trial.commit()
    generations.delete_rows(engine)
    return SwapOutcome(generations.stored(engine, number), rows, adjusted)


_CURES = {
    "counting": "continue it by `gatelock upkeep replay start --resume NUMBER`",
    "swapped": "its counts are in force already",
    "dropped": "begin another one by `gatelock upkeep replay start --help`",
}


def _swap(
    db: sa.Connection, replay: Replay, tables: Sequence[CountTable], who: str, reason: str, *, is_judged: bool
) -> int:
    _take(db, replay)
    for position in replay.positions:
        _change_ledger(db, position)
    if is_judged:
        plans.block_flushes(db)
    locked = plans.lock_active(db)
    numbers, plan = catalog.load(db), plans.active(db)[1]
    _require_equal(db, replay, plan, locked.pending)
    now_s = locked.now_ms // 1000
    limits = read_limits(db, plan, locked.directory, {key for table in tables for key in table.keys})
    growth = totals_growth(plan_sums(plan).policies_by_sum, tables, {}, limits)
    shared = {sum_: grown for sum_, grown in growth.items() if parse_grouping(sum_.grouping).is_shared}
    of_callers = {sum_: grown for sum_, grown in growth.items() if sum_ not in shared}
    change_totals(db, plan, limits, of_callers, numbers, now_s)
    partition = key_tuple(replay.positions[0].range.part)
    rows = add_differences(db, tables, numbers)
    for table in tables:
        if table.grouping == AUDITED and (by_day := _changed_days(table)):
            add_days(db, by_day, partition)
    changed_s = {quarter_s for table in tables for quarter_s in quarters_of(sorted(table.buckets_s))}
    note_changes(db, changed_s, partition)
    adjusted = add_adjustments(db, tables, numbers, locked.cut_until_s)
    for position in replay.positions:
        _change_rejected(db, replay.id, position, locked.now_ms)
    change_totals(db, plan, limits, shared, numbers, now_s)
    if is_judged:
        plans.judge_again(db, clock_was_ahead=False)
    record(db, who, SWAPPED, f"replay {replay.id}: {replay.about}", reason)
    # Behind the lock of the plan: a day that was cut before has an earlier time, and one after it a later.
    corrected = json.dumps(_corrected_days(db, tables) if adjusted else [])
    swapped = {"swapped_ms": NowMs(), "swapped_by": who, "reason": reason, "rows": rows, "days": corrected}
    update = sa.update(replays).where(replays.c.id == replay.id).values(swapped)
    row = db.execute(update.returning(*replays.c)).mappings().one()
    positions = signed_rows.rows_of(db, replay_positions, replay_positions.c.replay == replay.id)
    signed_rows.sign(db, signed_rows.replay(row, positions))
    return adjusted


def _corrected_days(db: sa.Connection, tables: Sequence[CountTable]) -> list[int]:
    """Returns the ids of the days whose adjustments have changed."""
    cut = stored_days(db, days.c.state != "open")
    return [
        day.id
        for day in cut
        if any(
            table.grouping in day.groupings
            and any(day.begin_s <= bucket_s < day.end_s for bucket_s in table.buckets_s)
            for table in tables
        )
    ]


def _take(db: sa.Connection, replay: Replay) -> None:
    is_counted = sa.and_(replays.c.id == replay.id, replays.c.state == "counted")
    if db.execute(sa.update(replays).where(is_counted).values(state="swapped")).rowcount != 1:
        raise ReplayLost(f"replay {replay.id}: another process has swapped it in, or dropped it")


def _change_ledger(db: sa.Connection, position: ReplayPosition) -> None:
    """Changes the outcomes of the records; flushes of the partition wait from here on."""
    part, ledger = position.range.part, position.ledger
    added = {
        name: offsets.c[name] + getattr(ledger, name)
        for name in ("counted", "duplicate", "dead", "late", "renamed")
    }
    is_current = sa.and_(is_partition(offsets, part), offsets.c.next >= position.range.end)
    if db.execute(sa.update(offsets).where(is_current).values(added)).rowcount != 1:
        raise ReplayRefused(f"{part}: its position was set back behind what was replayed: replay it again")


def _require_equal(db: sa.Connection, replay: Replay, plan: Plan, pending: str) -> None:
    """Raises ReplayRefused if the counts that a generation is compared with, or its plan, are other ones."""
    again = f"`gatelock upkeep replay drop {replay.id} --reason TEXT`, and replay it again"
    if counting_digest(plan, replay.source) != replay.parts:
        raise ReplayRefused(f"another plan is in force than replay {replay.id} was counted by: {again}")
    if any(isinstance(step, FillStep) for step in decode_steps(pending)):
        raise ReplayRefused("totals of a new policy are being filled from the buckets: try again in a minute")
    for position in replay.positions:
        stretches = counted_stretches(db, position.range.part, position.range.end)
        if generations.stretches_text(stretches) != position.stretches:
            raise ReplayRefused(f"{position.range.part}: it was counted again meanwhile: {again}")
        generations.refuse_disbelieved(db, position.range)


def _changed_days(table: CountTable) -> Mapping[int, int]:
    return {day_s: records for day_s, records in records_by_day(table).items() if records}


def _change_rejected(db: sa.Connection, number: int, position: ReplayPosition, now_ms: int) -> None:
    """Takes away the rejected records that can be read, and adds those that cannot. Raises ReplayRefused."""
    part, columns = position.range.part, replayed_rejects.c
    of_replay = sa.and_(columns.replay == number, is_partition(replayed_rejects, part))
    readable = sa.select(columns.offset).where(of_replay, columns.is_added == 0)
    expected = db.execute(sa.select(sa.func.count()).select_from(readable.subquery())).scalar_one()
    deletion = sa.delete(rejects).where(is_partition(rejects, part), rejects.c.offset.in_(readable))
    if expected and db.execute(deletion).rowcount != expected:
        raise ReplayRefused(
            f"{part}: rejected records were counted, or deleted, since the replay: "
            f"`gatelock upkeep replay drop {number} --reason TEXT`, and replay it again"
        )
    names = ("offset", "reason", "sample", "value_bytes", "kafka_ms")
    added = sa.select(*(columns[name] for name in names)).where(of_replay, columns.is_added == 1)
    rows: list[dict[str, Any]] = [
        partition_values(part) | dict(row) | {"sample": bytes(row["sample"]), "at_ms": now_ms}
        for row in db.execute(added).mappings()
    ]
    generations.insert_rejected(db, rows)
