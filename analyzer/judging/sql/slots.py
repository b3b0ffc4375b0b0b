"""Slots of rolling sums in SQL: added by every flush, read when a sum may have reached a limit.

A slot is in the table of its generation, a stretch of two hours. Three tables are used in turn: the present
generation's, the one before it, because a window may begin in it, and the next one's, which is emptied
long before the first slot of a clock that is ahead falls into it. Rows are never deleted one by one. A
row that a late emptying leaves behind does no harm: it has the time of its slot.

A transaction that reads or writes the slots of a series holds its row in `totals`. The slots of a whole, with
which shares are compared, have none: flushes add to them last, as to all rows that they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import bounded_sum, plus
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.rolling import AddressSums, Slot, Slots, addresses_at, sums_at, window_ends
from analyzer.judging.sql import stored_values
from analyzer.judging.sql.stored_values import AHEAD_S
from analyzer.judging.totals import Standing, TotalKey, unjudged_keys, unjudged_resources
from analyzer.kernel.database.dialects import DIALECTS, dialect_of
from analyzer.kernel.database.row_parameters import LookUp, in_parts, rows_given, upsert_columns
from analyzer.kernel.model import CountTable
from analyzer.kernel.tables.schema import TOTAL_MAX, buckets, slots
from analyzer.plan.catalog import Catalog
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import MINUTE_S, QUARTER_S
from analyzer.plan.plan import Plan
from analyzer.plan.sums import Sum, total_key
from analyzer.plan.windows import HOUR_S, Rolling

GENERATION_S = 2 * HOUR_S  # longer than the longest window with slots, and a slot of it
SERIES = ("key", "resource")


class SlotColumns(NamedTuple):
    """Growth of the slots of one sum in one flush, column by column; sorted by time."""

    starts_s: Sequence[int]
    keys: Sequence[str]
    resources: Sequence[str]
    values: Sequence[int]


def table_at(slot_s: int) -> sa.Table:
    """Returns the table that holds a slot."""
    return slots[slot_s // GENERATION_S % len(slots)]


def add_slots(
    db: sa.Connection, sums: Iterable[Sum], tables: Sequence[CountTable], catalog: Catalog, now_s: int
) -> None:
    """Adds to the slots of those `sums` that have some, whose totals the transaction has added to."""
    by_layout = {(table.grouping, table.width_s): table for table in tables}
    for sum_ in sorted(sums, key=total_key):
        if not isinstance(sum_.window, Rolling) or not sum_.window.has_slots:
            continue
        table = by_layout.get((sum_.grouping, sum_.window.slot_s))
        if table is not None and sum_.meter in table.meters:
            for grown in _by_generation(_grown(sum_, sum_.window, table, now_s)):
                _add(db, catalog.sum_number(sum_), grown)


def _grown(sum_: Sum, rolling: Rolling, table: CountTable, now_s: int) -> list[tuple[int, str, str, int]]:
    """Returns the slots that a window may need which ends now or later."""
    grouping = parse_grouping(sum_.grouping)
    unjudged, no_resources = unjudged_keys(grouping), unjudged_resources(grouping)
    oldest_s = now_s - rolling.period_s - rolling.slot_s
    values = table.admitted[list(table.meters).index(sum_.meter)]
    rows = zip(table.buckets_s, table.keys, table.resources, values, strict=True)
    return [
        (slot_s, key, resource, value)
        for slot_s, key, resource, value in rows
        if value
        and oldest_s < slot_s < now_s + AHEAD_S
        and key not in unjudged
        and resource not in no_resources
    ]


def _by_generation(grown: list[tuple[int, str, str, int]]) -> Iterator[SlotColumns]:
    for _, rows in groupby(grown, lambda row: row[0] // GENERATION_S):
        yield SlotColumns(*zip(*rows, strict=True))


def _add(db: sa.Connection, number: int, grown: SlotColumns) -> None:
    values = (
        grown.values if max(grown.values) <= TOTAL_MAX else [min(value, TOTAL_MAX) for value in grown.values]
    )
    upsert_columns(
        db,
        table_at(grown.starts_s[0]),
        {
            "sum": number,
            "key": grown.keys,
            "resource": grown.resources if any(grown.resources) else "",
            "slot_s": grown.starts_s,
            "value": values,
        },
        _add_value,
    )


def _add_value(_dialect: str, table: sa.Table, new: Any) -> dict[str, Any]:
    return {"value": plus(table.c.value, new.value)}


def with_slots(
    db: sa.Connection, standings: Sequence[Standing], catalog: Catalog, now_s: int
) -> list[Standing]:
    """Returns the standings, those of rolling sums with the slots of windows that end now or later."""
    completed = list(standings)
    of_sum: dict[Sum, list[int]] = {}
    for index, standing in enumerate(standings):
        if isinstance(standing.total.sum.window, Rolling):
            of_sum.setdefault(standing.total.sum, []).append(index)
    for sum_, indexes in of_sum.items():
        rolling = sum_.window
        assert isinstance(rolling, Rolling)  # noqa: S101 - as selected above
        series = [(standings[index].total.key, standings[index].total.resource) for index in indexes]
        by_series: SlotsOfSeries
        if not sum_.joined.in_buckets:
            by_series = stored_values.distinct_slots(db, catalog.sum_number(sum_), rolling, series, now_s)
        else:
            read = _read if rolling.has_slots else _read_buckets
            by_series = read(db, sum_, rolling, catalog, series, now_s)
        for index, pair in zip(indexes, series, strict=True):
            completed[index] = standings[index]._replace(slots=by_series.get(pair, ()))
    return completed


def with_wholes(
    db: sa.Connection, plan: Plan, standings: Sequence[Standing], catalog: Catalog, now_s: int
) -> list[Standing]:
    """Returns the standings, those that are compared with a whole with the slots of the whole."""
    wholes = {standing.total: whole_total(plan, standing.total) for standing in standings}
    distinct = dict.fromkeys(whole for whole in wholes.values() if whole is not None)
    read = with_slots(db, [Standing(whole, 0) for whole in distinct], catalog, now_s)
    by_whole = {standing.total: standing.slots for standing in read}
    return [
        standing if (whole := wholes[standing.total]) is None else standing._replace(whole=by_whole[whole])
        for standing in standings
    ]


def with_bases(
    db: sa.Connection, plan: Plan, standings: Sequence[Standing], catalog: Catalog, now_s: int
) -> list[Standing]:
    """Returns the standings, those that are judged by their share with the slots of their bases."""
    bases = {
        standing.total: standing.total._replace(sum=base)
        for standing in standings
        if (base := plan_sums(plan).bases_by_sum.get(standing.total.sum)) is not None
    }
    read = with_slots(db, [Standing(base, 0) for base in dict.fromkeys(bases.values())], catalog, now_s)
    by_base = {standing.total: standing.slots for standing in read}
    return [
        standing._replace(base=by_base[bases[standing.total]]) if standing.total in bases else standing
        for standing in standings
    ]


def with_addresses(
    db: sa.Connection, plan: Plan, standings: Sequence[Standing], catalog: Catalog, now_s: int
) -> list[Standing]:
    """Returns the standings, those of networks that surges judge with what their addresses have.

    Only networks that have reached a limit: below it no address matters.
    """
    completed = list(standings)
    for sum_, addresses in plan_sums(plan).addresses_by_sum.items():
        limit, rolling = plan_sums(plan).thresholds_by_sum[sum_][0], sum_.window
        assert isinstance(rolling, Rolling)  # noqa: S101 - surges have rolling windows
        ends_s: dict[str, list[int]] = {}  # of the windows that have reached the limit, by network
        for standing in standings:
            if standing.total.sum == sum_:
                ends = window_ends(standing.slots, now_s)
                totals = zip(ends, sums_at(standing.slots, rolling, ends), strict=True)
                ends_s[standing.total.key] = [end_s for end_s, total in totals if total >= limit]
        by_network = _address_sums(db, addresses, catalog, ends_s, now_s)
        for index, standing in enumerate(standings):
            if standing.total.sum == sum_:
                completed[index] = standing._replace(addresses=by_network.get(standing.total.key))
    return completed


AddressesOfNetworks = dict[str, dict[int, AddressSums]]  # by the ends of windows


def _address_sums(
    db: sa.Connection, addresses: Sum, catalog: Catalog, ends_s: Mapping[str, Sequence[int]], now_s: int
) -> AddressesOfNetworks:
    """Returns what the addresses of networks have in the windows with these ends, by network."""
    rolling, number = addresses.window, catalog.sum_number(addresses)
    assert isinstance(rolling, Rolling)  # noqa: S101 - surges have rolling windows
    present = sorted(network for network, ends in ends_s.items() if list(ends) == [now_s])
    # Of clocks that are ahead: rare, so that each slot of each address may be read.
    ahead = sorted(network for network, ends in ends_s.items() if any(end_s > now_s for end_s in ends))
    sums: AddressesOfNetworks = {}
    oldest_s = now_s - rolling.period_s - rolling.slot_s
    bounds = {"number": number, "from_s": oldest_s, "until_s": now_s + 1}
    dialect, key = db.dialect.name, [slots[0].c.key]
    for parameters in in_parts(dialect, key, [[network] for network in present]):
        for network, count, most in db.execute(
            _largest(dialect, _tables(oldest_s, now_s)), parameters | bounds
        ):
            sums[network] = {now_s: AddressSums(count, int(most))}
    bounds |= {"until_s": now_s + AHEAD_S}
    cells: dict[str, list[tuple[int, str, int]]] = {}
    for parameters in in_parts(dialect, key, [[network] for network in ahead]):
        for table in _tables(oldest_s, now_s + AHEAD_S):
            for network, address, slot_s, value in db.execute(_cells(dialect, table), parameters | bounds):
                cells.setdefault(network, []).append((slot_s, address, value))
    for network, of_network in cells.items():
        sums[network] = addresses_at(sorted(of_network), rolling, ends_s[network])
    return sums


def _tables(from_s: int, to_s: int) -> tuple[sa.Table, ...]:
    """Returns the tables with the slots of a stretch of time."""
    generations = range(from_s // GENERATION_S, to_s // GENERATION_S + 1)
    return tuple(slots[generation % len(slots)] for generation in generations)


@lru_cache
def _largest(dialect: str, tables: tuple[sa.Table, ...]) -> sa.Select[Any]:
    """Returns the query of the number of a network's addresses, and the sum of the busiest one."""
    parts = sa.union_all(*(_cells(dialect, table) for table in tables)).subquery().c
    sums = sa.select(parts.key, bounded_sum(parts.value).label("total"))
    of_address = sums.group_by(parts.key, parts.resource).subquery().c
    number, most = sa.func.count(), sa.func.max(of_address.total)
    return sa.select(of_address.key, number, most).group_by(of_address.key)


