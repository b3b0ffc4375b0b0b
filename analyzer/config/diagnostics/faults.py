"""Faults of a configuration as values: the place, what is wrong, and the cure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.refused_values import quote


class KeyFault(NamedTuple):
    """A fault at one key, before the file and line of that key are looked up."""

    at: KeyPath
    what: str
    cure: str
    cure_of_variable: str | None = None  # if the value comes from the environment; None: the same


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """A fault with its place in the words of the file. Never holds a secret's value."""

    file: str  # a path, "environment" or "secret file" with the name, or "no file"
    line: int | None
    where: str  # the key: [[policies]] "daily", window.zone
    what: str
    cure: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.where}: {self.what}\n    {self.cure}"


class ConfigInvalid(AnalyzerError):
    """The configuration cannot be used; `faults` are all that it has."""

    def __init__(self, faults: Iterable[ConfigFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class ValueOrigins(NamedTuple):
    """Origins of the values: lines of the file, and the variables and secret files that override them."""

    file: str
    lines: Mapping[KeyPath, int]
    overrides: Mapping[KeyPath, str]  # ("kafka", "group_id"): "environment GATELOCK_KAFKA__GROUP_ID"

    def place(self, key: KeyPath) -> tuple[str, int | None]:
        """The file and line of the key, or of the nearest table around it.

        A variable that sets a list of tables replaces the list of the file, whose lines do not matter then.
        """
        if key[:1] in self.overrides and len(key) > 1 and isinstance(key[1], int):
            return self.overrides[key[:1]], None
        for length in range(len(key), 0, -1):
            if key[:length] in self.overrides:
                return self.overrides[key[:length]], None
            if key[:length] in self.lines:
                return self.file, self.lines[key[:length]]
        return self.file, None


def locate(fault: KeyFault, origins: ValueOrigins, document: Mapping[str, object]) -> ConfigFault:
    """The fault with its file and line."""
    file, line = origins.place(fault.at)
    cure = fault.cure_of_variable if fault.at in origins.overrides and fault.cure_of_variable else fault.cure
    return ConfigFault(file, line, display_path(fault.at, document), fault.what, cure)


def display_path(path: KeyPath, document: Mapping[str, object]) -> str:
    """The key as a TOML file writes it: `[kafka] group_id`, `[[policies]] "daily", window.zone`."""
    match path:
        case (str(table), int(index), *rest):
            item = _item(document.get(table), index)
            names = [item[key] for key in ("name", "topic", "file") if isinstance(item.get(key), str)]
            title = quote(names[0]) if names else f"no. {index + 1}"
            return ", ".join(filter(None, (f"[[{table}]] {title}", _dotted(rest))))
        case (str(table), _, *_):
            return f"[{table}] {_dotted(path[1:])}"
        case _:
            return _dotted(path) or "the file"


def _item(items: object, index: int) -> Mapping[str, object]:
    item = items[index] if isinstance(items, (list, tuple)) and index < len(items) else {}
    return item if isinstance(item, dict) else {}


def _dotted(path: Iterable[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{_key(part)}" if text else _key(part)
    return text


def _key(name: str) -> str:
    return name if name.replace("-", "_").isidentifier() else quote(name)
