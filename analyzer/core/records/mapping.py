"""The mapping of a source: where its records have each field, who the caller is, what counts as denied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

TimeUnit = Literal["s", "ms", "us", "ns", "rfc3339", "clf"]
NumberKind = Literal["whole", "decimal", "duration"]
NumberUnit = Literal["s", "ms", "us", "ns"]
FieldPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimeField:
    """Time of the request. A mapping without one uses the record's Kafka timestamp."""

    path: FieldPath
    unit: TimeUnit


@dataclass(frozen=True, slots=True)
class TextField:
    """A string, whole number or boolean, kept as text; missing or null is empty."""

    path: FieldPath


@dataclass(frozen=True, slots=True)
class AddressField:
    """An IP address in its canonical spelling; IPv6 cut to its first `prefix6` bits."""

    path: FieldPath
    prefix6: int = 128


@dataclass(frozen=True, slots=True)
class ResourceField:
    """A path, counted as the route pattern that it matches; as `other` when it matches none."""

    path: FieldPath
    routes: tuple[str, ...] = ()
    other: str = "other"


@dataclass(frozen=True, slots=True)
class NumberField:
    """A number that meters add up, as a whole number of its smallest unit.

    `whole`: digits only. `decimal`: kept in millionths. `duration`: given in `unit`, kept in microseconds.
    Both are scaled exactly from their digits; digits below a millionth or a microsecond are cut. Missing:
    `default`; rejected where that is None.
    """

    path: FieldPath
    kind: NumberKind = "whole"
    unit: NumberUnit = "s"
    default: int | None = 0


CALLER_FIELDS = ("api_key", "user", "address")  # tried in this order unless a source says otherwise

Field = TextField | AddressField | ResourceField | NumberField
Condition = tuple[str, tuple[str, ...]]  # (field, wanted values); "500-599" is a range of numbers


@dataclass(frozen=True, slots=True)
class SourceMapping:
    """Format and fields of one source. Frozen: a counter compiles it once."""

    format: str = "json"  # a name in `formats.FORMATS`
    time: TimeField | None = None
    caller: tuple[str, ...] = CALLER_FIELDS  # names in `fields`; the first one present is the caller
    fields: Mapping[str, Field] = field(default_factory=dict)
    deny_if: tuple[Condition, ...] = ()  # all must hold
    value_bytes_max: int = 1 << 20
    name_bytes_max: int = 256
    batch_bytes_max: int = 64 << 20  # decompressed
    future_ms_max: int = 5 * 60_000
    past_ms_max: int = 35 * 86_400_000
    sample_bytes: int = 2048
    rejected_in_row_max: int = 1_000
    callers_max: int = 100_000  # counted by name, per rule of `NamedHow`, partition and hour
