"""The log formats by name.

A new format is an entry here, a module, a section in docs/spec/counter.md and tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from analyzer.counting.records import combined_format
from analyzer.counting.records.envelopes import UnwrappingDecoder
from analyzer.counting.records.json_format import JsonFormat
from analyzer.plan.format_decoder import FormatDecoder
from analyzer.plan.mapping import CALLER_FIELDS, Field, FieldPath, SourceMapping, TimeField


class RecordFormat(NamedTuple):
    """One log format: its decoder, and the fields that a source has without mapping any."""

    decoder: Callable[[Sequence[FieldPath]], FormatDecoder]
    parts: tuple[str, ...] = ()  # the only paths there are; empty: any
    fields: Mapping[str, Field] = {}  # of a mapping without fields
    time: TimeField | None = None
    table: Mapping[str, Any] = {}  # defaults of [sources.fields], as TOML would have them
    caller: tuple[str, ...] = CALLER_FIELDS  # tried in this order unless a source says otherwise


COMBINED = RecordFormat(
    combined_format.CombinedFormat,
    parts=combined_format.PARTS,
    fields=combined_format.FIELDS,
    time=combined_format.TIME,
    table=combined_format.TABLE,
    caller=("address",),
)

FORMATS: Mapping[str, RecordFormat] = {
    "json": RecordFormat(JsonFormat),
    "combined": COMBINED,
    "vhost_combined": COMBINED,  # recognised line by line, so this is a second name
}


def make_decoder(mapping: SourceMapping, paths: Sequence[FieldPath]) -> FormatDecoder:
    """Returns the decoder of a source's records. Raises KeyError for an unknown format."""
    decoder = FORMATS[mapping.format].decoder(paths)
    return UnwrappingDecoder(mapping.envelopes, decoder) if mapping.envelopes else decoder


def with_default_fields(mapping: SourceMapping) -> SourceMapping:
    """Returns `mapping`, with the callers of its format, and its fields where it maps none."""
    log_format = FORMATS[mapping.format]
    mapping = replace(mapping, caller=mapping.caller or log_format.caller)
    if mapping.fields or not log_format.fields:
        return mapping
    return replace(mapping, fields=dict(log_format.fields), time=mapping.time or log_format.time)
