"""One record, read slowly: its request, or the first reason why it is rejected."""

from __future__ import annotations

import hashlib
import string
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

from analyzer.plan import mapping as mappings
from analyzer.plan.meters import Meter
from tests.oracle.counter.refused import Refused
from tests.oracle.counter.slow_json import Digits, parse_json
from tests.oracle.counter.slow_lines import parse_combined
from tests.oracle.counter.slow_patterns import pattern_matches
from tests.oracle.counter.slow_values import (
    MISSING,
    SECRETS,
    client_of,
    counted_text,
    digested,
    digits_in,
    exactly,
    is_digits,
    is_host_name,
    is_name,
    is_whole,
    text_of,
    time_ms,
)

ZONE_CHARACTERS = {*string.ascii_letters, *string.digits, *"_+-"}
CALENDAR_MS = range(253_339_228_800_000)
LookUp = Callable[[tuple[str, ...]], Any]  # the value at a path, or MISSING


class Request(NamedTuple):
    """The content of one record that is counted."""

    texts: Mapping[str, str]  # by dimension
    ms: int
    numbers: Mapping[str, int]  # by field
    denied: bool
    matches: Mapping[str, bool]  # by meter: whether all of its conditions hold
    renamed: bool  # whether it had an unusable name, or none
    policy: str  # that denied it; "" if the record names none
    asked: str  # the caller's name, also if it is counted in the overflow
    values: Mapping[str, int]  # by field whose distinct values are counted
    weight: int  # requests that the record stands for
    facts: Mapping[str, str | None]  # about its caller: "" is not stated, None unusable
    id: str  # of the event; "" for none
    fieldless: bool  # whether it has no field of a caller


def all_hold(
    conditions: Sequence[mappings.Condition], look_up: LookUp, mapping: mappings.SourceMapping
) -> bool:
    """Whether all conditions hold; one on a field that the source lacks does not."""
    if not all(condition.field in mapping.fields for condition in conditions):
        return False
    results = [
        holds(look_up, mapping.fields[condition.field], condition.values) != condition.is_not
        for condition in conditions
    ]
    return all(results)


def holds(look_up: LookUp, field: mappings.Field, wanted: Sequence[str | mappings.Pattern]) -> bool:
    as_counted = isinstance(field, mappings.ResourceField | mappings.AddressField)
    text = counted_text(look_up(field.path), field, 256) if as_counted else text_of(look_up(field.path))
    if text is None:
        raise Refused("bad-field")
    # A list of values, as a header may have, also matches by its first.
    first = text if as_counted else text.split(";")[0]
    return any(
        pattern_matches(value, text)
        if isinstance(value, mappings.Pattern)
        else value in (text, first) or in_range(text, value)
        for value in wanted
    )


def in_range(text: str, wanted: str) -> bool:
    low, _, high = wanted.partition("-")
    numbers = (low, text, high)
    return all(is_digits(n) and len(n) < 20 for n in numbers) and int(low) <= int(text) <= int(high)


