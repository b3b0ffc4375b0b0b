"""`[[meters]]`: numbers that are counted besides `requests`, and the groupings that they are counted by."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from analyzer.config.tables import ConfigTable
from analyzer.config.values import ConditionValues, Name, Text, one_of
from analyzer.core.counting.meters import Meter

Grouping = Literal["caller", "caller+resource"]
PLANNED_GROUPINGS = ("tenant", "resource", "address", "address/24", "everyone")
GroupingName = Annotated[Grouping, one_of(Grouping, planned=PLANNED_GROUPINGS)]


class MeterTable(ConfigTable):
    """A meter that the operator adds to `requests`, which is built in."""

    name: Name
    count: bool = False
    sum_of: Text | None = Field(None, alias="sum")
    max_of: Text | None = Field(None, alias="max")
    where: dict[str, ConditionValues] = Field(default_factory=dict)

    @property
    def field(self) -> str | None:
        """The field whose value it takes; None when it counts requests."""
        return self.sum_of or self.max_of

    def meter(self) -> Meter:
        join: Literal["sum", "max"] = "sum" if self.max_of is None else "max"
        return Meter(self.name, self.field, join, tuple(self.where.items()))
