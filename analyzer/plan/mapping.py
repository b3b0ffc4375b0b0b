"""The mapping of a source: where its records have each field, who the caller is, what counts as denied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from zlib import crc32

import msgspec

from analyzer.plan.meter_units import UNLIMITED

TimeUnit = Literal["s", "ms", "us", "ns", "rfc3339", "clf"]
NumberKind = Literal["whole", "decimal", "money", "duration"]
NumberUnit = Literal["s", "ms", "us", "ns"]
FieldPath = tuple[str, ...]
NO_PROXIES = msgspec.UNSET
NO_ZONE = msgspec.UNSET


class TimeField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of the request. A mapping without one uses the record's Kafka timestamp."""

    path: FieldPath
    unit: TimeUnit
    # The time zone of texts without one. Absent where they are rejected.
    zone: str | msgspec.UnsetType = NO_ZONE


class TextField(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """A string, whole number or boolean, kept as text; missing or null is empty.

    With a digest, requests are counted by that of the text; conditions compare the text itself.
    """

    path: FieldPath
    digest: str = ""  # fingerprint of the secret of a `NameDigest`; "": none


class AddressField(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="address"):
    """An IP address in its canonical spelling; IPv6 cut to its first `prefix6` bits.

    Of a list, as in X-Forwarded-For, the last address that is not one of `trusted_proxies` counts.
    """

    path: FieldPath
    # The configuration has another default. Digests of stored plans omit this one, so it must not change.
    prefix6: int = 128
    # Addresses and networks of proxies. Absent from stored plans where none is trusted.
    trusted_proxies: tuple[str, ...] | msgspec.UnsetType = NO_PROXIES


class ResourceField(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="resource"):
    """A path, counted as the route pattern that it matches; as `other` when it matches none.

    Without routes it is counted as it stands, without its query: what the records name is the route.
    """

    path: FieldPath
    routes: tuple[str, ...] = ()
    other: str = "other"


class NumberField(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="number"):
    """A number that meters add up, as a whole number of its smallest unit.

    `whole`: digits only. `decimal`: kept in millionths. `money`: kept in billionths. `duration`: given in
    `unit`, kept in microseconds. The last three are scaled exactly from their digits, also with an exponent;
    finer digits are cut. Missing: `default`; rejected where that is None.
    """

    path: FieldPath
    kind: NumberKind = "whole"
    unit: NumberUnit = "s"
    default: int | None = 0


FORMAT_NAMES = ("json", "combined", "vhost_combined")  # `counting.records.formats` has what each of them is
CALLER_FIELDS = ("api_key", "user", "address")  # tried in this order, but in formats that have others

Field = TextField | AddressField | ResourceField | NumberField
DURATION = "duration"  # name of the field with the time that a request took
# Names of the fields that state facts about callers, and about their tenants by the fact.
CALLER_FACTS = ("plan", "tenant", "zone", "anchor")
TENANT_FACTS = {"tenant_plan": "plan", "tenant_zone": "zone", "tenant_anchor": "anchor"}
TENANT = "tenant:"  # beginning of the names under which facts about tenants stand
FACTS = (*CALLER_FACTS, *TENANT_FACTS)
NO_WEIGHT = msgspec.UNSET
COUNT_ALL = msgspec.UNSET
NO_FACTS = msgspec.UNSET
NO_ID = msgspec.UNSET
NO_ENVELOPE = msgspec.UNSET
HOST = "host"  # name of the field with the host name of a client, where a server looks it up


PatternKind = Literal["glob", "prefix", "match"]  # `analyzer.plan.patterns` has what each of them is


class Pattern(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A pattern that a text matches or not: `["glob", "/v1/*"]` in the stored plan."""

    kind: PatternKind
    text: str


class Not(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Any value but these."""

    values: tuple[str | Pattern, ...] = msgspec.field(name="not")


class Condition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Holds for a field that has one of some values, or, with Not, none of them.

    A missing value is "". On a field that a source does not map, no condition holds, with Not either.
    """

    field: str
    wanted: tuple[str | Pattern, ...] | Not  # "500-599" is a range of numbers

    @property
    def values(self) -> tuple[str | Pattern, ...]:
        """Returns the values and patterns of which the field has one, or none."""
        return self.wanted.values if isinstance(self.wanted, Not) else self.wanted

    @property
    def texts(self) -> tuple[str, ...]:
        """Returns the values that are not patterns."""
        return tuple(value for value in self.values if isinstance(value, str))

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return tuple(value for value in self.values if isinstance(value, Pattern))

    @property
    def is_not(self) -> bool:
        return isinstance(self.wanted, Not)


def in_order(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Returns conditions, which must all hold, in one order for any order of them and of their values."""
    ordered = []
    for condition in conditions:
        patterns = sorted(condition.patterns, key=lambda pattern: (pattern.kind, pattern.text))
        values: tuple[str | Pattern, ...] = (*sorted(condition.texts), *patterns)
        ordered.append(Condition(condition.field, Not(values) if condition.is_not else values))
    return tuple(
        sorted(
            ordered,
            key=lambda condition: (
                condition.field,
                condition.texts,
                [(pattern.kind, pattern.text) for pattern in condition.patterns],
                condition.is_not,
            ),
        )
    )


class EventIdRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records of one caller with one id count once, within a horizon of the partition's own time."""

    field: str  # a text field
    horizon_ms: int
    ids_max: int  # remembered for each partition


class SourceMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Format and fields of one source. Frozen: a counter compiles it once, and the plan stores it."""

    format: str = "json"  # one of FORMAT_NAMES
    time: TimeField | None = None
    # Names in `fields`: the first one that is usable is the caller. Empty: those of the format.
    caller: tuple[str, ...] = ()
    fields: dict[str, Field] = msgspec.field(default_factory=dict)
    deny_if: tuple[Condition, ...] = ()  # all must hold
    value_bytes_max: int = 1 << 20
    name_bytes_max: int = 256
    batch_bytes_max: int = 64 << 20  # decompressed
    future_ms_max: int = 5 * 60_000
    past_ms_max: int = 35 * 86_400_000
    sample_bytes: int = 2048
    rejected_in_row_max: int = 1_000
    callers_max: int = 100_000  # counted by name, per rule of `NamedHow`, partition and hour
    # The field with the number of requests that a record stands for. Absent from the stored plan where each
    # stands for one.
    weight: str | msgspec.UnsetType = NO_WEIGHT
    # A record counts under its caller's name if all of these hold. Absent where every record does, as the
    # weight is.
    count_if: tuple[Condition, ...] | msgspec.UnsetType = COUNT_ALL
    # The text fields, among FACTS, that state facts about callers and tenants. Absent where none does.
    facts: tuple[str, ...] | msgspec.UnsetType = NO_FACTS
    # Which field has the id of the event. Absent where records have none.
    id: EventIdRule | msgspec.UnsetType = NO_ID
    # Names in `envelopes.ENVELOPES`, from the outside in. Absent where records are in none.
    envelope: tuple[str, ...] | msgspec.UnsetType = NO_ENVELOPE

    @property
    def fingerprint(self) -> int:
        """A number above 0 of how records are read; where it is another, none has shown that it fits."""
        read_by = [self.format, self.envelopes, self.time, self.caller, self.fields, self.deny_if]
        encoded = msgspec.json.encode([*read_by, None if self.weight is NO_WEIGHT else self.weight])
        return (crc32(encoded) & 0x7FFF_FFFF) or 1

    @property
    def envelopes(self) -> tuple[str, ...]:
        """Returns the names of what is taken off each record, in this order, before its format reads it."""
        return () if isinstance(self.envelope, msgspec.UnsetType) else self.envelope

    @property
    def fact_names(self) -> tuple[str, ...]:
        """The names of the facts that its records state."""
        return () if isinstance(self.facts, msgspec.UnsetType) else self.facts

    @property
    def has_weight(self) -> bool:
        """Whether a record may stand for more than one request."""
        return self.weight is not NO_WEIGHT

    @property
    def event_ids(self) -> EventIdRule | None:
        """The rule by which records with an id count once; None: without ids."""
        return None if isinstance(self.id, msgspec.UnsetType) else self.id

    def without_limits(self) -> SourceMapping:
        """Returns a mapping by which no run of rejected records stops, and every caller and id is known."""
        rule = self.event_ids
        return msgspec.structs.replace(
            self,
            rejected_in_row_max=UNLIMITED,
            callers_max=UNLIMITED,
            id=NO_ID if rule is None else msgspec.structs.replace(rule, ids_max=UNLIMITED),
        )
