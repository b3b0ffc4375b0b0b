"""Strict RFC 8259, slow and exact: who is asked whenever the fast decoder refuses a document.

The fast one refuses more than the standard does (halves of surrogate pairs, 1e999, deep nesting), which must
not decide whether a request is counted. Numbers keep their digits; the last of equal keys wins; nesting is as
deep as the text is long.
"""

from __future__ import annotations

import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # exported, but not in the stubs

SPACE = re.compile(r"[ \t\n\r]*+")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
LITERALS: tuple[tuple[str, bool | None], ...] = (("true", True), ("false", False), ("null", None))
ARRAY = object()  # what stands for any array: no field is in one


class Number(str):
    """A number as it was written."""

    __slots__ = ()


Value = object  # str, Number, bool, None, dict[str, Value], or ARRAY


def read(text: str) -> dict[str, Value]:
    """The object that `text` is. Raises ValueError when it is none, or no JSON."""
    at = _space(text, 0)
    if not text.startswith("{", at):
        raise ValueError("expected an object")
    stack: list[dict[str, Value] | None] = []  # objects and (None) arrays that are open
    keys: list[str] = []  # of each open object, the key that waits for its value
    top: dict[str, Value] = {}
    wants_value = True
    while True:
        if wants_value:
            value, at, opened = _begin(text, at)
            if opened:
                stack.append(value if isinstance(value, dict) else None)
                if len(stack) == 1 and isinstance(value, dict):
                    top = value
                else:
                    _store(stack[-2], keys, value)
                at, wants_value = _enter(text, at, stack, keys)
            else:
                _store(stack[-1], keys, value)
                at, wants_value = _space(text, at), False
        else:
            at, wants_value = _leave_or_go_on(text, at, stack, keys)
            if not stack:
                if at != len(text):
                    raise ValueError("expected the end")
                return top


def _store(parent: dict[str, Value] | None, keys: list[str], value: Value) -> None:
    if parent is not None:
        parent[keys[-1]] = value


def _begin(text: str, at: int) -> tuple[Value, int, bool]:
    """The value that begins at `at`, where it ends, and whether it is one that contains others."""
    head = text[at : at + 1]
    if head == '"':
        value, at = scanstring(text, at + 1, True)
        return value, at, False
    if head == "{":
        return {}, at + 1, True
    if head == "[":
        return ARRAY, at + 1, True
    for word, literal in LITERALS:
        if text.startswith(word, at):
            return literal, at + len(word), False
    number = NUMBER.match(text, at)
    if number is None:
        raise ValueError("expected a value")
    return Number(number.group()), number.end(), False


def _enter(text: str, at: int, stack: list[dict[str, Value] | None], keys: list[str]) -> tuple[int, bool]:
    """After an opening bracket: the first value, or the end of an empty one."""
    at = _space(text, at)
    if stack[-1] is None:
        return at, not text.startswith("]", at)
    keys.append("")
    if text.startswith("}", at):
        return at, False
    return _key(text, at, keys), True


def _leave_or_go_on(
    text: str, at: int, stack: list[dict[str, Value] | None], keys: list[str]
) -> tuple[int, bool]:
    """After a value: a comma and the next one, or the end of what contains it."""
    inside = stack[-1]
    head = text[at : at + 1]
    if head == ("]" if inside is None else "}"):
        stack.pop()
        if inside is not None:
            keys.pop()
        return _space(text, at + 1), False
    if head != ",":
        raise ValueError("expected a comma or the end")
    at = _space(text, at + 1)
    return (at, True) if inside is None else (_key(text, at, keys), True)


def _key(text: str, at: int, keys: list[str]) -> int:
    if not text.startswith('"', at):
        raise ValueError("expected a key")
    keys[-1], at = scanstring(text, at + 1, True)
    at = _space(text, at)
    if not text.startswith(":", at):
        raise ValueError("expected a colon")
    return _space(text, at + 1)


def _space(text: str, at: int) -> int:
    return SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing as well
