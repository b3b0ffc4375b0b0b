"""Counts as rows: put into the tables, and read back from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from analyzer.counting.buckets import add_counts
from analyzer.kernel.model import CountRow, CountTable, DrainedCounts, Partition
from analyzer.kernel.tables.schema import buckets, catalog, totals
from analyzer.plan.catalog import load


def tables_of(rows: Iterable[CountRow]) -> list[CountTable]:
    """Returns the rows as a counter gives them; a row per meter and series at most."""
    found: dict[tuple[str, int], dict[tuple[int, str, str], dict[str, tuple[int, int]]]] = {}
    for row in rows:
        series = found.setdefault((row.grouping, row.width_s), {})
        values = series.setdefault((row.bucket_s, row.key, row.resource), {})
        value, denied = values.get(row.meter, (0, 0))
        values[row.meter] = (value + row.value, denied + row.denied)
    tables = []
    for (grouping, width_s), series in sorted(found.items()):
        meters = sorted({meter for values in series.values() for meter in values} | {"requests"})
        at = sorted(series)
        columns = [
            [[series[key].get(meter, (0, 0))[kind] for key in at] for meter in meters] for kind in (0, 1)
        ]
        has_denied = any(map(any, columns[1]))
        keys = ([key[part] for key in at] for part in range(3))
        tables.append(
            CountTable(grouping, width_s, meters, *keys, columns[0], columns[1] if has_denied else ())
        )
    return tables


def comparable(counts: DrainedCounts) -> tuple[object, ...]:
    """Returns everything that two counters must agree on, with their columns in any order."""
    slots = [sorted(table.rows()) for table in counts.slots]
    verdicts = sorted(counts.verdicts)
    slots = [*filter(None, slots)]
    return counts.parts, counts.rows, counts.rejected, verdicts, slots, counts.distinct, counts.facts


def put_counts(
    db: sa.Connection,
    rows: Iterable[CountRow],
    joins: Mapping[str, str] | None = None,
    parts: Sequence[Partition] = (),
) -> None:
    """Adds the rows to the buckets; groupings and meters without a number get one."""
    tables = tables_of(rows)
    known = load(db)
    for table in tables:
        if table.grouping not in known.groupings:
            number = 1 + max(known.groupings.values(), default=0)
            _enter(db, "grouping", table.grouping, number, "")
            known = load(db)
        for meter in table.meters:
            if meter not in known.meters:
                number = 1 + max((other.number for other in known.meters.values()), default=-1)
                _enter(db, "meter", meter, number, (joins or {}).get(meter, "sum"))
                known = load(db)
    add_counts(db, tables, known, parts)


def _enter(db: sa.Connection, kind: str, name: str, number: int, join: str) -> None:
    db.execute(sa.insert(catalog).values(kind=kind, name=name, number=number, join=join))


def stored_counts(db: sa.Connection) -> list[CountRow]:
    """Returns every count in the buckets, sorted; values of 0 are left out."""
    known = load(db)
    names = {number: name for name, number in known.groupings.items()}
    found = []
    for row in db.execute(sa.select(buckets)).mappings():
        for meter in known.meters.values():
            if meter.page == row["page"]:
                value, denied = (row[f"{kind}_{meter.place}"] or 0 for kind in ("value", "denied"))
                if value or denied:
                    series = names[row["grouping"]], row["key"], row["resource"], meter.name
                    found.append(CountRow(*series, row["width_s"], row["bucket_s"], value, denied))
    return sorted(found)


def stored_totals(db: sa.Connection) -> dict[tuple[str, str, str, int], int]:
    """Returns the value of every total by (sum, key, resource, start of its window)."""
    names = {number: name for name, number in load(db).sums.items()}
    return {
        (names[row.sum], row.key, row.resource, row.window_s): row.used
        for row in db.execute(sa.select(totals))
        if row.sum in names
    }
