r"""Regular expressions of conditions: a subset of Python's, read into a tree.

Only what an automaton decides in one pass over a text is in it, so no expression can make a text expensive:
characters, `.`, sets such as `[a-z]` and `[^/]`, `\d \D \w \W \s \S` (ASCII), escapes of characters, groups,
`|`, the repeats `* + ? {2} {2,} {2,5}`, `^` where an expression begins, `$` where it ends, `(?i)` in front.
References to groups, look-around and word boundaries are not.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

EXPRESSION_CHARACTERS_MAX = 500
DEPTH_MAX = 20  # of groups in groups
REPEATS_MAX = 100  # the largest number in braces
CODE_POINT_MAX = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included, ascending, apart from each other


class PatternFault(ValueError):
    """A pattern that cannot be used.

    Attributes:
        cure: What to write instead.
    """

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(problem)
        self.cure = cure


class Characters(NamedTuple):
    """A character of a set."""

    ranges: Ranges


class Edge(NamedTuple):
    """The beginning of a text, or its end."""

    is_end: bool


class Chain(NamedTuple):
    """Nodes, one behind the other."""

    nodes: tuple[Node, ...]


class Choice(NamedTuple):
    """Several nodes, of which one matches."""

    nodes: tuple[Node, ...]


class Repeat(NamedTuple):
    """A node, from `least` to `most` times; None: any number of times."""

    node: Node
    least: int
    most: int | None


Node = Characters | Edge | Chain | Choice | Repeat

ANY = Characters(((0, CODE_POINT_MAX),))
DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
BLANKS: Ranges = ((9, 13), (32, 32))
CLASSES = {"d": DIGITS, "w": WORD, "s": BLANKS}
CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
HEXADECIMAL = {"x": 2, "u": 4}  # digits behind the letter
AMBIGUOUS = ("--", "&&", "||", "~~")  # in sets: Python may read them as operators one day
REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Returns ranges in order, joined where they touch.

    >>> union([(5, 9), (1, 3), (4, 4), (20, 20)])
    ((1, 9), (20, 20))
    """
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return tuple(joined)


def complement(ranges: Ranges) -> Ranges:
    """Returns all characters but these.

    >>> complement(((0, 9), (20, CODE_POINT_MAX)))
    ((10, 19),)
    """
    ends = [-1, *(end for low, high in ranges for end in (low, high)), CODE_POINT_MAX + 1]
    gaps = zip(ends[::2], ends[1::2], strict=True)
    return tuple((low + 1, high - 1) for low, high in gaps if low + 1 <= high - 1)


def literal(text: str) -> Chain:
    """Returns the node of a text as it stands."""
    return Chain(tuple(Characters(((ord(character),) * 2,)) for character in text))


def parse_expression(text: str) -> Node:
    r"""Returns an expression as a tree. Raises PatternFault for what is not in the subset.

    >>> parse_expression("^[0-2]{2,}")
    Chain(nodes=(Edge(is_end=False), Repeat(node=Characters(ranges=((48, 50),)), least=2, most=None)))
    >>> parse_expression(r"(a)\1")
    Traceback (most recent call last):
    analyzer.plan.expressions.PatternFault: \1 refers to a group
    """
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise PatternFault(
            f"has {len(text)} characters, more than {EXPRESSION_CHARACTERS_MAX}",
            "write several expressions as a list: { match = [...] }",
        )
    node = _Parser(text).parse()
    _require_edges(node, is_first=True, is_last=True)
    return node


