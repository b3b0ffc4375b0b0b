"""Compares the frozen rows of a closed day with the buckets, with each other, and with the stored names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.audit.day_differences import SHOWN_MAX, AuditDifference
from analyzer.billing.days import frozen_rows
from analyzer.billing.days.day_rows import Day, FrozenMeter
from analyzer.counting.counter.caller_budget import FOLDED
from analyzer.counting.grouping_differences import Comparison
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.counting.sql_joins import bounded_join
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import ROWS_AT_ONCE
from analyzer.kernel.database.installation_secrets import REFERENCES, known_secret
from analyzer.kernel.database.partition_keys import partition_columns, same_partition
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    corrections,
    day_positions,
    frozen_counts,
    referenced_names,
)
from analyzer.kernel.tables.schema import buckets, offsets, proofs
from analyzer.plan.catalog import Catalog
from analyzer.plan.meters import DAY_S, WIDTHS_S
from gatekeeper.identity import NameDigest

Side = sa.Select[Any]  # name, resource, and an amount for each column


class _Sides(NamedTuple):
    """The two sides of a comparison of one grouping and page, in words and as statements."""

    left: str
    right: str
    lefts: Sequence[Side]
    rights: Sequence[Side]


def meters_by_page(day: Day) -> dict[int, list[FrozenMeter]]:
    """Returns the meters of a day by page."""
    pages: dict[int, list[FrozenMeter]] = {}
    for meter in day.meters:
        pages.setdefault(meter.columns[0], []).append(meter)
    return dict(sorted(pages.items()))


def why_not_comparable(db: sa.Connection, catalog: Catalog, day: Day) -> str:
    """Returns why the buckets do not have the counts of a day any more; "" while they do."""
    deleted = sa.select(proofs.c.day_s).where(
        proofs.c.deleted == 1, proofs.c.day_s > day.begin_s - DAY_S, proofs.c.day_s < day.end_s
    )
    if db.execute(deleted.limit(1)).first() is not None:
        return "its buckets were deleted after their retention"
    is_utc = day.begin_s % DAY_S == 0 and day.end_s % DAY_S == 0
    if not is_utc and any(_has_wide(db, catalog, day, name) for name in day.groupings):
        return "its buckets were joined to days in UTC, which are other days than those of its zone"
    return ""


def _has_wide(db: sa.Connection, catalog: Catalog, day: Day, grouping: str) -> bool:
    wide = sa.select(buckets.c.key).where(
        buckets.c.grouping == catalog.groupings[grouping],
        buckets.c.page.in_(list(meters_by_page(day))),
        buckets.c.width_s == DAY_S,
        buckets.c.bucket_s > day.begin_s - DAY_S,
        buckets.c.bucket_s < day.end_s,
    )
    return db.execute(wide.limit(1)).first() is not None


def bucket_differences(db: sa.Connection, catalog: Catalog, day: Day) -> Iterator[AuditDifference]:
    """Yields series whose frozen counts and adjustments do not add up to the buckets.

    Where rarely seen callers were folded since, only the sums over all of them are compared.
    """
    for grouping in day.groupings:
        number = catalog.groupings[grouping]
        by_name = not _is_folded(db, catalog, day, grouping)
        for page, meters in meters_by_page(day).items():
            frozen = [
                _frozen(db, table, day, number, page, meters, by_name=by_name)
                for table in (frozen_counts, adjustments)
            ]
            stored = [_stored(day, number, page, meters, width_s, by_name=by_name) for width_s in WIDTHS_S]
            sides = _Sides("frozen with what came later", "in buckets", frozen, stored)
            yield from _differing(db, "counts", grouping, meters, sides)


def grouping_differences(
    db: sa.Connection, catalog: Catalog, day: Day, comparisons: Sequence[Comparison]
) -> Iterator[AuditDifference]:
    """Yields series whose frozen counts do not add up to those of another grouping of the day."""
    for comparison in comparisons:
        if not {comparison.coarse, comparison.fine} <= set(day.groupings) or day.begin_s < comparison.since_s:
            continue
        by_name = comparison.key_of_fine is not None and not _has_folded_rows(db, catalog, day, comparison)
        for page, meters in meters_by_page(day).items():
            selects: list[Side] = []
            for grouping, key in ((comparison.coarse, "key"), (comparison.fine, comparison.key_of_fine)):
                number, is_resource = catalog.groupings[grouping], key == "resource"
                rows = _frozen(db, frozen_counts, day, number, page, meters, by_name=by_name).subquery()
                series_name = rows.c.resource if is_resource and by_name else rows.c.name
                amounts = [rows.c[column] for meter in meters for column in meter.columns[1:]]
                selects.append(
                    sa.select(series_name.label("name"), sa.literal("").label("resource"), *amounts)
                )
            described = _Sides(f"by {comparison.coarse}", f"by {comparison.fine}", selects[:1], selects[1:])
            yield from _differing(db, "grouping", comparison.coarse, meters, described)


def name_differences(db: sa.Connection, day: Day, forgotten: Collection[str]) -> Iterator[AuditDifference]:
    """Yields references of a day that stand for another name than the one they were made of, or for none.

    `forgotten` are those of callers whose names were deleted on purpose.
    """
    secret = known_secret(db, REFERENCES)
    if secret is None:
        return
    digest, number = NameDigest(secret), 0
    used = sa.union(
        sa.select(frozen_counts.c.reference).where(frozen_counts.c.day == day.id),
        sa.select(adjustments.c.reference).where(adjustments.c.booked == day.id),
        sa.select(corrections.c.reference).where(corrections.c.booked == day.id),
    ).subquery()
    names = referenced_names.c
    statement = sa.select(used.c.reference, names.name).join(
        referenced_names, names.reference == used.c.reference, isouter=True
    )
    with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
        for reference, name in rows:
            if name is None and reference in forgotten:
                continue
            if name is None:
                sentence = f"the reference {reference} has no name any more"
            elif digest.of(name) != reference:
                sentence = f"the reference {reference} has the name {name}, and is that of another one"
            else:
                continue
            number += 1
            if number <= SHOWN_MAX:
                yield AuditDifference("name", sentence, name=name or make_pseudonym(reference))


def ledger_differences(db: sa.Connection, day: Day) -> Iterator[AuditDifference]:
    """Yields the partitions of a day of whose records not each one has one outcome."""
    ledger = offsets.c
    outcomes = ledger.counted + ledger.duplicate + ledger.dead + ledger.late
    statement = (
        sa.select(*partition_columns(offsets), ledger.seen, outcomes)
        .join(day_positions, same_partition(offsets, day_positions))
        .where(day_positions.c.day == day.id, ledger.seen != outcomes)
        .order_by(ledger.topic, ledger.partition)
        .limit(SHOWN_MAX)
    )
    for *columns, records, accounted in db.execute(statement):
        part = Partition(*columns)
        sentence = f"{part}: {records:,} seen, {accounted:,} counted, duplicate, dead or late"
        yield AuditDifference("ledger", sentence)


def total_differences(db: sa.Connection, catalog: Catalog, day: Day) -> Iterator[AuditDifference]:
    """Yields a difference if the rows and requests that a day is shown with are not those of its rows."""
    rows, requests = frozen_rows.frozen_totals(db, catalog, day)
    if rows != day.rows:
        yield AuditDifference("totals", f"it was closed with {day.rows:,} rows, and has {rows:,}")
    if requests != day.requests:
        sentence = f"it was closed with {day.requests:,} requests of callers, and its rows have {requests:,}"
        yield AuditDifference("totals", sentence)


def _frozen(
    db: sa.Connection,
    table: sa.Table,
    day: Day,
    grouping: int,
    page: int,
    meters: Sequence[FrozenMeter],
    *,
    by_name: bool,
) -> Side:
    """Returns the amounts of a day in a table of closed days, by name and resource."""
    columns = table.c
    shown_name = sa.func.coalesce(referenced_names.c.name, sa.literal(make_pseudonym("")) + columns.reference)
    name = dialect_of(db).by_bytes(shown_name)
    amounts = [
        sa.func.coalesce(columns[column], 0).label(column) for meter in meters for column in meter.columns[1:]
    ]
    series = [name.label("name"), columns.resource] if by_name else _all_series()
    return (
        sa.select(*series, *amounts)
        .join(referenced_names, referenced_names.c.reference == columns.reference, isouter=True)
        .where(columns.day == day.id, columns.grouping == grouping, columns.page == page)
    )


def _stored(
    day: Day, grouping: int, page: int, meters: Sequence[FrozenMeter], width_s: int, *, by_name: bool
) -> Side:
    """Returns the amounts of a day in the buckets of a width, by name and resource."""
    columns = buckets.c
    amounts = [
        sa.func.coalesce(columns[column], 0).label(column) for meter in meters for column in meter.columns[1:]
    ]
    series = [columns.key.label("name"), columns.resource] if by_name else _all_series()
    return sa.select(*series, *amounts).where(
        columns.grouping == grouping,
        columns.page == page,
        columns.width_s == width_s,
        columns.bucket_s >= day.begin_s,
        columns.bucket_s < day.end_s,
        columns.bucket_s + width_s <= day.end_s,
    )


def _all_series() -> list[sa.Label[str]]:
    return [sa.literal("").label("name"), sa.literal("").label("resource")]


def _differing(
    db: sa.Connection, kind: str, grouping: str, meters: Sequence[FrozenMeter], sides: _Sides
) -> Iterator[AuditDifference]:
    """Yields the series of which the joined amounts of both sides differ, up to a bound."""
    columns = [(meter, column) for meter in meters for column in meter.columns[1:]]
    nothing = sa.literal(0, sa.BigInteger)
    selects = []
    for is_left, side in [
        *((True, select) for select in sides.lefts),
        *((False, select) for select in sides.rights),
    ]:
        rows = side.subquery().c
        amounts = [
            value.label(f"{label}_{column}")
            for _, column in columns
            for label, value in (
                ("left", rows[column] if is_left else nothing),
                ("right", nothing if is_left else rows[column]),
            )
        ]
        selects.append(sa.select(rows.name, rows.resource, *amounts))
    union = sa.union_all(*selects).subquery().c
    joined = [
        tuple(bounded_join(meter.join, union[f"{label}_{column}"]) for label in ("left", "right"))
        for meter, column in columns
    ]
    statement = (
        sa.select(union.name, union.resource, *(side for pair in joined for side in pair))
        .group_by(union.name, union.resource)
        .having(sa.or_(*(left != right for left, right in joined)))
        .order_by(union.name, union.resource)
        .limit(SHOWN_MAX)
    )
    for name, resource, *values in db.execute(statement):
        for index, meter in enumerate(meters):
            left, right = ((values[4 * index + side], values[4 * index + 2 + side]) for side in (0, 1))
            if left != right:
                shown = " ".join(filter(None, (name or "all", resource)))
                stands = f"{_amount(left)} {sides.left}, {_amount(right)} {sides.right}"
                by = "" if kind == "grouping" else f" by {grouping}"
                sentence = f"{shown}: {meter.name}{by}: {stands}"
                yield AuditDifference(kind, sentence, grouping, name, resource, meter.name)


def _amount(pair: tuple[int, int]) -> str:
    value, denied = pair
    return f"{value:,} and {denied:,} denied" if denied else f"{value:,}"


def _is_folded(db: sa.Connection, catalog: Catalog, day: Day, grouping: str) -> bool:
    """Whether rarely seen callers of the day were folded in the buckets of a grouping."""
    folded = sa.select(buckets.c.key).where(
        buckets.c.grouping == catalog.groupings[grouping],
        buckets.c.width_s.in_(WIDTHS_S[1:]),
        buckets.c.page.in_(list(meters_by_page(day))),
        buckets.c.bucket_s > day.begin_s - DAY_S,
        buckets.c.bucket_s < day.end_s,
        buckets.c.key == FOLDED,
    )
    return db.execute(folded.limit(1)).first() is not None


def _has_folded_rows(db: sa.Connection, catalog: Catalog, day: Day, comparison: Comparison) -> bool:
    """Whether callers were folded in one of two groupings before the day was frozen."""
    reference = sa.select(referenced_names.c.reference).where(referenced_names.c.name == FOLDED)
    folded = sa.select(frozen_counts.c.day).where(
        frozen_counts.c.day == day.id,
        frozen_counts.c.grouping.in_(
            [catalog.groupings[comparison.coarse], catalog.groupings[comparison.fine]]
        ),
        frozen_counts.c.page.in_(list(meters_by_page(day))),
        frozen_counts.c.reference.in_(reference),
    )
    return db.execute(folded.limit(1)).first() is not None
