"""`[[sources]]`: the topics and files that are read, and how."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.fields import FieldsTable
from analyzer.config.tables.meters import GroupingName
from analyzer.config.values import ConditionValues, Names, Text, one_of, whole
from analyzer.core.records.combined_format import PARTS
from analyzer.core.records.mapping import CALLER_FIELDS, SourceMapping
from analyzer.core.records.mapping import Field as AnyField

# The parts of a combined line, but for the path, are fields of the same name without being mapped.
COMBINED: dict[str, Any] = {part: part for part in PARTS if part != "path"} | {
    "resource": "path",
    "time": {"path": "time", "unit": "clf"},
}


class SourceTable(ConfigTable):
    """One stream of request records: a topic, or a file that is followed."""

    name: Text = ""
    topic: Text | None = None
    file: Text | None = None
    format: Annotated[Literal["json", "combined"], one_of("json", "combined")] = "json"
    caller: Names | None = None
    deny_if: dict[str, ConditionValues] = Field(default_factory=dict)
    start: Annotated[Literal["earliest", "latest"], one_of("earliest", "latest")] = "earliest"
    groupings: tuple[GroupingName, ...] = ()
    # Each in a partition: records in a row that cannot be read, and callers that are counted by name.
    stop_after_rejected: Annotated[int, whole(1, 1 << 31)] = 1_000
    callers_per_hour: Annotated[int, whole(1, 10_000_000)] = 100_000
    fields: FieldsTable = Field(default_factory=FieldsTable)

    @model_validator(mode="before")
    @classmethod
    def _with_what_goes_without_saying(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        named = value.get("topic") or PurePath(str(value.get("file", ""))).name
        said: dict[str, Any] = ({"name": named} if named else {}) | value
        if said.get("format") == "combined" and isinstance(said.get("fields", {}), dict):
            said["fields"] = COMBINED | said.get("fields", {})
        return said

    @property
    def callers(self) -> tuple[str, ...]:
        """Names of the fields that say who called: the usual ones that there are, when none are given."""
        return self.caller or tuple(name for name in CALLER_FIELDS if name in self.fields.names)

    def mapping(self, added_up: frozenset[str]) -> SourceMapping:
        """How the counter reads this source; the fields in `added_up` are numbers."""
        fields: dict[str, AnyField] = {
            name: entry.field(added_up=name in added_up) for name, entry in self.fields.others.items()
        }
        if self.fields.address is not None:
            fields["address"] = self.fields.address.field()
        if self.fields.resource is not None:
            fields["resource"] = self.fields.resource.field()
        time = self.fields.time
        return SourceMapping(
            format=self.format,
            time=None if time is None else time.field(),
            caller=self.callers,
            fields=fields,
            deny_if=tuple(self.deny_if.items()),
            rejected_in_row_max=self.stop_after_rejected,
            callers_max=self.callers_per_hour,
        )
