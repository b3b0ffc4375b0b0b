"""Differences between two counts of the same records: signed amounts, in the form of counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analyzer.kernel.model import CountTable
from analyzer.plan.meters import MINUTE_S

SeriesAt = tuple[int, str, str]  # bucket, key, resource


def differences(old: Iterable[CountTable], new: Iterable[CountTable]) -> list[CountTable]:
    """Returns what must be added to the first counts to get the second ones, by grouping, without zeros.

    All meters are sums, in minutes. A count may have any number of tables of a grouping.
    """
    sides: dict[str, tuple[list[CountTable], list[CountTable]]] = {}
    for side, tables in enumerate((old, new)):
        for table in tables:
            sides.setdefault(table.grouping, ([], []))[side].append(table)
    differing = (
        _difference(grouping, *pair) for grouping, pair in sorted(sides.items()) if pair[0] != pair[1]
    )
    return [table for table in differing if table.keys]


def _difference(grouping: str, old: Sequence[CountTable], new: Sequence[CountTable]) -> CountTable:
    meters = list(dict.fromkeys(meter for table in (*new, *old) for meter in table.meters))
    rows: dict[SeriesAt, list[int]] = {}
    for sign, tables in ((-1, old), (1, new)):
        for table in tables:
            _add(rows, table, sign, [meters.index(meter) for meter in table.meters], len(meters))
    return make_count_table(grouping, meters, {key: row for key, row in rows.items() if any(row)})


def _add(
    rows: dict[SeriesAt, list[int]], table: CountTable, sign: int, places: Sequence[int], number: int
) -> None:
    """Adds the counts of a table; row `[admitted..., denied...]`, with the place of each meter."""
    series = list(zip(table.buckets_s, table.keys, table.resources, strict=True))
    series_rows = [rows.setdefault(key, [0] * (2 * number)) for key in series]
    for columns, shift in ((table.admitted, 0), (table.denied, number)):
        for place, column in zip(places, columns, strict=False):  # no columns where nothing was denied
            index = place + shift
            for row, value in zip(series_rows, column, strict=True):
                row[index] += sign * value


def make_count_table(grouping: str, meters: Sequence[str], rows: dict[SeriesAt, list[int]]) -> CountTable:
    """Returns rows `[admitted..., denied...]` as a table, in the order in which writers lock stored rows."""
    order, number = sorted(rows), len(meters)
    columns = [[rows[key][place] for key in order] for place in range(2 * number)]
    has_denied = any(map(any, columns[number:]))
    return CountTable(
        grouping,
        MINUTE_S,
        meters,
        [key[0] for key in order],
        [key[1] for key in order],
        [key[2] for key in order],
        columns[:number],
        columns[number:] if has_denied else (),
    )
