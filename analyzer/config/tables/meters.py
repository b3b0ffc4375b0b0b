"""`[[meters]]`: numbers that are counted besides `requests`."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.fields import FieldsTable
from analyzer.config.values import ConditionTable, Name, Text
from analyzer.plan.meter_units import Unit
from analyzer.plan.meters import Meter


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