def number_of(name: str, look_up: LookUp, mapping: mappings.SourceMapping) -> int | None:
    field = mapping.fields.get(name)
    if not isinstance(field, mappings.NumberField):
        return None
    value = look_up(field.path)
    if value is MISSING or (not isinstance(value, Digits) and value in ("", "-")):
        if field.default is None:
            raise Refused("bad-number")
        return field.default
    if type(value) is str:
        value = digits_in(value)
    if not isinstance(value, Digits) or (field.kind == "whole" and not is_whole(value)):
        raise Refused("bad-number")
    per_unit = {"s": Fraction(10**6), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
    units = {"whole": Fraction(1), "decimal": Fraction(10**6), "money": Fraction(10**9)}
    unit = units.get(field.kind, per_unit[field.unit])
    number = exactly(value, unit)
    if number is None or not 0 <= number <= 2**53:
        raise Refused("bad-number")
    return number


def weight_of(look_up: LookUp, mapping: mappings.SourceMapping) -> int:
    if not isinstance(mapping.weight, str):
        return 1
    field = mapping.fields[mapping.weight]
    assert isinstance(field, mappings.NumberField)
    value = look_up(field.path)
    if (value is MISSING or (type(value) is str and value in ("", "-"))) and field.default is not None:
        return 1
    number = number_of(mapping.weight, look_up, mapping)
    assert number is not None
    return number


def caller_of(look_up: LookUp, mapping: mappings.SourceMapping) -> tuple[str, bool, bool]:
    """Returns the caller, whether the record had an unusable name, or none, and whether it has no field."""
    names = list(mapping.caller)
    if isinstance(mapping.fields.get("address"), mappings.AddressField):
        names.append("address")
    was_unusable, is_absent = False, True
    for name in names:
        field = mapping.fields.get(name)
        value = MISSING if field is None else look_up(field.path)
        if field is None or value is MISSING:
            continue
        is_absent = False
        if type(value) is not str:
            raise Refused("bad-caller")
        if value in {"", "-"}:
            continue
        text = name_in(value, name, field)
        if text == "":
            continue
        if text is not None and is_name(text, mapping.name_bytes_max):
            return f"{name}:{digested(text, field)}", was_unusable, False
        was_unusable = True
    return "unnamed:", True, is_absent


def name_in(value: str, name: str, field: mappings.Field) -> str | None:
    """Returns the name in a caller's field; None for what cannot be one, "" for none."""
    if isinstance(field, mappings.AddressField):
        return client_of(value, field.prefix6, field.trusted_proxies or ())
    if name != "host":
        return value
    if client_of(value, 128) is not None:
        return ""
    return value if is_host_name(value) else None


def keeps_name(look_up: LookUp, mapping: mappings.SourceMapping) -> bool:
    """Whether all conditions of `count_if` hold; none does on a value that cannot be compared."""
    for condition in mapping.count_if or ():
        if condition.field not in mapping.fields:
            return False
        try:
            held = holds(look_up, mapping.fields[condition.field], condition.values)
        except Refused:
            return False
        if held == condition.is_not:
            return False
    return True


def nameless_caller(look_up: LookUp, mapping: mappings.SourceMapping) -> str:
    """Returns the caller of a record whose caller's name must not count: its address, or none."""
    field = mapping.fields.get("address")
    value = look_up(field.path) if isinstance(field, mappings.AddressField) else MISSING
    if isinstance(field, mappings.AddressField) and type(value) is str:
        address = client_of(value, field.prefix6, field.trusted_proxies or ())
        if address is not None and is_name(address, mapping.name_bytes_max):
            return f"address:{address}"
    return "unnamed:"


def policy_of(look_up: LookUp, mapping: mappings.SourceMapping) -> str:
    is_mapped = "policy" in mapping.fields
    for name in ["policy"] if is_mapped else [condition.field for condition in mapping.deny_if]:
        field = mapping.fields.get(name)
        value = look_up(field.path) if isinstance(field, mappings.TextField) else None
        if type(value) is str:
            quoted = quoted_policy(value)
            found = quoted if quoted is not None else value if is_mapped else ""
            if is_name(found, mapping.name_bytes_max):
                return found
    return ""


def quoted_policy(text: str) -> str | None:
    """Returns the policy of a header like denied;policy="daily", read character by character; or None."""
    word, parameter, rest = text.partition(';policy="')
    if not parameter or ";" in word or '"' in word:
        return None
    found, characters = "", iter(rest)
    for character in characters:
        if character == '"':
            return found
        if character == "\\":
            escaped = next(characters, "\n")
            if escaped == "\n":
                return None
            found += escaped
        else:
            found += character
    return None


def document_of(value: bytes | None, mapping: mappings.SourceMapping) -> dict[str, Any]:
    if value is None:
        raise Refused("tombstone")
    if len(value) > mapping.value_bytes_max:
        raise Refused("too-large")
    text = value.decode(errors="surrogateescape")
    try:
        return parse_json(text) if mapping.format == "json" else parse_combined(text)
    except Refused:
        if any(0xDC80 <= ord(char) < 0xDD00 for char in text):
            raise Refused("bad-utf8") from None
        raise


def texts_of(dimensions: Sequence[str], look_up: LookUp, mapping: mappings.SourceMapping) -> dict[str, str]:
    texts = {}
    for dimension in dimensions:
        name, _, prefix = dimension.partition("/")
        field = mapping.fields.get("address" if prefix else name)
        found = "" if field is None else counted_text(look_up(field.path), field, mapping.name_bytes_max)
        if found is None:
            raise Refused("bad-field")
        texts[dimension] = network_of(found, 6 if name == "address6" else 4, int(prefix)) if prefix else found
    return texts


def values_of(fields: Sequence[str], look_up: LookUp, mapping: mappings.SourceMapping) -> dict[str, int]:
    """Returns the digests of the values that a record has."""
    values = {}
    for name in fields:
        field = mapping.fields.get(name)
        if field is not None:
            as_counted = isinstance(field, mappings.ResourceField | mappings.AddressField)
            found = look_up(field.path)
            text = counted_text(found, field, 256) if as_counted else text_of(found)
            if text is None:
                raise Refused("bad-field")
            if text:
                values[name] = value_digest(text, field)
    return values


def value_digest(text: str, field: mappings.Field) -> int:
    is_secret = isinstance(field, mappings.TextField) and field.digest
    key = hashlib.sha256(SECRETS[field.digest]).digest() if is_secret else b""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8, key=key).hexdigest()
    number = int(digest, 16)
    return number if number < 2**63 else number - 2**64


