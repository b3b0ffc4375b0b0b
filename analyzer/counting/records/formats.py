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
    """One log format: its decoder, and the fields that a source has without mapping any.

    Attributes:
        decoder: Makes the decoder by the paths of all fields.
        parts: The only paths there are; empty: any.
        fields: Of a mapping without fields.
        time: Of such a mapping.
        table: Defaults of [sources.fields], as TOML would have them.
        caller: Fields that are tried in this order for the caller unless a source says otherwise.
        has_claimed_users: Whether `user` is the name that a client gives, written before it is checked.
    """

    decoder: Callable[[Sequence[FieldPath]], FormatDecoder]
    parts: tuple[str, ...] = ()
    fields: Mapping[str, Field] = {}
    time: TimeField | None = None
    table: Mapping[str, Any] = {}
    caller: tuple[str, ...] = CALLER_FIELDS
    has_claimed_users: bool = False


COMBINED = RecordFormat(
    combined_format.CombinedFormat,
    parts=combined_format.PARTS,
    fields=combined_format.FIELDS,
    time=combined_format.TIME,
    table=combined_format.TABLE,
    caller=("address",),
    has_claimed_users=True,
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
