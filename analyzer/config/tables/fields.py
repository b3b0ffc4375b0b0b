"""`[sources.fields]`: where each field of a record is, and of what kind it is."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from analyzer.config.tables import ConfigTable
from analyzer.config.values import (
    Amount,
    FieldPathText,
    Networks,
    RouteList,
    Text,
    Zone,
    integer_between,
    known_words,
)
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.mapping import (
    NO_PROXIES,
    NO_ZONE,
    AddressField,
    NumberField,
    ResourceField,
    TextField,
    TimeField,
    TimeUnit,
)
from analyzer.plan.meter_units import PLACES
from gatekeeper.identity import PREFIX6, NameDigest

DurationUnit = Literal["s", "ms", "us", "ns"]
DigestName = Literal["sha256"]
FieldKind = Literal["text", "whole", "decimal", "money", "duration", "bytes"]
MICROSECONDS = {"s": Decimal(10**6), "ms": Decimal(10**3), "us": Decimal(1), "ns": Decimal("0.001")}


class FieldEntry(ConfigTable):
    """A mapped field. `name = "a.b"` and `name = ["a", "b.c"]` are short for `name = { path = ... }`."""

    path: FieldPathText

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)):
            return {"path": value}
        if not isinstance(value, (dict, FieldEntry)):
            raise_fault(
                f"must be a path or a table, not {quote(value)}",
                'write where records have it: "http.api_key", or { path = "http.api_key" }',
            )
        return value


class TimeEntry(FieldEntry):
    unit: Annotated[TimeUnit, known_words(TimeUnit)]
    zone: Zone | None = None  # of texts that name no offset

    @model_validator(mode="after")
    def _is_text_with_a_zone(self) -> Self:
        if self.zone is not None and self.unit != "rfc3339":
            cure = 'remove zone, or write unit = "rfc3339"'
            raise_fault(f"a time in {quote(self.unit)} needs no zone", cure)
        return self

    def field(self) -> TimeField:
        return TimeField(self.path, self.unit, NO_ZONE if self.zone is None else self.zone)


class AddressEntry(FieldEntry):
    prefix6: Annotated[int, integer_between(1, 128)] = PREFIX6
    trusted_proxies: Networks = ()  # whose entries are trusted, where the field has X-Forwarded-For

    def field(self) -> AddressField:
        return AddressField(self.path, self.prefix6, self.trusted_proxies or NO_PROXIES)


class ResourceEntry(FieldEntry):
    routes: RouteList = ()
    other: Text = Field("other", alias="else")

    def field(self) -> ResourceField:
        return ResourceField(self.path, self.routes, self.other)


class PlainEntry(FieldEntry):
    """A field under a name of the operator's choice: text, or a number by `kind`, `unit` or a meter."""

    kind: Annotated[FieldKind, known_words(FieldKind)] | None = None
    unit: Annotated[DurationUnit, known_words(DurationUnit)] | None = None
    default: Amount | None = None
    required: bool = False
    digest: Annotated[DigestName, known_words(DigestName)] | None = None

    @property
    def is_declared_number(self) -> bool:
        """Whether `kind` or `unit` make it a number."""
        return self.unit is not None or self.kind not in (None, "text")

    def field(self, *, is_metered: bool, digest: NameDigest | None) -> TextField | NumberField:
        """The field; a number if it is declared as one or if a meter takes its value.

        `digest`: the one that it is counted by; None: by the text itself.
        """
        if not (is_metered or self.is_declared_number):
            return TextField(self.path, "" if digest is None else digest.fingerprint)
        kind = self.number_kind
        default = None if self.required else self.scaled(self.default or Decimal(0))
        # Bytes are whole numbers to the counter; people see them with a unit.
        return NumberField(self.path, "whole" if kind == "bytes" else kind, self.unit or "s", default)

    @property
    def is_exact(self) -> bool:
        """Whether the counter reads its digits instead of a float: declared decimals, money, durations."""
        return self.is_declared_number and self.number_kind in ("decimal", "money", "duration")

    @property
    def number_kind(self) -> Literal["whole", "decimal", "money", "duration", "bytes"]:
        if self.kind is None or self.kind == "text":
            return "whole" if self.unit is None else "duration"
        return self.kind

    def scaled(self, value: Decimal) -> int:
        """`value` in the unit that meters add up, such as millionths of a decimal. The rest is cut off."""
        match self.number_kind:
            case "whole" | "bytes":
                return int(value)
            case "decimal" | "money" as kind:
                return int(value * 10 ** PLACES[kind])
            case "duration":
                return int(value * MICROSECONDS[self.unit or "s"])


class FieldsTable(ConfigTable):
    """The mapped fields of a source. `time`, `address` and `resource` have a special meaning."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, PlainEntry] = Field(init=False)

    time: TimeEntry | None = None
    address: AddressEntry | None = None
    resource: ResourceEntry | None = None

    @property
    def plain(self) -> dict[str, PlainEntry]:
        """The fields without a special meaning, by name."""
        return self.__pydantic_extra__

    @property
    def entries(self) -> dict[str, FieldEntry]:
        """All mapped fields by name."""
        built_in: dict[str, FieldEntry | None] = {
            "time": self.time,
            "address": self.address,
            "resource": self.resource,
        }
        return {name: entry for name, entry in (built_in | dict(self.plain)).items() if entry is not None}

    @property
    def names(self) -> frozenset[str]:
        """Fields that a caller, condition or meter may name: all but the time."""
        return frozenset(self.entries) - {"time"}