class _Parser:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self._ignores_case = text.startswith("(?i)")
        self._text, self._at, self._depth = text, 4 if self._ignores_case else 0, 0

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternFault(") closes no group", r"write \) for the character")
        return node

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _take(self) -> str:
        character = self._peek()
        self._at += 1
        return character

    def _accept(self, token: str) -> bool:
        if self._peek(len(token)) != token:
            return False
        self._at += len(token)
        return True

    def _choice(self) -> Node:
        branches = [self._sequence()]
        while self._accept("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Node:
        nodes = []
        while self._peek() not in ("", "|", ")"):
            nodes.append(self._repeated(self._atom()))
        return Chain(tuple(nodes))

    def _repeated(self, node: Node) -> Node:
        begin = self._at
        bounds = self._bounds()
        if bounds is None:
            return node
        repeat = self._text[begin : self._at]
        if isinstance(node, Edge):
            raise PatternFault(f"{repeat} repeats an end of the text", f"remove {repeat}")
        if self._peek() == "+":
            problem = f"{repeat}+ gives nothing back, which has no meaning here"
            raise PatternFault(problem, f"write {repeat}")
        self._accept("?")  # as few as possible: whether a text matches does not depend on it
        if self._peek() in (*REPEATS, "{") and self._peek():
            problem = f"{self._peek()} repeats what is repeated already"
            raise PatternFault(problem, "put the first repeat into a group")
        return Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """Takes a repeat, if one stands here."""
        if self._peek() in REPEATS:
            return REPEATS[self._take()]
        if not self._accept("{"):
            return None
        inside, brace, _ = self._text[self._at :].partition("}")
        low, comma, high = inside.partition(",")
        numbers = [number for number in (low, high) if number]
        if not brace or not low or not all(number.isascii() and number.isdigit() for number in numbers):
            raise PatternFault("{ begins no repeat such as {2,5}", r"write \{ for the character")
        least, most = int(low), int(high) if high else None if comma else int(low)
        self._at += len(inside) + 1
        largest = max(least, most or 0)
        if largest > REPEATS_MAX:
            problem = f"{{{inside}}} repeats more than {REPEATS_MAX} times"
            raise PatternFault(problem, f"write at most {REPEATS_MAX}, or * or +")
        if most is not None and most < least:
            raise PatternFault(f"{{{inside}}} is an empty range", "write the smaller number first")
        return least, most

    def _atom(self) -> Node:
        character = self._take()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._set()
            case ".":
                return ANY
            case "^" | "$":
                return Edge(is_end=character == "$")
            case "\\":
                return Characters(self._folded(self._escape()))
            case "*" | "+" | "?" | "{":
                problem = f"{character} repeats nothing"
                raise PatternFault(problem, f"write \\{character} for the character")
        return Characters(self._folded(((ord(character),) * 2,)))

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise PatternFault(f"has groups {DEPTH_MAX + 1} deep", f"write at most {DEPTH_MAX}")
        if self._peek() == "?" and not self._accept("?:"):
            self._raise_for_group()
        node = self._choice()
        if not self._accept(")"):
            raise PatternFault("( is not closed", r"add ), or write \( for the character")
        self._depth -= 1
        return node

    def _raise_for_group(self) -> NoReturn:
        for beginnings, what, cure in (
            (("?=", "?!", "?<=", "?<!"), "looks around, and a text is read once", "write what stands there"),
            (("?P<", "?<"), "names a group, which nothing can refer to", "write (...)"),
            (("?P=", "?("), "refers to a group, and a text is read once", "write what may stand there"),
            (("?>",), "gives nothing back, which has no meaning here", "write (...)"),
            (("?#",), "is a comment", "remove it, and write # comments in the file"),
        ):  # fmt: skip
            for beginning in beginnings:
                if self._accept(beginning):
                    raise PatternFault(f"({beginning} {what}", cure)
        raise PatternFault(
            f"({self._peek(2)} sets a flag within the expression",
            "only (?i) in front is known, for capital and small letters alike",
        )

    def _set(self) -> Node:
        is_negated = self._accept("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or self._peek() != "]":
            if not self._peek():
                raise PatternFault("[ is not closed", r"add ], or write \[ for the character")
            if self._peek(2) in ("[:", "[=", "[."):
                raise PatternFault(
                    f"{self._peek(2)} is not a class here", r"write \d, \w, \s or a range: [a-z]"
                )
            if self._peek() == "[" or self._peek(2) in AMBIGUOUS:
                shown = self._peek(2) if self._peek(2) in AMBIGUOUS else "["
                cure = "write \\" + "\\".join(shown)
                raise PatternFault(f"{shown} may mean something else in a set", cure)
            ranges += self._range_in_set()
            is_first = False
        self._take()
        folded = self._folded(union(ranges))
        if not is_negated:
            return Characters(folded)
        if not (remaining := complement(folded)):
            raise PatternFault("a set has no characters", "remove it")
        return Characters(remaining)

    def _range_in_set(self) -> Ranges:
        low = self._member()
        if self._peek() != "-" or self._peek(2) in ("-]", "-"):
            return low
        self._take()
        high = self._member()
        # A class such as \d has several characters, so it is not the end of a range.
        if len(low) != 1 or len(high) != 1 or any(first != last for first, last in (*low, *high)):
            raise PatternFault("a class is not the end of a range", r"write \- for the character -")
        if low[0][0] > high[0][0]:
            raise PatternFault(
                f"{chr(low[0][0])}-{chr(high[0][0])} is an empty range", "write the smaller one first"
            )
        return ((low[0][0], high[0][0]),)

    def _member(self) -> Ranges:
        character = self._take()
        if not character:
            raise PatternFault("[ is not closed", r"add ], or write \[ for the character")
        return self._escape() if character == "\\" else ((ord(character),) * 2,)

    def _escape(self) -> Ranges:
        r"""Takes what stands behind a \."""
        character = self._take()
        if not character:
            raise PatternFault(r"\ escapes nothing", r"write \\ for the character")
        if character.lower() in CLASSES:
            ranges = CLASSES[character.lower()]
            return ranges if character in CLASSES else complement(ranges)
        if character in CONTROLS:
            return ((CONTROLS[character],) * 2,)
        if character in HEXADECIMAL:
            digits = self._peek(HEXADECIMAL[character])
            if len(digits) != HEXADECIMAL[character] or not set(digits) <= set(string.hexdigits):
                problem = f"\\{character}{digits} is not a character"
                raise PatternFault(problem, r"write two digits, as in \x2f, or four, as in \u20ac")
            self._at += len(digits)
            return ((int(digits, 16),) * 2,)
        if character.isdigit():
            problem = f"\\{character} refers to a group" if character != "0" else r"\0 is not a character"
            raise PatternFault(problem, "write what may stand there" if character != "0" else r"write \x00")
        if character in "bB":
            cure = r"write what stands there, for example (^|[^a-z]) and ($|[^a-z])"
            raise PatternFault(f"\\{character} is a word boundary, and a text is read once", cure)
        if character in "AzZ":
            cure = "write ^" if character == "A" else "write $"
            raise PatternFault(f"\\{character} is not known", cure)
        if character.isalpha():
            raise PatternFault(
                f"\\{character} is not known", rf"write \\ for the character \, or {character}"
            )
        return ((ord(character),) * 2,)

    def _folded(self, ranges: Ranges) -> Ranges:
        """Returns the ranges with the letters of A to Z in both cases, where the expression ignores case."""
        if not self._ignores_case:
            return ranges
        both = list(ranges)
        for first, distance in ((65, 32), (97, -32)):
            both += [
                (max(low, first) + distance, min(high, first + 25) + distance)
                for low, high in ranges
                if low <= first + 25 and high >= first
            ]
        return union(both)


def _require_edges(node: Node, *, is_first: bool, is_last: bool) -> None:
    """Raises PatternFault for a ^ behind, or a $ in front of anything."""
    match node:
        case Edge(is_end):
            if not (is_last if is_end else is_first):
                shown, place = ("$", "in front of") if is_end else ("^", "behind")
                raise PatternFault(
                    f"{shown} stands {place} other parts",
                    f"put it {'last' if is_end else 'first'}, or write \\{shown} for the character",
                )
        case Chain(nodes):
            for index, part in enumerate(nodes):
                _require_edges(
                    part, is_first=is_first and index == 0, is_last=is_last and index == len(nodes) - 1
                )
        case Choice(nodes):
            for part in nodes:
                _require_edges(part, is_first=is_first, is_last=is_last)
        case Repeat(part):
            _require_edges(part, is_first=False, is_last=False)