def network_of(address: str, version: int, prefix: int) -> str:
    """Returns the network of an address, which may be a network itself; "" for the other family."""
    if not address or (":" in address) != (version == 6):
        return ""
    cut_to = int(address.partition("/")[2] or 999)
    packed = IPv6Address if version == 6 else IPv4Address
    bits = 8 * len(packed(0).packed)
    prefix = min(prefix, cut_to)
    number = int(packed(address.partition("/")[0])) >> (bits - prefix) << (bits - prefix)
    return f"{packed(number)}/{prefix}"


def check_time(ms: int, kafka_ms: int | None, mapping: mappings.SourceMapping) -> None:
    if kafka_ms is not None and ms > kafka_ms + mapping.future_ms_max:
        raise Refused("future")
    if kafka_ms is not None and ms < kafka_ms - mapping.past_ms_max:
        raise Refused("past")
    if ms not in CALENDAR_MS:
        raise Refused("bad-time")


def read_record(
    value: bytes | None,
    kafka_ms: int | None,
    mapping: mappings.SourceMapping,
    dimensions: Sequence[str],
    meters: Sequence[Meter],
    fields: Sequence[str] = (),
) -> Request:
    """Returns the request of a record; `fields` are those whose distinct values are counted.

    Raises Refused with the first reason, in the contract's order.
    """
    document = document_of(value, mapping)

    def look_up(path: tuple[str, ...]) -> Any:
        found: Any = document
        for key in path:
            found = found.get(key, MISSING) if isinstance(found, dict) else MISSING
        return found

    caller, renamed, fieldless = "", False, False
    if "caller" in dimensions:
        caller, renamed, fieldless = caller_of(look_up, mapping)
    known_ms = kafka_ms if kafka_ms is not None and kafka_ms >= 0 else None
    ms = known_ms if mapping.time is None else time_ms(look_up(mapping.time.path), mapping.time)
    if ms is None:
        raise Refused("bad-time")
    names = {meter.field for meter in meters if meter.field is not None}
    numbers = {name: number_of(name, look_up, mapping) for name in names}
    weight = weight_of(look_up, mapping)
    denied = bool(mapping.deny_if) and all_hold(mapping.deny_if, look_up, mapping)
    if caller and not denied and not keeps_name(look_up, mapping):
        named, caller = caller, nameless_caller(look_up, mapping)
        renamed = renamed or caller != named
    matches = {meter.name: all_hold(meter.where, look_up, mapping) for meter in meters}
    texts = texts_of([name for name in dimensions if name != "caller"], look_up, mapping)
    values = values_of(fields, look_up, mapping)
    check_time(ms, known_ms, mapping)
    present = {name: number for name, number in numbers.items() if number is not None}
    policy = policy_of(look_up, mapping) if denied else ""
    facts = {name: fact_of(name, look_up, mapping) for name in mapping.fact_names if caller}
    return Request(
        {"caller": caller} | texts, ms, present, denied, matches, renamed, policy, caller, values, weight,
        facts, id_of(look_up, mapping), fieldless,
    )  # fmt: skip


def id_of(look_up: LookUp, mapping: mappings.SourceMapping) -> str:
    """Returns the event's id; "" where the source has none, or the record none that can be used."""
    rule = mapping.event_ids
    value = MISSING if rule is None else look_up(mapping.fields[rule.field].path)
    if type(value) is str:
        return "" if value == "-" else value
    text = text_of(value) if isinstance(value, Digits) else ""
    return text or ""


def fact_of(name: str, look_up: LookUp, mapping: mappings.SourceMapping) -> str | None:
    """Returns what the record states; "" for nothing, None for what cannot be the fact."""
    field = mapping.fields[name]
    name = name.removeprefix("tenant_")
    text = text_of(look_up(field.path))
    if text in {"", "-"}:
        return ""
    if text is None or not is_name(text, mapping.name_bytes_max):
        return None
    if name == "anchor":
        try:
            time.strptime(text, "%Y-%m-%d")
        except ValueError:
            return None
        return text if len(text) == 10 and text[:4] != "0000" else None
    if name == "zone":
        parts = text.split("/")
        plain = all(0 < len(part) <= 32 and set(part) <= ZONE_CHARACTERS for part in parts)
        return text if plain and len(parts) <= 3 else None
    return digested(text, field)
