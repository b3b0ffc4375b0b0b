"""Line numbers of the keys in a TOML text, which `tomllib` does not keep.

`tomllib` has accepted the text before it comes here, so the scanner only has to find where keys, tables and
array elements begin and where values end; it need not check anything.
"""

from __future__ import annotations

import re
import tomllib

KeyPath = tuple[str | int, ...]  # ("policies", 0, "window", "zone")

# Longest first. The content of a multi-line string may end in one or two quotation marks.
STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' r"|'''.*?'''(?:'{0,2})" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'", re.DOTALL
)
BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
SCALAR = re.compile(r"[^,\]}\n#]*")  # dates, numbers and booleans; STRING is tried first
BARE = re.compile(r"[^\"'=\]]+")


def key_lines(text: str) -> dict[KeyPath, int]:
    r"""The line, counted from 1, of every key, table and array element in `text`.

    `text` must be valid TOML. A table that is opened several times has the line of its first opening;
    array elements have their index as the last part of the path.

    >>> key_lines("[kafka]\ngroup_id = 'x'")[("kafka", "group_id")]
    2
    """
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class _Scanner:
    """Passes over the text once and notes the line of each path."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.line = 1
        self.counted_to = 0  # the position that `line` belongs to
        self.last: dict[KeyPath, int] = {}  # of each [[array of tables]], the index of its last element

    def document(self) -> None:
        table: KeyPath = ()
        self.skip(BLANK)
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self.header("[[")
            elif self.text.startswith("[", self.at):
                table = self.header("[")
            else:
                self.pair(table)
            self.skip(BLANK)

    def header(self, opening: str) -> KeyPath:
        self.at += len(opening)
        names = self.key()
        self.at += len(opening)
        path: KeyPath = ()
        for name in names[:-1]:
            path = self.inside((*path, name))
        path = (*path, names[-1])
        if opening == "[[":
            self.note(path)
            self.last[path] = self.last.get(path, -1) + 1
        path = self.inside(path)
        self.note(path)
        return path

    def inside(self, path: KeyPath) -> KeyPath:
        """The table that a header with `path` opens: in an array of tables, its last element."""
        self.note(path)
        return (*path, self.last[path]) if path in self.last else path

    def pair(self, table: KeyPath) -> None:
        path = table
        for name in self.key():
            path = (*path, name)
            self.note(path)
        self.at += 1  # the equals sign
        self.skip(BLANK)
        self.value(path)

    def value(self, path: KeyPath) -> None:
        match self.text[self.at]:
            case "[":
                self.items(path, "]")
            case "{":
                self.items(path, "}")
            case _:
                self.skip(STRING) or self.skip(SCALAR)

    def items(self, path: KeyPath, closing: str) -> None:
        self.at += 1
        index = 0
        while True:
            self.skip(BLANK)
            if self.text[self.at] == closing:
                break
            if closing == "}":
                self.pair(path)
            else:
                self.note((*path, index))
                self.value((*path, index))
            index += 1
            self.skip(BLANK)
            if self.text[self.at] == ",":
                self.at += 1
        self.at += 1

    def key(self) -> list[str]:
        """Reads a dotted key up to its equals sign or bracket, and returns its names."""
        start = self.at
        while self.text[self.at] not in "=]":
            self.skip(STRING) or self.skip(BARE)
        names: list[str] = []
        value: object = tomllib.loads(f"{self.text[start : self.at]} = 0")
        while isinstance(value, dict):
            ((name, value),) = value.items()
            names.append(name)
        return names

    def note(self, path: KeyPath) -> None:
        self.line += self.text.count("\n", self.counted_to, self.at)
        self.counted_to = self.at
        self.lines.setdefault(path, self.line)

    def skip(self, pattern: re.Pattern[str]) -> bool:
        """Moves past `pattern` if it matches here; returns whether it did."""
        match = pattern.match(self.text, self.at)
        if match is None:
            return False
        self.at = match.end()
        return True
