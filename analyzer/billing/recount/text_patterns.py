"""Patterns of conditions, by a second implementation: all places of a text at once, as the bits of a number.

Bit n stands for the place in front of character n. A part of a pattern takes the places where it may begin
to those where it may end: a set of characters is a mask and a shift, `|` joins the places of its branches.
No place is visited twice, so no expression is slow. (Cameron and others, "Bitwise data parallelism in
regular expression matching", 2014.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, reduce

SYMBOLS = re.compile(
    r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|[*+?]\??"
    r"|\{[0-9]+(?:,[0-9]*)?\}\??|.",
    re.DOTALL,
)
GLOB_SYMBOLS = re.compile(r"\*\*/|\*\*|\*|[^*]+")
ANSWERS_KEPT = 20_000
TEXT_KEPT_MAX = 400  # characters of a text whose answer is kept


class Places:
    """A text with the places of each of its characters."""

    def __init__(self, text: str) -> None:
        self.end = 1 << len(text)
        self._at: dict[str, int] = {}
        for index, character in enumerate(text):
            self._at[character] = self._at.get(character, 0) | (1 << index)

    def of(self, has: Callable[[str], bool]) -> int:
        """Returns the places of the characters that a set has."""
        return sum(places for character, places in self._at.items() if has(character))


# Takes a text and the places where it may begin to those where it may end.
PatternPart = Callable[[Places, int], int]


def pattern_holds(kind: str, pattern: str, text: str) -> bool:
    """Whether a text matches a pattern. Raises KeyError for an unknown kind, ValueError for a wrong pattern.

    >>> pattern_holds("glob", "/v1/**/x", "/v1/x?y"), pattern_holds("match", "(?i)a+$", "bAa")
    (True, True)
    """
    return _kept_answer(kind, pattern, text) if len(text) <= TEXT_KEPT_MAX else TESTS[kind](pattern, text)


@lru_cache(ANSWERS_KEPT)
def _kept_answer(kind: str, pattern: str, text: str) -> bool:
    return TESTS[kind](pattern, text)


def _prefix_holds(pattern: str, text: str) -> bool:
    return text.startswith(pattern)


def _glob_holds(pattern: str, text: str) -> bool:
    places = Places(re.split("[?#]", text, maxsplit=1)[0])
    return bool(_glob(pattern)(places, 1) & places.end)


def _expression_holds(pattern: str, text: str) -> bool:
    places = Places(text)
    return bool(_expression(pattern)(places, places.end * 2 - 1))


@cache
def _glob(pattern: str) -> PatternPart:
    any_text = _starred(lambda _character: True)
    star = _starred(lambda character: character != "/") if "/" in pattern else any_text
    segments = _either([_in_row([any_text, _one("/".__eq__)]), _in_row([])])
    parts = {"**/": segments, "**": any_text, "*": star}
    return _in_row([
        part
        for symbol in GLOB_SYMBOLS.findall(pattern)
        for part in ([parts[symbol]] if symbol in parts else [_one(letter.__eq__) for letter in symbol])
    ])  # fmt: skip


@cache
def _expression(pattern: str) -> PatternPart:
    flags = re.ASCII | re.DOTALL
    if pattern.startswith("(?i)"):
        pattern, flags = pattern[4:], flags | re.IGNORECASE
    symbols = SYMBOLS.findall(pattern)
    part = _branches(symbols, flags)
    if symbols:
        raise ValueError(f"{symbols[0]} closes nothing")
    return part


def _branches(symbols: list[str], flags: re.RegexFlag) -> PatternPart:
    """Takes the branches of an expression or a group off the symbols."""
    branches: list[list[PatternPart]] = [[]]
    while symbols and symbols[0] != ")":
        symbol = symbols.pop(0)
        if symbol == "|":
            branches.append([])
            continue
        has: Callable[[str], bool] | None = None
        if symbol in {"(", "(?:"}:
            part = _branches(symbols, flags)
            if not symbols:
                raise ValueError("a group is not closed")
            symbols.pop(0)
        elif symbol == "^":
            part = _begin
        elif symbol == "$":
            part = _end
        else:
            has = _members(symbol if len(symbol) > 1 or symbol == "." else re.escape(symbol), flags)
            part = _one(has)
        if symbols and symbols[0][0] in "*+?{":
            part = _repeated(part, has, symbols.pop(0))
        branches[-1].append(part)
    return _either([_in_row(parts) for parts in branches])


def _members(symbol: str, flags: re.RegexFlag) -> Callable[[str], bool]:
    """Returns whether one character is what a symbol stands for, as Python reads it."""
    compiled = re.compile(symbol, flags)
    return lambda character: compiled.fullmatch(character) is not None


def _repeated(part: PatternPart, has: Callable[[str], bool] | None, repeat: str) -> PatternPart:
    bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(repeat[0])
    if bounds is None:
        low, comma, high = repeat.strip("{}?").partition(",")
        bounds = int(low), int(high) if high else None if comma else int(low)
    least, most = bounds

    def ends(places: Places, begins: int) -> int:
        for _ in range(least):
            begins = part(places, begins)
        reached = begins
        for _ in range((most or least) - least):
            begins = part(places, begins)
            reached |= begins
        return reached if most is not None else rest(places, reached)

    rest = _starred(has) if has is not None else _any_number(part)
    return ends


def _any_number(part: PatternPart) -> PatternPart:
    def ends(places: Places, begins: int) -> int:
        reached = begins
        while begins := part(places, begins) & ~reached:
            reached |= begins
        return reached

    return ends


def _starred(has: Callable[[str], bool]) -> PatternPart:
    def ends(places: Places, begins: int) -> int:
        members = places.of(has)
        # The carry of the addition runs through the characters of the set.
        return (((begins & members) + members) ^ members) | begins

    return ends


def _one(has: Callable[[str], bool]) -> PatternPart:
    return lambda places, begins: (begins & places.of(has)) << 1


def _in_row(parts: Sequence[PatternPart]) -> PatternPart:
    return lambda places, begins: reduce(lambda reached, part: part(places, reached), parts, begins)


def _either(parts: Sequence[PatternPart]) -> PatternPart:
    return lambda places, begins: reduce(lambda reached, part: reached | part(places, begins), parts, 0)


def _begin(_places: Places, begins: int) -> int:
    return begins & 1


def _end(places: Places, begins: int) -> int:
    return begins & places.end


TESTS: dict[str, Callable[[str, str], bool]] = {
    "glob": _glob_holds,
    "prefix": _prefix_holds,
    "match": _expression_holds,
}
