"""Bytes become a request once, here, or the reason why not. The order of the checks is part of the contract:
tombstone, size, UTF-8, document, caller, time, numbers, fields, future, past."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from analyzer.core.combined_format import CombinedFormat
from analyzer.core.json_format import JsonFormat
from analyzer.core.mapping import AddressField, Mapping, NumberField, Path
from analyzer.core.meters import Meter
from analyzer.core.model import Reason
from analyzer.core.numbers import VALUE_MAX, floored, scaled
from analyzer.core.rules import Condition, Name, condition_for, name_for, text_for
from analyzer.core.times import clf_ms, rfc3339_ms

Key = tuple[Any, ...]  # caller, start of the bucket in seconds, then one text for each dimension
Request = tuple[Key, bool, Sequence[int | None]]  # key, denied, an amount (or None) for each meter
Judge = Callable[[Sequence[Any], int | None], Request | Reason | None]  # None: ask with exact digits

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
PLACES = {"s": 0, "ms": -3, "us": -6, "ns": -9}  # from a unit to seconds
SURE = 1e-5  # how far from a whole second the nearest float must be to tell on which side its digits are
FLOAT_S_MAX = float(2**33)


def reader_for(
    mapping: Mapping, meters: Sequence[Meter], dimensions: Sequence[str], width_s: int
) -> Callable[[bytes | None, int | None], Request | Reason]:
    """A function from a record's value and its Kafka time (None: a file's line) to what it says.

    `meters` are those beside `requests`; `dimensions` are fields that groupings need beside the caller.
    """
    slots = Slots()
    judge = _judge_for(mapping, meters, dimensions, width_s, slots)
    reads: JsonFormat | CombinedFormat
    refused: Reason
    if mapping.format == "json":
        reads, refused = JsonFormat(slots.paths, frozenset(slots.digits)), "bad-json"
    else:
        reads, refused = CombinedFormat(slots.paths, frozenset(slots.digits)), "bad-line"
    bytes_max = mapping.value_bytes_max

    def read(value: bytes | None, kafka_ms: int | None) -> Request | Reason:
        if value is None:
            return "tombstone"
        if len(value) > bytes_max:
            return "too-large"
        text = None
        if not value.isascii():
            try:
                text = value.decode()
            except UnicodeDecodeError:
                return "bad-utf8"
        values = reads.read(value, text)
        if values is None:
            return refused
        found = judge(values, kafka_ms)
        if found is None:
            values = reads.exact(value, text)
            found = refused if values is None else judge(values, kafka_ms)
        return refused if found is None else found

    return read


class Slots:
    """Which paths are read, each once, and where its value is among those that were read."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.digits: set[Path] = set()

    def of(self, path: Path, *, digits: bool = False) -> int:
        if digits:
            self.digits.add(path)
        if path not in self.paths:
            self.paths.append(path)
        return self.paths.index(path)


def _judge_for(  # noqa: C901 - the closure is counted in
    mapping: Mapping, meters: Sequence[Meter], dimensions: Sequence[str], width_s: int, slots: Slots
) -> Judge:
    """The checks in their order, put together once so that a record only runs what its mapping needs."""
    time_of = _time_for(mapping, slots)
    callers = [_caller_for(mapping, name, slots) for name in mapping.caller]
    amounts_of = _amounts_for(mapping, meters, slots)
    denied_if = _conditions_for(mapping, mapping.deny_if, slots)
    texts = [_text_for(mapping, name, slots) for name in dimensions]
    future_ms, past_ms = mapping.future_ms_max, mapping.past_ms_max

    def judge(values: Sequence[Any], kafka_ms: int | None) -> Request | Reason | None:  # noqa: C901, PLR0911 - in order
        for slot, known in callers:
            raw = values[slot]
            if raw is None or raw == "":
                continue
            caller = known(raw)
            if caller is None:
                return "bad-caller"
            break
        else:
            return "bad-caller"
        moment = time_of(values, kafka_ms)
        if moment is None:
            return None
        second, ms = moment
        if second is None:
            return "bad-time"
        amounts = amounts_of(values)
        if isinstance(amounts, str):
            return amounts
        denied = bool(denied_if)
        for slot, holds in denied_if:
            if (held := holds(values[slot])) is None:
                return "bad-field"
            denied = denied and held
        key: Key = (caller, second - second % width_s)
        for slot, text_of in texts:
            if (text := text_of(values[slot])) is None:
                return "bad-field"
            key += (text,)
        if kafka_ms is not None and not kafka_ms - past_ms <= ms <= kafka_ms + future_ms:
            return "future" if ms > kafka_ms else "past"
        return key, denied, amounts

    return judge


Moment = tuple[int | None, int]  # second (None: no time at all), and the same in milliseconds
BAD_TIME: Moment = (None, 0)


