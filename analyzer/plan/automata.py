"""Automata of patterns: whether a text matches, in one pass over it.

A position automaton (Glushkov 1961): each occurrence of a set of characters in the pattern is a position, a
state is the set of positions that the text read so far can end at, as the bits of a number, and each further
character leads to exactly one state. States are made when a text first leads to them, and kept, up to a
bound. So a character costs a look-up in a dict, at worst a step of all positions at once: no text makes a
pattern slow.

Most texts are not read at all: where each match has one of some words in it, a text without them has none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import getitem
from typing import NamedTuple

from analyzer.plan.expressions import (
    Chain,
    Characters,
    Choice,
    Edge,
    Node,
    PatternFault,
    Ranges,
    Repeat,
)

POSITIONS_MAX = 500  # of one pattern: characters, sets and repeated ones counted as often as they may occur
STATES_MAX = 200  # kept for one pattern, in at most 1 MB; then all are made again
CHARACTERS_KEPT = 130  # of which a state keeps where they lead
WORDS_MAX = 12  # looked for in a text before it is read

BEGIN, END = "begin", "end"  # in front of a text and behind it, in place of a character


class Positions(NamedTuple):
    """The positions of a part of a pattern, as bits.

    Attributes:
        first: Where it can begin.
        last: Where it can end.
        is_nullable: Whether it matches without a character.
    """

    first: int
    last: int
    is_nullable: bool


class Automaton:
    """Finds a pattern anywhere in a text.

    Args:
        node: The pattern. Its `Edge`s tie it to the ends of the text.

    Raises:
        PatternFault: It has too many positions.

    Example:
        >>> from analyzer.plan.expressions import parse_expression
        >>> automaton = Automaton(parse_expression("(?i)union[ +]+select"))
        >>> automaton.matches("q=1+UNION++SELECT+2"), automaton.matches("union")
        (True, False)
    """

    def __init__(self, node: Node) -> None:
        if (count := size(node)) > POSITIONS_MAX:
            raise PatternFault(
                f"has {count:,} places for a character, more than {POSITIONS_MAX}",
                "repeat less often, or write several as a list",
            )
        self._sets: list[Ranges | str] = []  # by position: characters, or the symbol of an end
        self._follow: list[int] = []  # the positions behind each
        self._first, self._last, self._is_nullable = self._place(node)
        self._index()
        self._words = required_words(node)
        self._states: dict[int, AutomatonState] = {}
        self._begin()

    @property
    def matches_all(self) -> bool:
        """Whether it matches each text, because it needs none of its characters."""
        return self._start.is_final

    def matches(self, text: str) -> bool:
        """Whether the pattern is anywhere in a text."""
        if self._words:
            lowered = text.lower()
            if not any(word in lowered for word in self._words):
                return False
        state: AutomatonState = reduce(getitem, text, self._start)
        return state[END].is_final

    def step(self, state: AutomatonState, symbol: str) -> AutomatonState:
        """Returns the state behind a symbol."""
        if state.is_final:
            return state  # what was found stays found
        positions = state.positions
        reachable = self._first | (positions & self._before_next) << 1
        for of_positions, follow in self._jumps:
            if positions & of_positions:
                reachable |= follow
        return self._state(reachable & self._with(symbol))

    def _begin(self) -> None:
        """Forgets all states but the first one."""
        for state in self._states.values():
            state.clear()  # they refer to each other
        self._states.clear()
        origin = AutomatonState(self, 0, is_final=self._is_nullable)
        self._start = origin if origin.is_final else self.step(origin, BEGIN)

    def _state(self, positions: int) -> AutomatonState:
        state = self._states.get(positions)
        if state is None:
            if len(self._states) >= STATES_MAX:
                self._begin()
            state = AutomatonState(self, positions, is_final=bool(positions & self._last))
            self._states[positions] = state
        return state

    def _with(self, symbol: str) -> int:
        """Returns the positions that a symbol can be at."""
        positions = self._by_symbol.get(symbol)
        if positions is None:
            positions = self._by_range[bisect_right(self._bounds, ord(symbol)) - 1]
            if len(self._by_symbol) < CHARACTERS_KEPT:
                self._by_symbol[symbol] = positions
        return positions

    def _index(self) -> None:
        """Prepares what a step needs: positions by characters, and which follow which."""
        sets = [ranges for ranges in self._sets if not isinstance(ranges, str)]
        self._bounds = sorted(
            {0, *(end for ranges in sets for low, high in ranges for end in (low, high + 1))}
        )
        self._by_range = [
            bits(
                position
                for position, ranges in enumerate(self._sets)
                if not isinstance(ranges, str) and contains(ranges, low)
            )
            for low in self._bounds
        ]
        self._by_symbol: dict[str, int] = {
            symbol: bits(position for position, end in enumerate(self._sets) if end == symbol)
            for symbol in (BEGIN, END)
        }
        # Most positions are followed by the next one. What else follows is equal for many of them.
        is_next = [follow >> (position + 1) & 1 for position, follow in enumerate(self._follow)]
        self._before_next = bits(position for position, next_bit in enumerate(is_next) if next_bit)
        jumps: dict[int, int] = {}
        for position, follow in enumerate(self._follow):
            if others := follow & ~(is_next[position] << (position + 1)):
                jumps[others] = jumps.get(others, 0) | 1 << position
        self._jumps = [(of_positions, follow) for follow, of_positions in jumps.items()]

    def _place(self, node: Node) -> Positions:
        """Gives numbers to the positions of a node, and notes which follow which."""
        match node:
            case Characters(ranges):
                return self._position(ranges)
            case Edge(is_end):
                return self._position(END if is_end else BEGIN)
            case Choice(nodes):
                placed = [self._place(part) for part in nodes]
                first = last = 0
                for part_first, part_last, _ in placed:
                    first, last = first | part_first, last | part_last
                return Positions(first, last, any(part.is_nullable for part in placed))
            case Chain(nodes):
                return self._chained([self._place(part) for part in nodes])
            case Repeat(part, least, most):
                return self._repeated(part, least, most)

    def _position(self, ranges: Ranges | str) -> Positions:
        self._sets.append(ranges)
        self._follow.append(0)
        bit = 1 << (len(self._sets) - 1)
        return Positions(bit, bit, is_nullable=False)

    def _chained(self, parts: Sequence[Positions]) -> Positions:
        whole = Positions(0, 0, is_nullable=True)
        for part in parts:
            self._link(whole.last, part.first)
            whole = Positions(
                whole.first | (part.first if whole.is_nullable else 0),
                part.last | (whole.last if part.is_nullable else 0),
                whole.is_nullable and part.is_nullable,
            )
        return whole

    def _repeated(self, node: Node, least: int, most: int | None) -> Positions:
        """Places a node as often as it may occur; without a bound, the last one follows itself.

        Of those that may be missing, the last are: so each is followed by the next one alone.
        """
        copies = [self._place(node) for _ in range(max(least, 1) if most is None else most)]
        if most is None:
            self._link(copies[-1].last, copies[-1].first)
        required, optional = copies[:least], copies[least:]
        tail = Positions(0, 0, is_nullable=True)
        for part in reversed(optional):
            self._link(part.last, tail.first)
            tail = Positions(part.first, part.last | tail.last, is_nullable=True)
        return self._chained([*required, tail])

    def _link(self, last: int, first: int) -> None:
        while last:
            lowest = last & -last
            self._follow[lowest.bit_length() - 1] |= first
            last ^= lowest


class AutomatonState(dict[str, "AutomatonState"]):
    """The states behind one, by symbol: made when they are asked for."""

    __slots__ = ("_automaton", "is_final", "positions")

    def __init__(self, automaton: Automaton, positions: int, *, is_final: bool) -> None:
        super().__init__()
        self._automaton, self.positions, self.is_final = automaton, positions, is_final

    def __missing__(self, symbol: str) -> AutomatonState:
        state = self._automaton.step(self, symbol)
        if len(self) < CHARACTERS_KEPT:
            self[symbol] = state
        return state


def contains(ranges: Ranges, code_point: int) -> bool:
    """Whether a character is in one of the ranges."""
    return any(low <= code_point <= high for low, high in ranges)


def bits(positions: Iterable[int]) -> int:
    """Returns positions as the bits of a number.

    >>> bits([0, 3])
    9
    """
    return sum(1 << position for position in positions)


def required_words(node: Node) -> Sequence[str]:
    """Returns words, in small letters, of which each match has one; empty where nothing is known.

    >>> from analyzer.plan.expressions import parse_expression
    >>> required_words(parse_expression("(?i)union[ +]+select|sleep[(]"))
    ['select', 'sleep(']
    >>> required_words(parse_expression("a*|b"))
    []
    """
    match node:
        case Chain(nodes):
            candidates, word = [], ""
            for part in nodes:
                if letter := _letter(part):
                    word += letter
                    continue
                candidates += [[word], list(required_words(part))]
                word = ""
            known = [words for words in [*candidates, [word]] if all(words) and words]
            return max(known, key=lambda words: min(map(len, words)), default=[])
        case Choice(nodes):
            of_each = [required_words(part) for part in nodes]
            words = [word for words in of_each for word in words]
            return words if all(of_each) and len(words) <= WORDS_MAX else []
        case Repeat(part, least) if least:
            return required_words(part)
        case Characters():
            return [letter] if (letter := _letter(node)) else []
    return []


def _letter(node: Node) -> str:
    """Returns the ASCII character that a node is, as a small letter where it is one in either case, or ""."""
    if not isinstance(node, Characters):
        return ""
    letters = {chr(low).lower() if low == high < 128 else "" for low, high in node.ranges}
    return letters.pop() if len(letters) == 1 else ""


def size(node: Node) -> int:
    """Returns how many positions a node has.

    >>> from analyzer.plan.expressions import parse_expression
    >>> size(parse_expression("^ab{3,5}(c|d)*"))
    9
    """
    match node:
        case Characters() | Edge():
            return 1
        case Repeat(part, least, most):
            return size(part) * (max(least, 1) if most is None else most)
        case Chain(nodes) | Choice(nodes):
            return sum(map(size, nodes))
