"""Tables of a configuration that no file has: of sources and policies that a command makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from analyzer.config.diagnostics.pydantic_errors import translate_errors
from analyzer.config.tables.policies import SurgeTable
from analyzer.config.tables.sources import SourceTable
from analyzer.plan.mapping import SourceMapping
from analyzer.plan.policies import Surge


class TableInvalid(Exception):
    """A table has a fault: `key` of the table, and the sentence that says what is wrong and what to write."""

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(sentence)
        self.key = key


def parse_mapping(source: Mapping[str, Any]) -> SourceMapping:
    """Returns the mapping of [[sources]] of a file; a field `bytes` is a number."""
    table = SourceTable.model_validate({"file": "access.log", **source})
    return table.mapping(frozenset({"bytes"}), None)


def parse_surge(table: Mapping[str, Any]) -> Surge:
    """Returns the surge of [[policies]]. Raises TableInvalid."""
    try:
        return SurgeTable.model_validate(table).policy()
    except ValidationError as error:
        fault = translate_errors(error).faults[0]
        raise TableInvalid(str(fault.at[0]), f"{fault.what}; {fault.cure}") from error
