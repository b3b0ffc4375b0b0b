"""`[sources.fields]`: where each field of a record is found, and of what kind it is."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from analyzer.config.tables import ConfigTable
from analyzer.config.values import Amount, FieldPathText, RouteList, Text, one_of, quoted, refuse, whole
from analyzer.core.records.mapping import (
    AddressField,
    NumberField,
    ResourceField,
    TextField,
    TimeField,
    TimeUnit,
)

DurationUnit = Literal["s", "ms", "us", "ns"]
FieldKind = Literal["text", "whole", "decimal", "duration"]
TO_MICROSECONDS = {"s": Decimal(10**6), "ms": Decimal(10**3), "us": Decimal(1), "ns": Decimal("0.001")}


class FieldEntry(ConfigTable):
    """`name = "a.b"` and `name = ["a", "b.c"]` are short for `name = { path = ... }`."""

    path: FieldPathText

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)):
            return {"path": value}
        if not isinstance(value, (dict, FieldEntry)):
            refuse(
                f"{quoted(value)} is no field",
                'write where records have it: "http.api_key", or { path = "ts" }',
            )
        return value


class TimeEntry(FieldEntry):
    unit: Annotated[TimeUnit, one_of("s", "ms", "us", "ns", "rfc3339", "clf")]

    def field(self) -> TimeField:
        return TimeField(self.path, self.unit)


class AddressEntry(FieldEntry):
    prefix6: Annotated[int, whole(1, 128)] = 128

    def field(self) -> AddressField:
        return AddressField(self.path, self.prefix6)


class ResourceEntry(FieldEntry):
    routes: RouteList = ()
    other: Text = Field("other", alias="else")

    def field(self) -> ResourceField:
        return ResourceField(self.path, self.routes, self.other)


class PlainEntry(FieldEntry):
    """Any other field: text, unless a meter adds it up or `kind` or `unit` says that it is a number."""

    kind: Annotated[FieldKind, one_of("text", "whole", "decimal", "duration")] | None = None
    unit: Annotated[DurationUnit, one_of("s", "ms", "us", "ns")] | None = None
    default: Amount | None = None
    required: bool = False

    @property
    def says_number(self) -> bool:
        return self.unit is not None or self.kind in ("whole", "decimal", "duration")

    def field(self, *, added_up: bool) -> TextField | NumberField:
        """The field; a number when it says so, or when a meter adds it up."""
        if not (added_up or self.says_number):
            return TextField(self.path)
        kind = self.number_kind
        default = None if self.required else self.smallest(self.default or Decimal(0))
        return NumberField(self.path, kind, self.unit or "s", default)

    @property
    def is_exact(self) -> bool:
        """Whether its digits are read, through no float; only who says so is."""
        return self.says_number and self.number_kind != "whole"

    @property
    def number_kind(self) -> Literal["whole", "decimal", "duration"]:
        if self.kind is None or self.kind == "text":
            return "whole" if self.unit is None else "duration"
        return self.kind

    def smallest(self, value: Decimal) -> int:
        """`value` in the whole units that meters add up; what is smaller still is cut."""
        match self.number_kind:
            case "whole":
                return int(value)
            case "decimal":
                return int(value * 10**6)
            case "duration":
                return int(value * TO_MICROSECONDS[self.unit or "s"])


class FieldsTable(ConfigTable):
    """Three names have a kind of their own; all others are one's own to choose."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, PlainEntry] = Field(init=False)

    time: TimeEntry | None = None
    address: AddressEntry | None = None
    resource: ResourceEntry | None = None

    @property
    def others(self) -> dict[str, PlainEntry]:
        return self.__pydantic_extra__

    @property
    def entries(self) -> dict[str, FieldEntry]:
        """Every field that there is, by name."""
        found: dict[str, FieldEntry | None] = {
            "time": self.time,
            "address": self.address,
            "resource": self.resource,
        }
        return {name: entry for name, entry in (found | dict(self.others)).items() if entry is not None}

    @property
    def names(self) -> frozenset[str]:
        """The fields that a caller, condition or meter may name: all but the time."""
        return frozenset(self.entries) - {"time"}
