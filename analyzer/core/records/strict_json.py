"""Strict RFC 8259: who is asked whenever the fast decoder refuses a document.

The fast one refuses more than the standard does (halves of surrogate pairs, deep nesting, a value of another
type than expected), which must not decide whether a request is counted. Numbers keep their digits; the last
of equal keys wins; nesting is as deep as the text is long: where the standard library's reader, which calls
itself for each level, gives up, one without recursion goes on.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # exported, but not in the stubs

from analyzer.core.records.decimals import DIGITS_MAX

SPACE = re.compile(r"[ \t\n\r]*+")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
LITERALS: tuple[tuple[str, bool | None], ...] = (("true", True), ("false", False), ("null", None))
ARRAY = object()  # what stands for an array: no field is in one

# str, bool, None, dict, a list or ARRAY; int, or bytes for a number that is not whole, or too long for use
JsonValue = object


class NotJsonError(ValueError):
    """It is no JSON object."""


def read(text: str) -> dict[str, JsonValue]:
    """The object that `text` is. Raises NotJsonError."""
    try:
        try:
            document = DECODER.decode(text)
        except RecursionError:
            document = deep_read(text)
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    if not isinstance(document, dict):
        raise NotJsonError("expected an object")
    return document


def _number(written: str) -> JsonValue:
    """A whole number, if it is of use; of others the digits."""
    whole = len(written) <= DIGITS_MAX and written.lstrip("-").isdecimal()
    return int(written) if whole else written.encode()


def _no_constant(name: str) -> JsonValue:
    raise NotJsonError(f"{name} is no number")


DECODER = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_no_constant)


def deep_read(text: str) -> dict[str, JsonValue]:
    """The same without recursion, four times as slow. Raises ValueError."""
    return _DeepReader(text).document()


class _DeepReader:
    """One pass over a text, without recursion."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> dict[str, JsonValue]:
        top: dict[str, JsonValue] = {}
        self._expect("{")
        inside: list[dict[str, JsonValue] | None] = [top]  # what is not closed yet; None for an array
        first = True
        while inside:
            parent = inside[-1]
            if self._takes("]" if parent is None else "}"):
                inside.pop()
                first = False
                continue
            if not first:
                self._expect(",")
            key = "" if parent is None else self._key()
            value = self._value()
            if parent is not None:
                parent[key] = value
            first = value is ARRAY or isinstance(value, dict)
            if first:
                inside.append(value if isinstance(value, dict) else None)
        self._skip_space()
        if self._at != len(self._text):
            raise NotJsonError("expected the end")
        return top

    def _value(self) -> JsonValue:
        """A scalar whole, or an object or array of which only the bracket is read."""
        if self._takes('"'):
            return self._string()
        if self._takes("{"):
            return {}
        if self._takes("["):
            return ARRAY
        for word, literal in LITERALS:
            if self._takes(word):
                return literal
        match = NUMBER.match(self._text, self._at)
        if match is None:
            raise NotJsonError("expected a value")
        self._at = match.end()
        return _number(match.group())

    def _key(self) -> str:
        self._expect('"')
        key = self._string()
        self._expect(":")
        return key

    def _string(self) -> str:
        string: str
        string, self._at = scanstring(self._text, self._at, True)
        return string

    def _takes(self, token: str) -> bool:
        self._skip_space()
        found = self._text.startswith(token, self._at)
        self._at += found * len(token)
        return found

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise NotJsonError(f"expected {token}")

    def _skip_space(self) -> None:
        self._at = SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches nothing as well
