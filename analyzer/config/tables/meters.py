"""`[[meters]]`: numbers that are counted besides `requests`, and the groupings that they are counted by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.fields import FieldsTable
from analyzer.config.values import ConditionTable, Name, Text, alternatives, suggestion
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.groupings import BY_ADDRESS, BY_OUTCOME, BY_RESOURCE, COUNTED, SHOWN, parse_grouping
from analyzer.plan.meter_units import Unit
from analyzer.plan.meters import Meter

# Words of others for what a grouping is called here.
SYNONYMS = {
    "ip": "address", "client": "address", "host": "address",
    "user": "caller", "key": "caller", "api_key": "caller",
    "organisation": "tenant", "organization": "tenant", "org": "tenant", "customer": "tenant",
    "route": "resource", "path": "resource", "endpoint": "resource",
    "all": "everyone", "global": "everyone",
}  # fmt: skip


def _grouping(value: object, names: Sequence[str] = COUNTED) -> str:
    try:
        # Addresses of networks and outcomes are counted for judgements alone.
        return parse_grouping("" if str(value).endswith((BY_ADDRESS, BY_OUTCOME)) else str(value)).name
    except ValueError:
        otherwise = f'use {alternatives(names)}, perhaps followed by "{BY_RESOURCE}"'
        plain_names = [name for name in names if "/" not in name]
        is_network = "/" in str(value)  # its prefix is wrong, not its name
        cure = otherwise if is_network else suggestion(value, plain_names, otherwise)
        if str(value) in SYNONYMS:
            cure = f"did you mean {quote(SYNONYMS[str(value)])}?"
        raise_fault(f"{quote(value)} is not a grouping", cure)


def _judged_grouping(value: object) -> str:
    name = _grouping(value, SHOWN)
    if not parse_grouping(name).is_judged:
        raise_fault(
            f"{quote(value)} cannot be limited, because no gate knows the plan of a request",
            'limit callers by their plan: per = "caller", limit = { free = 1_000, default = 100 }',
        )
    return name


GroupingName = Annotated[str, BeforeValidator(_grouping)]
JudgedGroupingName = Annotated[str, BeforeValidator(_judged_grouping)]


class MeterTable(ConfigTable):
    """A meter that the operator adds to `requests`, which is built in."""

    name: Name
    count: bool = False
    sum_of: Text | None = Field(None, alias="sum")
    max_of: Text | None = Field(None, alias="max")
    distinct: Text | None = None
    where: ConditionTable = Field(default_factory=dict)
    renamed_from: Name | None = None  # earlier counts under this name become counts of this meter

    @property
    def field(self) -> str | None:
        """The field whose value it takes; None when it counts requests."""
        return self.number_field or self.distinct

    @property
    def number_field(self) -> str | None:
        """The field that it takes as a number."""
        return self.sum_of or self.max_of

    @property
    def join(self) -> str:
        """The name of the join of its values."""
        if self.number_field is None and self.distinct:
            return "distinct"
        return "sum" if self.sum_of or not self.max_of else "max"

    @property
    def given(self) -> list[str]:
        """The keys count, sum, max and distinct that are set, of which it must have exactly one."""
        values = (
            ("count", self.count), ("sum", self.sum_of), ("max", self.max_of), ("distinct", self.distinct)
        )  # fmt: skip
        return [key for key, value in values if value]

    def unit(self, mappings: Iterable[FieldsTable]) -> Unit | None:
        """The unit of its values, as one of the mappings declares its field; None: whole numbers."""
        entries = (fields.plain.get(self.number_field or "") for fields in mappings)
        kinds = (entry.number_kind for entry in entries if entry is not None)
        return next((kind for kind in kinds if kind != "whole"), None)

    def meter(self) -> Meter:
        where = tuple(values.condition(name) for name, values in self.where.items())
        return Meter(self.name, self.field, self.join, where, self.renamed_from or "")
