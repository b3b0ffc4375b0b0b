"""Patterns of conditions: globs of paths, prefixes and regular expressions, as functions of a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from analyzer.plan.automata import Automaton
from analyzer.plan.expressions import (
    ANY,
    EXPRESSION_CHARACTERS_MAX,
    Chain,
    Characters,
    Choice,
    Edge,
    Node,
    PatternFault,
    Repeat,
    complement,
    literal,
    parse_expression,
)
from analyzer.plan.mapping import Pattern, PatternKind

TextTest = Callable[[str], bool]

STARS = re.compile(r"(\*+/?)")
SLASH = ((47, 47),)
ANYTHING = Repeat(ANY, 0, None)
WITHIN_SEGMENT = Repeat(Characters(complement(SLASH)), 0, None)
# Segments with the slash behind them, or none.
SEGMENTS = Choice((Chain((ANYTHING, Characters(SLASH))), Chain(())))


class KindOfPattern(NamedTuple):
    """One kind of pattern.

    Attributes:
        compile: Returns the test of a pattern. Raises PatternFault.
        is_of_path: Whether it is compared with the text up to the first ? or #.
    """

    compile: Callable[[str], TextTest]
    is_of_path: bool = False


def compile_pattern(pattern: Pattern) -> TextTest:
    """Returns the function that tells whether a text matches. Raises PatternFault.

    >>> is_script = compile_pattern(Pattern("glob", "*.php"))
    >>> is_script("/wp/login.php?next=/"), is_script("/login.php/x")
    (True, False)
    """
    return compile_patterns([pattern])


def compile_patterns(patterns: Sequence[Pattern]) -> TextTest:
    """Returns the function that tells whether a text matches one of some patterns. Raises PatternFault."""
    of_text: list[TextTest] = []
    of_path: list[TextTest] = []
    for pattern in patterns:
        kind = PATTERN_KINDS[pattern.kind]
        if not pattern.text:
            raise PatternFault("is empty", "write at least one character")
        if len(pattern.text) > EXPRESSION_CHARACTERS_MAX:
            raise PatternFault(
                f"has {len(pattern.text)} characters, more than {EXPRESSION_CHARACTERS_MAX}",
                "write several as a list",
            )
        (of_path if kind.is_of_path else of_text).append(kind.compile(pattern.text))

    def matches(text: str) -> bool:
        for test in of_text:
            if test(text):
                return True
        if of_path:
            path = text.partition("?")[0].partition("#")[0]
            for test in of_path:
                if test(path):
                    return True
        return False

    return matches


def glob_tree(text: str) -> Node:
    """Returns a glob as a tree.

    `*` is any text without a slash, in a glob without slashes any text; `**` is any text, and `**/` any
    number of whole segments, none of them, too.

    >>> automaton = Automaton(glob_tree("/v1/**/x*"))
    >>> [automaton.matches(path) for path in ("/v1/x", "/v1/a/b/xyz", "/v1/ax", "/v1/x/y")]
    [True, True, False, False]
    """
    star = WITHIN_SEGMENT if "/" in text else ANYTHING
    nodes: list[Node] = [Edge(is_end=False)]
    for index, part in enumerate(STARS.split(text)):
        if not index % 2:
            nodes.append(literal(part))
        elif part == "**/":
            nodes.append(SEGMENTS)
        else:
            nodes += [ANYTHING if part == "**" else star, literal("/" if part.endswith("/") else "")]
    return Chain((*nodes, Edge(is_end=True)))


def _glob(text: str) -> TextTest:
    if wrong := set(text) & {"?", "#"}:
        shown = min(wrong)
        cure = "write * for a character, or { match = ... } for the query"
        raise PatternFault(f"{shown} is not in a path: a glob is compared without the query", cure)
    if "***" in text:
        raise PatternFault("*** is not a part of a glob", "write * within a segment, or ** for several")
    if not text.strip("*/"):
        raise PatternFault(f"{text} says nothing about a path", 'name a part of it: "/v1/*"')
    head, star, tail = text.partition("*")
    if not star:
        return text.__eq__
    if tail == "*":
        return partial(_begins_with, (head,))
    automaton = Automaton(glob_tree(text))
    return partial(_between, head, STARS.split(text)[-1], automaton.matches)


def _prefix(text: str) -> TextTest:
    return partial(_begins_with, (text,))


def _expression(text: str) -> TextTest:
    automaton = Automaton(parse_expression(text))
    if automaton.matches_all:
        raise PatternFault("matches every text", "write what the text must have")
    return automaton.matches


def _begins_with(beginnings: tuple[str, ...], text: str) -> bool:
    return text.startswith(beginnings)


def _between(head: str, tail: str, test: TextTest, text: str) -> bool:
    # The ends alone decide about nearly all texts.
    return text.endswith(tail) and text.startswith(head) and test(text)


# A kind of pattern is an entry here, a word of `mapping.PatternKind`, a line in docs/spec/counter.md, and its
# second reading in `billing.recount.text_patterns`.
PATTERN_KINDS: Mapping[PatternKind, KindOfPattern] = {
    "glob": KindOfPattern(_glob, is_of_path=True),
    "prefix": KindOfPattern(_prefix),
    "match": KindOfPattern(_expression),
}
