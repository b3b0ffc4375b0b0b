"""What is wrong with a configuration: faults are values, each with its place and its cure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.kafka_options.names import ours
from analyzer.config.values import quoted
from analyzer.errors import AnalyzerError


class KeyFault(NamedTuple):
    """What is wrong at one key, before it is known where that key was written."""

    at: KeyPath
    what: str
    cure: str


class OptionFault(Exception):
    """Of one value: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One thing that is wrong, where, and what to do about it. Never holds a secret's value."""

    file: str  # a path, or "environment" with the variable's name
    line: int | None
    where: str  # the key, in the file's own words: [[policies]] "daily", window.zone
    what: str
    cure: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.where}: {self.what}\n    {self.cure}"


class ConfigInvalid(AnalyzerError):
    """The configuration cannot be used; `faults` says everything that is wrong with it."""

    def __init__(self, faults: Iterable[ConfigFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class ValueOrigins(NamedTuple):
    """Where values came from: what the environment and secret files set, and the file's lines."""

    file: str
    lines: Mapping[KeyPath, int]
    elsewhere: Mapping[KeyPath, str]  # ("kafka", "group_id"): "environment GATELOCK_KAFKA__GROUP_ID"

    def written(self, at: KeyPath) -> KeyPath:
        """Where the key stands that we call so: of Kafka's, others have other names."""
        if at[:1] != ("kafka",) or at in self.elsewhere or at in self.lines:
            return at
        name = ours(map(str, at[1:]))
        for paths in (self.elsewhere, self.lines):
            theirs = [path for path in paths if path[:1] == at[:1] and ours(map(str, path[1:])) == name]
            if theirs:
                return max(theirs, key=len)  # not the tables that a name with dots goes through
        return at

    def place(self, at: KeyPath) -> tuple[str, int | None]:
        """The file and line of the key, or of the nearest table around it."""
        for length in range(len(at), 0, -1):
            if at[:length] in self.elsewhere:
                return self.elsewhere[at[:length]], None
            if at[:length] in self.lines:
                return self.file, self.lines[at[:length]]
        return self.file, None


def placed(complaint: KeyFault, origins: ValueOrigins, document: Mapping[str, object]) -> ConfigFault:
    at = origins.written(complaint.at)
    file, line = origins.place(at)
    return ConfigFault(file, line, where(at, document), complaint.what, complaint.cure)


def where(at: KeyPath, document: Mapping[str, object]) -> str:
    """The key in the words of a TOML file: `[kafka] group_id`, `[[policies]] "daily", window.zone`."""
    match at:
        case (str(table), int(index), *rest):
            item = _item(document.get(table), index)
            names = [item[key] for key in ("name", "topic", "file") if isinstance(item.get(key), str)]
            called = quoted(names[0]) if names else f"no. {index + 1}"
            return ", ".join(filter(None, (f"[[{table}]] {called}", _dotted(rest))))
        case (str(table), _, *_):
            return f"[{table}] {_dotted(at[1:])}"
        case _:
            return _dotted(at) or "the file"


def _item(items: object, index: int) -> Mapping[str, object]:
    item = items[index] if isinstance(items, (list, tuple)) and index < len(items) else {}
    return item if isinstance(item, dict) else {}


def _dotted(at: Iterable[str | int]) -> str:
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{_key(part)}" if text else _key(part)
    return text


def _key(name: str) -> str:
    return name if name.replace("-", "_").isidentifier() else quoted(name)
