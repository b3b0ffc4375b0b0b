"""A customer's statement as one HTML file without scripts, for a browser and for A4 paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import jinja2

from analyzer.billing.reports.statement import UsageStatement
from analyzer.kernel.time_texts import format_second
from analyzer.plan.meter_units import HUMAN_UNITS, STORED_IN, WHOLE, Unit, human_amount

METERS_PER_TABLE = 3  # as many as fit across the paper


class ShownAmount(NamedTuple):
    """An amount for people, and the exact one in the unit in which it is stored; "" where both are one."""

    human: str
    exact: str


def statement_html(statement: UsageStatement, units: Mapping[str, Unit]) -> str:
    """Returns the page of a statement; equal statements have equal pages.

    `units` has those of the meters. Names and reasons stand in it as text, never as HTML.
    """
    stored_in = {meter: STORED_IN[unit] for meter, unit in units.items()}

    def shown(meter: str, value: int) -> ShownAmount:
        return shown_amount(value, stored_in.get(meter, ""))

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("analyzer.faces.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    until_ms = statement.complete_until_ms
    return templates.get_template("statement.html").render(
        statement=statement,
        shown=shown,
        meter_groups=list(_groups(statement.meters)),
        complete_until="" if until_ms is None else format_second(until_ms // 1000),
    )


def shown_amount(value: int, stored_in: str) -> ShownAmount:
    """Returns an amount as it is shown.

    >>> shown_amount(1_250_000, "microseconds"), shown_amount(-1_000_000, "")
    (ShownAmount(human='1.25 s', exact='1,250,000 microseconds'), ShownAmount(human='-1,000,000', exact=''))
    """
    unit = HUMAN_UNITS.get(stored_in, WHOLE)
    digits = f"{human_amount(value, stored_in):,f}"
    if unit.places:
        digits = digits.rstrip("0").rstrip(".")
    return ShownAmount(f"{digits} {unit.symbol}".rstrip(), f"{value:,} {stored_in}" if stored_in else "")


def _groups(meters: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yields the meters of each table, about equally many."""
    tables = ceil(len(meters) / METERS_PER_TABLE)
    for number in range(tables):
        yield meters[len(meters) * number // tables : len(meters) * (number + 1) // tables]
