"""The numbers that stand in stored rows for groupings, meters and sums.

An activation gives numbers to what its plan names; they never change. A sum that a plan does not need loses
its number, because nothing is added to its totals any more: when it is needed again, it gets another one and
is filled from the buckets. A meter whose meaning changes under its name gets a new number, because counts of
two meanings must not meet in one column, and its sums begin again at 0. What was counted before is kept under
the name "busy (sum)" where the join is another one, else "errors (until plan 7)".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.tables.schema import catalog
from analyzer.kernel.tables.table_columns import COLUMNS_PER_PAGE
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.plan import Plan, meaning_digest
from analyzer.plan.sums import BLANK_IN_NAME, Sum, sum_text
from analyzer.plan.windows import Calendar, Rolling, Windows

DROPPED = "dropped sum"  # kind of the entries of sums whose totals are to be deleted


class MeterColumn(NamedTuple):
    """Place of a meter in the rows of `buckets`."""

    name: str
    number: int
    join: str
    meaning: str  # digest

    @property
    def page(self) -> int:
        return self.number // COLUMNS_PER_PAGE

    @property
    def place(self) -> int:
        """Number of its columns on the page."""
        return self.number % COLUMNS_PER_PAGE


class Catalog(NamedTuple):
    """All numbers of a database."""

    groupings: Mapping[str, int]
    meters: Mapping[str, MeterColumn]  # by name
    sums: Mapping[str, int]  # by `sum_text`
    dropped_sums: Mapping[str, int]

    def sum_number(self, sum_: Sum) -> int:
        """Returns the number of a sum of a plan that was in force. Raises KeyError for any other."""
        return self.sums[sum_text(sum_)]

    @property
    def joins(self) -> dict[int, dict[int, str]]:
        """The join of each meter, by page and place."""
        joins: dict[int, dict[int, str]] = {}
        for meter in self.meters.values():
            joins.setdefault(meter.page, {})[meter.place] = meter.join
        return joins

    def lock_scopes(self, scope: str) -> list[str]:
        """Returns the scopes of locks whose key is a caller, or a tenant: also those with a named value."""
        groupings = map(parse_grouping, self.groupings)
        return sorted({scope, *(grouping.lock_scope for grouping in groupings if grouping.scope == scope)})

    @property
    def grouping_names(self) -> dict[int, str]:
        return {number: name for name, number in self.groupings.items()}


def sum_meter(name: str) -> str:
    """Returns the meter of a sum with this name in the catalog."""
    return name.split(" ")[1].replace(BLANK_IN_NAME, " ")


def sum_windows(name: str) -> Windows:
    """Returns the windows of a sum with this name in the catalog."""
    _, _, per, zone, *_ = name.split(" ")  # of a dropped sum, its number follows
    return Rolling(int(zone)) if per == "rolling" else Calendar.from_key(per, zone)


def load(db: sa.Connection) -> Catalog:
    """Returns the numbers given so far."""
    names: defaultdict[str, dict[str, int]] = defaultdict(dict)  # numbers by name, by kind
    meters: dict[str, MeterColumn] = {}
    for kind, name, number, join, sense in db.execute(sa.select(catalog).order_by(catalog.c.number)):
        if kind == "meter":
            meters[name] = MeterColumn(name, number, join, sense)
        else:
            names[kind][name] = number
    return Catalog(
        groupings=names["grouping"],
        meters=meters,
        sums=names["sum"],
        dropped_sums=names[DROPPED],
    )


def register(
    db: sa.Connection, plan: Plan, sums: Iterable[Sum], previous: Plan | None = None, version: int = 1
) -> Catalog:
    """Gives numbers to what `plan` names for the first time, and to its sums; returns all numbers.

    `previous` is the plan that it replaces as `version`. The caller must hold the lock of an activation.
    """
    numbers = load(db)
    _add(
        db, "grouping", [name for name in plan.groupings if name not in numbers.groupings], numbers.groupings
    )
    restarted = _register_meters(db, numbers, plan, previous, version)
    sum_names = {sum_text(sum_) for sum_ in sums}
    kept = {name for name in numbers.sums.keys() & sum_names if sum_meter(name) not in restarted}
    for name in numbers.sums.keys() - kept:
        is_sum = sa.and_(catalog.c.kind == "sum", catalog.c.name == name)
        aside = f"{name} {numbers.sums[name]}"  # the same sum may be dropped more than once
        db.execute(sa.update(catalog).where(is_sum).values(kind=DROPPED, name=aside))
    _add(db, "sum", sorted(sum_names - kept), dict(numbers.sums) | dict(numbers.dropped_sums))
    return load(db)


def _register_meters(
    db: sa.Connection, numbers: Catalog, plan: Plan, previous: Plan | None, version: int
) -> set[str]:
    """Gives numbers to the meters of `plan`; returns the names of those that mean something else now."""
    meters, restarted = dict(numbers.meters), set()
    for meter in plan.bucket_meters:
        column = meters.get(meter.name)
        if column is None and meter.renamed_from in meters:
            column = _rename(db, meters.pop(meter.renamed_from), meter.name)
        means = meaning_digest(meter)
        if column is not None and column.meaning != means:
            restarted.add(meter.name)
            cause = f"until plan {version}" if column.join == meter.join else column.join
            renamed = _rename(db, column, _name_aside(column, cause, meters))
            meters[renamed.name] = renamed
            column = None
        if column is None:
            number = 1 + max((registered.number for registered in meters.values()), default=-1)
            column = MeterColumn(meter.name, number, meter.join, means)
            row = {"kind": "meter", "name": meter.name, "number": number, "join": meter.join}
            db.execute(sa.insert(catalog).values(row | {"meaning": means}))
        meters[meter.name] = column
    return restarted | _restarted_values(plan, previous)


def _restarted_values(plan: Plan, previous: Plan | None) -> set[str]:
    """Returns the meters that mean something else now, and count distinct values now or did before."""
    earlier = {} if previous is None else {meter.name: meter for meter in previous.meters}
    return {
        meter.name
        for meter in plan.meters
        if (old := earlier.get(meter.name)) is not None
        and not (old.joined.in_buckets and meter.joined.in_buckets)
        and meaning_digest(old) != meaning_digest(meter)
    }


def forget_sum(db: sa.Connection, name: str) -> None:
    """Deletes the entry of a dropped sum, unless it has the highest number.

    That would be given to the next sum, while another warden may still be deleting totals of this number.
    """
    entries = catalog.alias()
    highest = (
        sa.select(sa.func.max(entries.c.number)).where(entries.c.kind.in_(("sum", DROPPED))).scalar_subquery()
    )
    is_dropped = sa.and_(catalog.c.kind == DROPPED, catalog.c.name == name)
    db.execute(sa.delete(catalog).where(is_dropped, catalog.c.number < highest))


def _add(db: sa.Connection, kind: str, names: list[str], numbers: Mapping[str, int]) -> None:
    first = 1 + max(numbers.values(), default=0)
    rows = [
        {"kind": kind, "name": name, "number": first + index, "join": ""} for index, name in enumerate(names)
    ]
    if rows:
        db.execute(sa.insert(catalog), rows)


def _rename(db: sa.Connection, meter: MeterColumn, new: str) -> MeterColumn:
    is_meter = sa.and_(catalog.c.kind == "meter", catalog.c.name == meter.name)
    db.execute(sa.update(catalog).where(is_meter).values(name=new))
    return meter._replace(name=new)


def _name_aside(meter: MeterColumn, cause: str, meters: Mapping[str, MeterColumn]) -> str:
    name = f"{meter.name} ({cause})"
    return name if name not in meters else f"{meter.name} ({cause}, {meter.number})"