@lru_cache
def _cells(dialect: str, table: sa.Table) -> sa.Select[Any]:
    columns = (table.c[name] for name in (*SERIES, "slot_s", "value"))
    return sa.select(*columns).select_from(_given_slots(dialect, table, ["key"]))


def whole_total(plan: Plan, total: TotalKey) -> TotalKey | None:
    """Returns the whole that a series is compared with; None for one that is judged by itself."""
    whole = plan_sums(plan).wholes_by_sum.get(total.sum)
    if whole is None:
        return None
    # The grouping `resource` has the resource as its key; all of `everyone` is one series.
    key = "" if parse_grouping(whole.grouping).key is None else total.resource
    return TotalKey(whole, key, "", total.window)


SlotsOfSeries = Mapping[tuple[str, str], Slots]


def _read(
    db: sa.Connection,
    sum_: Sum,
    rolling: Rolling,
    catalog: Catalog,
    series: Sequence[tuple[str, str]],
    now_s: int,
) -> SlotsOfSeries:
    oldest_s = now_s - rolling.period_s - rolling.slot_s
    generations = range(oldest_s // GENERATION_S, (now_s + AHEAD_S) // GENERATION_S + 1)
    bounds = {"number": catalog.sum_number(sum_), "from_s": oldest_s, "until_s": now_s + AHEAD_S}
    by_series: dict[tuple[str, str], list[Slot]] = {}
    for generation in generations:
        table = slots[generation % len(slots)]
        for parameters in in_parts(db.dialect.name, [table.c[name] for name in SERIES], sorted({*series})):
            rows = db.execute(_select_slots(db.dialect.name, table), bounds | parameters).all()
            for key, resource, slot_s, value in rows:
                if slot_s // GENERATION_S == generation:
                    by_series.setdefault((key, resource), []).append(Slot(slot_s, value))
    return {pair: sorted(unsorted) for pair, unsorted in by_series.items()}


@lru_cache
def _select_slots(dialect: str, table: sa.Table) -> sa.Select[Any]:
    statement = sa.select(*(table.c[name] for name in (*SERIES, "slot_s", "value")))
    return statement.select_from(_given_slots(dialect, table, SERIES))


def _given_slots(dialect: str, table: sa.Table, by: Sequence[str]) -> LookUp:
    """Returns the slots of a sum between two times, of the series that are given by these columns."""
    series = rows_given(dialect, [table.c[name] for name in by])
    return LookUp(
        series,
        table,
        sa.and_(
            table.c.sum == sa.bindparam("number"),
            *(table.c[name] == series.c[name] for name in by),
            table.c.slot_s > sa.bindparam("from_s", type_=sa.BigInteger),
            table.c.slot_s < sa.bindparam("until_s", type_=sa.BigInteger),
        ),
    )


def _read_buckets(
    db: sa.Connection,
    sum_: Sum,
    rolling: Rolling,
    catalog: Catalog,
    series: Sequence[tuple[str, str]],
    now_s: int,
) -> SlotsOfSeries:
    """Returns slots that the buckets add up to: for windows longer than an hour, one series at a time.

    The key of the buckets begins with the time, so each bucket of the window is looked up.
    """
    meter = catalog.meters[sum_.meter]
    statement = select_buckets(db.dialect.name, meter.place)
    oldest_s = now_s - rolling.period_s - rolling.slot_s
    by_series: dict[tuple[str, str], list[Slot]] = {}
    for key, resource in series:
        rows = db.execute(
            statement,
            {
                "grouping": catalog.groupings[sum_.grouping],
                "page": meter.page,
                "key": key,
                "resource": resource,
                "minute_s": oldest_s - oldest_s % MINUTE_S + MINUTE_S,
                "quarter_s": oldest_s - oldest_s % QUARTER_S + QUARTER_S,
                "until_s": now_s + AHEAD_S,
            },
        )
        values = sorted((bucket_s - bucket_s % rolling.slot_s, value) for bucket_s, value in rows)
        by_series[key, resource] = [
            Slot(slot_s, sum(value for _, value in same)) for slot_s, same in groupby(values, itemgetter(0))
        ]
    return by_series


@lru_cache
def select_buckets(dialect: str, place: int) -> sa.CompoundSelect[Any]:
    """Returns the query of a series' minutes from `minute_s` and quarter-hours from `quarter_s` on."""
    return sa.union_all(
        *(
            _buckets_of_width(dialect, place, name, width_s)
            for name, width_s in (("minute_s", MINUTE_S), ("quarter_s", QUARTER_S))
        )
    )


def _buckets_of_width(dialect: str, place: int, first: str, width_s: int) -> sa.Select[Any]:
    times = _times(dialect, first, width_s)
    # A value per time, not a join: PostgreSQL would rather read all rows of this width than look up so many.
    value = (
        sa.select(buckets.c[f"value_{place}"])
        .where(
            buckets.c.grouping == sa.bindparam("grouping"),
            buckets.c.page == sa.bindparam("page"),
            buckets.c.width_s == width_s,
            buckets.c.bucket_s == times.c.at_s,
            buckets.c.key == sa.bindparam("key"),
            buckets.c.resource == sa.bindparam("resource"),
        )
        .correlate(times)
        .scalar_subquery()
    )
    looked_up = sa.select(times.c.at_s, value.label("value")).subquery()
    return sa.select(looked_up.c.at_s, looked_up.c.value).where(looked_up.c.value > 0)


def _times(dialect: str, first: str, width_s: int) -> Any:
    """Returns the starts of buckets from a parameter on, as a table with the column `at_s`."""
    from_s = sa.bindparam(first, type_=sa.BigInteger)
    until_s = sa.bindparam("until_s", type_=sa.BigInteger)
    return DIALECTS[dialect].series(from_s, until_s, width_s)


def empty_next(db: sa.Connection, now_s: int) -> bool:
    """Empties the table of the next generation, unless that is so near that slots may be in it already.

    Returns whether it had rows.
    """
    begins_s = (now_s // GENERATION_S + 1) * GENERATION_S
    table = table_at(begins_s)
    if begins_s - now_s <= 2 * AHEAD_S:
        return False
    # Two that have both read it would each wait for the other one with TRUNCATE. No flush waits for this.
    dialect_of(db).lock_table(db, table.name, "share update exclusive")
    if db.execute(sa.select(table.c.sum).limit(1)).first() is None:
        return False
    # Rows of the next generation itself are those of a clock that was ahead.
    dialect_of(db).empty(db, table)
    return True
