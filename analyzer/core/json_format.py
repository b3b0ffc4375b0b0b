"""JSON documents: the values at some paths, by msgspec where it can and by the exact reader where it must."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from analyzer.core import exact_json
from analyzer.core.exact_json import Number
from analyzer.core.mapping import Path

Values = tuple[Any, ...]  # one for each path: str, int, float, bool, None, text of a number, or of no use
NO_TEXT = "\x00"  # what stands for a value that is no number where digits are wanted

INTEGER_DIGITS_MAX = 20


class JsonFormat:
    """Reads the values at `paths`. Those in `digits` are given as they are written, numbers only."""

    def __init__(self, paths: Sequence[Path], digits: frozenset[Path]) -> None:
        self._paths = tuple(paths)
        self._digits = digits
        self._fast = None if _overlap(paths) else _compile(paths, digits)

    def read(self, value: bytes, text: str | None) -> Values | None:
        """The values in `value`, which is known to be UTF-8 (`text`, or ASCII when None); None when it is no
        JSON object. Floats are the nearest ones: ask `exact` where a digit matters."""
        if self._fast is not None:
            try:
                return self._fast(value)
            except (msgspec.DecodeError, RecursionError):  # perhaps only beyond what msgspec takes
                pass
        return self.exact(value, text)

    def exact(self, value: bytes, text: str | None) -> Values | None:
        """The same from the digits: a number that is no 64-bit integer comes as its text."""
        try:
            document = exact_json.read(value.decode() if text is None else text)
        except ValueError:
            return None
        return tuple(self._given(path, document) for path in self._paths)

    def _given(self, path: Path, document: object) -> object:
        for key in path:
            if not isinstance(document, dict):
                return None
            document = document.get(key)
        if path in self._digits:
            return None if document is None else str(document) if isinstance(document, Number) else NO_TEXT
        if (
            isinstance(document, Number)
            and document.lstrip("-").isdigit()
            and len(document) <= INTEGER_DIGITS_MAX
        ):
            return int(document)
        return document


def _overlap(paths: Sequence[Path]) -> bool:
    """Whether one path leads through another: msgspec has one type for each place."""
    return any(a != b and b[: len(a)] == a for a in paths for b in paths)


def _compile(paths: Sequence[Path], digits: frozenset[Path]) -> Callable[[bytes], Values]:
    names = {path: tuple(f"f{n}" for n in range(len(path))) for path in paths}
    tree: dict[str, Any] = {}
    for path in paths:
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = path in digits
    struct, attributes = _struct(tree)
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(struct).decode
    dotted = [".".join(attributes[path[: n + 1]] for n in range(len(path))) for path in names]
    take: Callable[[Any], Any] = operator.attrgetter(*dotted, dotted[0])  # one more: always a tuple
    at_digits = [n for n, path in enumerate(paths) if path in digits]
    if not at_digits:
        return lambda value: take(decode(value))

    def read(value: bytes) -> Values:
        found = list(take(decode(value)))
        for n in at_digits:
            raw = found[n]
            found[n] = None if raw is None or raw == b"null" else bytes(raw).decode()
        return tuple(found)

    return read


def _struct(tree: dict[str, Any], prefix: Path = ()) -> tuple[type, dict[Path, str]]:
    """A struct for one level of the tree, and the attribute of every path in it and below."""
    fields: list[tuple[str, Any, Any]] = []
    attributes: dict[Path, str] = {}
    rename: dict[str, str] = {}
    for n, (key, below) in enumerate(tree.items()):
        name = f"f{n}"
        rename[name] = key
        attributes[(*prefix, key)] = name
        if isinstance(below, dict):
            inner, further = _struct(below, (*prefix, key))
            attributes |= further
            fields.append((name, inner, msgspec.field(default_factory=inner)))
        else:
            fields.append((name, msgspec.Raw if below else Any, None))
    return msgspec.defstruct("Document", fields, rename=rename, gc=False), attributes