def _time_for(mapping: Mapping, slots: Slots) -> Callable[[Sequence[Any], int | None], Moment | None]:
    """From values and Kafka time to the moment; None when only the exact digits can tell."""
    if mapping.time is None:
        return lambda _values, kafka_ms: BAD_TIME if kafka_ms is None else (kafka_ms // 1000, kafka_ms)
    slot, unit = slots.of(mapping.time.path), mapping.time.unit
    if unit in ("rfc3339", "clf"):
        ms_of = rfc3339_ms if unit == "rfc3339" else clf_ms

        def written(values: Sequence[Any], _kafka_ms: int | None) -> Moment:
            raw = values[slot]
            ms = ms_of(raw) if type(raw) is str else None
            return BAD_TIME if ms is None else (ms // 1000, ms)

        return written
    per_second = PER_SECOND[unit]

    def counted(values: Sequence[Any], kafka_ms: int | None) -> Moment | None:
        raw = values[slot]
        if type(raw) is int:
            ms = raw * 1000 // per_second
            return (
                (raw // per_second, ms)
                if INT64_MIN <= raw <= INT64_MAX and abs(ms) <= INT64_MAX
                else BAD_TIME
            )
        if type(raw) is float:
            return _float_moment(raw / per_second, kafka_ms, mapping)
        if isinstance(raw, str) and type(raw) is not str:  # a number that is no 64-bit integer: its digits
            ms_ = floored(raw, PLACES[unit] + 3)
            return BAD_TIME if ms_ is None or abs(ms_) > INT64_MAX else (ms_ // 1000, ms_)
        return BAD_TIME

    return counted


def _float_moment(seconds: float, kafka_ms: int | None, mapping: Mapping) -> Moment | None:
    """The moment by the nearest float, where that cannot differ from what the digits say."""
    if not -FLOAT_S_MAX < seconds < FLOAT_S_MAX:
        return None
    second = int(seconds // 1)
    part = seconds - second
    if not SURE < part < 1 - SURE:
        return None
    ms = second * 1000 + int(part * 1000)
    if kafka_ms is not None and min(
        abs(ms - kafka_ms - mapping.future_ms_max), abs(ms - kafka_ms + mapping.past_ms_max)
    ) <= 2:  # fmt: skip
        return None
    return second, ms


def _caller_for(mapping: Mapping, name: str, slots: Slots) -> tuple[int, Name]:
    field = mapping.fields[name]
    prefix6 = field.prefix6 if isinstance(field, AddressField) else None
    return slots.of(field.path), name_for(name, prefix6, mapping.name_bytes_max)


def _text_for(mapping: Mapping, name: str, slots: Slots) -> tuple[int, Name]:
    field = mapping.fields.get(name)
    if field is None:  # this source does not know it: all its requests count under ""
        return slots.of(mapping.fields[mapping.caller[0]].path), lambda _raw: ""
    return slots.of(field.path), text_for(field, mapping.name_bytes_max)


def _conditions_for(
    mapping: Mapping, conditions: Sequence[tuple[str, tuple[str, ...]]], slots: Slots
) -> list[tuple[int, Condition]]:
    return [_condition_for(mapping, name, wanted, slots) for name, wanted in conditions]


def _condition_for(mapping: Mapping, name: str, wanted: Sequence[str], slots: Slots) -> tuple[int, Condition]:
    field = mapping.fields.get(name)
    if field is None:  # this source does not know it: a meter that asks for it counts none of its requests
        return slots.of(mapping.fields[mapping.caller[0]].path), lambda _raw: False
    return slots.of(field.path), condition_for(wanted)


def _amounts_for(
    mapping: Mapping, meters: Sequence[Meter], slots: Slots
) -> Callable[[Sequence[Any]], Sequence[int | None] | Reason]:
    """From values to how much each meter grows: None where its conditions do not hold."""
    if not meters:
        return lambda _values: ()
    rules = [
        (
            _number_for(mapping, meter, slots),
            _conditions_for(mapping, meter.where, slots),
        )
        for meter in meters
    ]

    def amounts(values: Sequence[Any]) -> Sequence[int | None] | Reason:
        found: list[int | None] = []
        for amount_of, where in rules:
            amount = amount_of(values)
            if amount is None:
                return "bad-number"
            for slot, holds in where:
                if (held := holds(values[slot])) is None:
                    return "bad-field"
                if not held:
                    found.append(None)
                    break
            else:
                found.append(amount)
        return found

    return amounts


def _number_for(mapping: Mapping, meter: Meter, slots: Slots) -> Callable[[Sequence[Any]], int | None]:
    if meter.field is None:
        return lambda _values: 1
    field = mapping.fields.get(meter.field)
    if not isinstance(field, NumberField):  # another source's number
        return lambda _values: 0
    default = field.default
    if field.kind == "whole":
        slot = slots.of(field.path)

        def whole(values: Sequence[Any]) -> int | None:
            raw = values[slot]
            if raw is None:
                return default
            return raw if type(raw) is int and 0 <= raw <= VALUE_MAX else None

        return whole
    slot = slots.of(field.path, digits=True)
    places = 6 if field.kind == "decimal" else PLACES[field.unit] + 6

    def decimal(values: Sequence[Any]) -> int | None:
        raw = values[slot]
        if raw is None:
            return default
        number = scaled(raw, places) if isinstance(raw, str) else None
        return number if number is not None and 0 <= number <= VALUE_MAX and raw[0] != "-" else None

    return decimal
