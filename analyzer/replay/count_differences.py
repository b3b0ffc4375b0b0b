"""Differences between two counts of the same records: signed amounts, in the form of counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analyzer.kernel.model import CountTable
from analyzer.plan.meters import MINUTE_S

SeriesAt = tuple[int, str, str]  # bucket, key, resource


def differences(before: Iterable[CountTable], after: Iterable[CountTable]) -> list[CountTable]:
    """Returns what must be added to the first counts to get the second ones, by grouping, without zeros.

    All meters are sums, in minutes. A count may have any number of tables of a grouping.
    """
    sides: dict[str, tuple[list[CountTable], list[CountTable]]] = {}
    for side, tables in enumerate((before, after)):
        for table in tables:
            sides.setdefault(table.grouping, ([], []))[side].append(table)
    found = (_difference(grouping, *both) for grouping, both in sorted(sides.items()) if both[0] != both[1])
    return [table for table in found if table.keys]


def _difference(grouping: str, before: Sequence[CountTable], after: Sequence[CountTable]) -> CountTable:
    meters = list(dict.fromkeys(meter for table in (*after, *before) for meter in table.meters))
    rows: dict[SeriesAt, list[int]] = {}
    for sign, tables in ((-1, before), (1, after)):
        for table in tables:
            _add(rows, table, sign, [meters.index(meter) for meter in table.meters], len(meters))
    return table_of(grouping, meters, {at: row for at, row in rows.items() if any(row)})


def _add(
    rows: dict[SeriesAt, list[int]], table: CountTable, sign: int, places: Sequence[int], number: int
) -> None:
    """Adds the counts of a table; row `[admitted..., denied...]`, with the place of each meter."""
    series = list(zip(table.buckets_s, table.keys, table.resources, strict=True))
    held = [rows.setdefault(at, [0] * (2 * number)) for at in series]
    for columns, shift in ((table.admitted, 0), (table.denied, number)):
        for place, column in zip(places, columns, strict=False):  # no columns where nothing was denied
            at = place + shift
            for row, value in zip(held, column, strict=True):
                row[at] += sign * value


def table_of(grouping: str, meters: Sequence[str], rows: dict[SeriesAt, list[int]]) -> CountTable:
    """Returns rows `[admitted..., denied...]` as a table, in the order in which writers lock stored rows."""
    order, number = sorted(rows), len(meters)
    columns = [[rows[at][place] for at in order] for place in range(2 * number)]
    has_denied = any(map(any, columns[number:]))
    return CountTable(
        grouping,
        MINUTE_S,
        meters,
        [at[0] for at in order],
        [at[1] for at in order],
        [at[2] for at in order],
        columns[:number],
        columns[number:] if has_denied else (),
    )
