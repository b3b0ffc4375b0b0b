"""Reasons of rejected records as sentences: what the mapping expects, and what a record has instead."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from analyzer.counting.records.columns import ColumnIndex, NumberColumn, WeightColumn
from analyzer.counting.records.envelopes import unwrapped
from analyzer.counting.records.formats import FORMATS, make_decoder
from analyzer.counting.records.sample_texts import HIDDEN
from analyzer.plan.mapping import NumberField
from analyzer.plan.timestamps import rfc3339_ms
from analyzer.plan.value_rules import as_text

if TYPE_CHECKING:
    from analyzer.plan.mapping import FieldPath, SourceMapping

# What the mapping expects where a record was rejected for this reason.
EXPECTED = {
    "tombstone": "a value; this record has none",
    "too-large": "a value of at most {value_bytes_max:,} bytes",
    "bad-utf8": "a document of the format {format} in UTF-8",
    "bad-json": "one JSON object{in_envelope}",
    "bad-line": "a line of the format {format}{in_envelope}",
    "bad-caller": "a caller: text in at least one of {caller}",
    "bad-time": "a time between 1970 and 9997, in {time}",
    "bad-number": "numbers from 0 to 2^53, in {numbers}",
    "bad-field": "text, a whole number or a boolean, in {texts}",
    "future": "a time at most {future_ms_max:,} ms ahead of the record's Kafka time, in {time}",
    "past": "a time at most {past_ms_max:,} ms behind the record's Kafka time, in {time}",
}
SHOWN_CHARS = 60  # of a value of a record
LIMITS = ("value_bytes_max", "future_ms_max", "past_ms_max")  # of a mapping
UNITS_BY_DIGITS = {10: "s", 13: "ms", 16: "us", 19: "ns"}  # of a present time since 1970


def expected(reason: str, source: str, mapping: SourceMapping | None) -> str:
    """A phrase for what today's mapping expects where a record of `source` was rejected."""
    if mapping is None:
        return f"a source named {source}; the configuration has none"
    paths = {name: ".".join(field.path) for name, field in mapping.fields.items()}
    limits = {name: getattr(mapping, name) for name in LIMITS}
    time = (
        "its Kafka time" if mapping.time is None else f"{'.'.join(mapping.time.path)} ({mapping.time.unit})"
    )
    callers = " or ".join(f"{paths.get(name, name)} ({name})" for name in mapping.caller)
    numbers, texts = (
        " or ".join(f"{paths[name]} ({name})" for name in mapping.fields if _is_number(mapping, name) is kind)
        for kind in (True, False)
    )
    return EXPECTED[reason].format(
        **limits,
        format=mapping.format,
        in_envelope=_in_envelope(mapping),
        time=time,
        caller=callers,
        numbers=numbers or "no field",
        texts=texts or "no field",
    )


def _in_envelope(mapping: SourceMapping) -> str:
    return f" in the envelope {', '.join(mapping.envelopes)}" if mapping.envelopes else ""


def advice(reason: str, sample: bytes, mapping: SourceMapping | None) -> str:
    """A sentence on what the record has instead and what to write; "" where the sample does not show it."""
    if mapping is None or sample in HIDDEN:
        return ""
    match reason:
        case "bad-caller":
            return "; ".join(_about_callers(sample, mapping))
        case "bad-time" | "future" | "past" if mapping.time is not None:
            (raw,) = _values(sample, mapping, [mapping.time.path])
            return _about_time(raw, ".".join(mapping.time.path), mapping.time.unit)
        case "bad-number" | "bad-field":
            return "; ".join(_about_fields(reason, sample, mapping))
        case _:
            return ""


def _values(sample: bytes, mapping: SourceMapping, paths: Sequence[FieldPath]) -> list[Any]:
    """The values of a record at these paths; None where it has none."""
    columns, _ = make_decoder(mapping, paths).read([sample])
    return [column[0] for column in columns]


def _about_callers(sample: bytes, mapping: SourceMapping) -> Iterator[str]:
    fields = {name: mapping.fields[name] for name in mapping.caller if name in mapping.fields}
    values = _values(sample, mapping, [field.path for field in fields.values()])
    for field, raw in zip(fields.values(), values, strict=True):
        path = ".".join(field.path)
        if raw is None or raw == "":
            has_any_path = not FORMATS[mapping.format].parts
            sentence = _elsewhere(sample, mapping, field.path[-1]) if has_any_path else ""
            yield f"the record has no {path}" + (f"; did you mean {sentence}?" if sentence else "")
        elif not isinstance(raw, str):
            yield f"{path} is a number or a table; names are text"


def _is_number(mapping: SourceMapping, name: str) -> bool:

    return isinstance(mapping.fields[name], NumberField)


def _about_fields(reason: str, sample: bytes, mapping: SourceMapping) -> Iterator[str]:
    """Yields what the fields have that reject a record: numbers that cannot be read, or what is not text."""
    is_number = reason == "bad-number"
    names = [name for name in mapping.fields if _is_number(mapping, name) is is_number]
    values = _values(sample, mapping, [mapping.fields[name].path for name in names])
    for name, raw in zip(names, values, strict=True):
        path = ".".join(mapping.fields[name].path)
        if not is_number:
            is_bad = as_text(raw) is None
        elif name == mapping.weight:
            is_bad = WeightColumn(mapping, ColumnIndex()).read([[raw]]) == [None]
        else:
            is_bad = NumberColumn(mapping, name, ColumnIndex()).read([[raw]]) == [None]
        if is_bad:
            yield f"the record has no {path}" if raw is None else f"{path} is {_shown(raw)}"


def _shown(raw: object) -> str:
    """Returns a value of a record for a sentence, cut."""
    text = raw.decode() if isinstance(raw, bytes) else json.dumps(raw, default=lambda _: "a list or a table")
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def _about_time(raw: object, path: str, unit: str) -> str:

    if raw is None:
        return f"the record has no {path}"
    digits = str(raw).partition(".")[0]
    likely = UNITS_BY_DIGITS.get(len(digits)) if digits.isdecimal() else None
    if likely is not None and likely != unit:
        return f'{path} is {digits}; did you mean unit = "{likely}"?'
    if unit == "rfc3339" and isinstance(raw, str) and rfc3339_ms(raw, UTC) is not None:
        return f'{path} is {_shown(raw)}, which names no zone: write the zone of the log, zone = "UTC"'
    return f"{path} is {_shown(raw)}"


def _elsewhere(sample: bytes, mapping: SourceMapping, key: str) -> str:
    """The path of text under this key in another object of a JSON record; "" if there is none."""
    try:
        document = json.loads(unwrapped([sample], mapping.envelopes)[0])
    except (ValueError, RecursionError):
        return ""
    return next(iter(_paths_to(document, key)), "")


def _paths_to(document: object, key: str, above: str = "", depth: int = 4) -> Iterator[str]:
    if not isinstance(document, Mapping) or not depth:
        return
    for name, value in document.items():
        if name == key and isinstance(value, str) and value:
            yield above + name
        yield from _paths_to(value, key, f"{above}{name}.", depth - 1)
