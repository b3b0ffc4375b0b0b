"""Strict RFC 8259, for the documents that the fast decoder refuses.

The fast decoder refuses more than the standard does (halves of surrogate pairs, deep nesting, a value of
another type than expected), which must not decide whether a request is counted. Here numbers keep their
digits, the last of equal keys wins, and the depth of nesting is not limited: where the standard library's
recursive reader raises RecursionError, one without recursion reads the text.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # exported, but not in the stubs

from analyzer.plan.decimals import DIGITS_MAX

SPACE = re.compile(r"[ \t\n\r]*+")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
LITERALS: tuple[tuple[str, bool | None], ...] = (("true", True), ("false", False), ("null", None))
ARRAY = object()  # stands for an array: no field is inside one

# str, bool, None, dict, a list or ARRAY; int, or bytes for a number that is not whole or too long
JsonValue = object


class NotJsonError(ValueError):
    """The text is not a JSON object."""


def read(text: str) -> dict[str, JsonValue]:
    """Returns the object that `text` is. Raises NotJsonError."""
    try:
        try:
            document = DECODER.decode(text)
        except RecursionError:
            document = read_without_recursion(text)
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    if not isinstance(document, dict):
        raise NotJsonError("expected an object")
    return document


def _number(digits: str) -> JsonValue:
    """Returns a whole number of at most `DIGITS_MAX` characters as int, any other as its digits."""
    is_whole = len(digits) <= DIGITS_MAX and digits.lstrip("-").isdecimal()
    return int(digits) if is_whole else digits.encode()


def _refuse_constant(name: str) -> JsonValue:
    raise NotJsonError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_refuse_constant)


def read_without_recursion(text: str) -> dict[str, JsonValue]:
    """Returns the object that `text` is; four times slower than the recursive reader. Raises ValueError."""
    return _IterativeReader(text).document()


class _IterativeReader:
    """One pass over a text with an explicit stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> dict[str, JsonValue]:
        top: dict[str, JsonValue] = {}
        self._expect("{")
        stack: list[dict[str, JsonValue] | None] = [top]  # the open objects; None for an array
        first = True
        while stack:
            parent = stack[-1]
            if self._takes("]" if parent is None else "}"):
                stack.pop()
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
                stack.append(value if isinstance(value, dict) else None)
        self._skip_space()
        if self._at != len(self._text):
            raise NotJsonError("expected the end")
        return top

    def _value(self) -> JsonValue:
        """Reads a scalar, or the opening bracket of an object or array."""
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
        matches = self._text.startswith(token, self._at)
        self._at += matches * len(token)
        return matches

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise NotJsonError(f"expected {token}")

    def _skip_space(self) -> None:
        self._at = SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # also matches nothing
