"""Checks of `[[groupings]]`, and of the groupings that other tables name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.parsed_tables import ParsedTables, map_it
from analyzer.config.tables.named_values import GroupingTable, is_defined, unknown_grouping
from analyzer.config.tables.sources import SourceTable
from analyzer.kernel.refused_values import quote
from analyzer.plan.groupings import CALLER, COUNTED, parse_grouping, with_value_fields

NOT_TEXT = ("time", "address", "resource")


def grouping_faults(tables: ParsedTables) -> Iterator[KeyFault]:
    """Yields the faults of `[[groupings]]`, and of groupings in `[[sources]]` and `[billing]`."""
    for index, grouping in tables.groupings.items():
        yield from _definition(("groupings", index), grouping, tables)
    for index, source in tables.sources.items():
        for place, name in enumerate(source.groupings):
            yield from undefined_faults(("sources", index, "groupings", place), name, tables)
            yield from _unmapped(("sources", index, "groupings"), name, source, tables)
    for place, name in enumerate(tables.billing.groupings):
        yield from undefined_faults(("billing", "groupings", place), name, tables)


def undefined_faults(
    path: KeyPath, name: str, tables: ParsedTables, names: Sequence[str] = COUNTED
) -> Iterator[KeyFault]:
    """Yields a fault if the grouping is by a named value that no table defines; `names` are offered."""
    if is_defined(name, tables.named_values):
        return
    cure = unknown_grouping(name, tables.named_values, names)
    if not cure.startswith("did you mean"):
        cure += "; or define it in [[groupings]]"
    yield KeyFault(path, f"{quote(name)} is not a grouping", cure)


def unmapped_fields(name: str, source: SourceTable, tables: ParsedTables) -> list[str]:
    """Returns the fields that a grouping needs and a source does not map; none where it is not defined."""
    if not is_defined(name, tables.named_values):
        return []
    grouping = with_value_fields(parse_grouping(name), tables.named_values)
    return [
        dimension.field
        for dimension in grouping.dimensions
        if dimension != CALLER and dimension.field not in source.fields.names
    ]


def _unmapped(path: KeyPath, name: str, source: SourceTable, tables: ParsedTables) -> Iterator[KeyFault]:
    for field in unmapped_fields(name, source, tables):
        yield KeyFault(path, f"{quote(name)} needs the field {field}", map_it(field))


def _definition(path: KeyPath, grouping: GroupingTable, tables: ParsedTables) -> Iterator[KeyFault]:
    sources, name = tables.sources.values(), grouping.field
    entries = [source.fields.plain[name] for source in sources if name in source.fields.plain]
    is_number = any(entry.is_declared_number for entry in entries) or name in tables.metered
    if name in NOT_TEXT or is_number or any(name in source.weights for source in sources):
        yield KeyFault((*path, "field"), f"{quote(name)} is not text", "name a text field")
    elif any(entry.digest is not None for entry in entries):
        problem = f"{quote(name)} is counted by its digest, and gates are asked by the text"
        yield KeyFault((*path, "field"), problem, "name another field, or remove its digest")
    elif sources and not entries:
        names = {field for source in sources for field in source.fields.names}
        yield KeyFault((*path, "field"), f"no field is named {quote(name)}", map_it(name, names))
