"""Patterns of conditions: which are accepted, what they match, and that no text makes one slow."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analyzer.billing.recount.text_patterns import pattern_holds
from analyzer.plan.automata import POSITIONS_MAX, STATES_MAX, Automaton, required_words
from analyzer.plan.expressions import PatternFault, parse_expression
from analyzer.plan.mapping import Pattern, PatternKind
from analyzer.plan.patterns import compile_pattern
from tests.oracle.counter.slow_patterns import pattern_matches
from tests.support.depth import deeper

MATCHES: list[tuple[PatternKind, str, list[str], list[str]]] = [
    # kind, pattern, texts that match, texts that do not
    ("prefix", "/internal/", ["/internal/", "/internal/x?y"], ["/internal", "/x/internal/", ""]),
    ("glob", "/v1/*", ["/v1/", "/v1/x", "/v1/x?a=/b/", "/v1/x#/"], ["/v1", "/v1/x/y", "/v1/x/", ""]),
    ("glob", "/admin/**", ["/admin/", "/admin/x/y", "/admin/?q"], ["/admin", "/x/admin/"]),
    ("glob", "*.php", ["/a.php", "/wp/x.php", "/a.php?b=1", ".php"], ["/a.php/x", "/a.phpx", "/x?a=.php"]),
    ("glob", "**/.env", ["/.env", ".env", "/a/b/.env"], ["/x.env", "/.env/", "/.environment"]),
    ("glob", "/a/**/b", ["/a/b", "/a/x/b", "/a/x/y/b"], ["/ab", "/a/xb", "/a/b/c"]),
    ("glob", "/x1*y/z", ["/x1y/z", "/x1ay/z"], ["/x1/y/z", "/x1y/zz"]),
    ("glob", "/**/x*y/z", ["/x1/xy/z", "/xy/z", "/x1/x2/x3y/z"], ["/x/y/z"]),
    ("glob", "/v1/items/{id}", ["/v1/items/{id}", "/v1/items/{id}?x"], ["/v1/items/7"]),
    ("glob", "/posts/[slug]*", ["/posts/[slug]", "/posts/[slug]s"], ["/posts/s"]),
    ("match", "union", ["a union b", "union"], ["Union", "unio", ""]),
    ("match", "(?i)union[ +]+select", ["x UNION ++Select", "union select"], ["unionselect"]),
    ("match", "^/wp-(login|admin)", ["/wp-login.php", "/wp-admin"], ["/x/wp-login", "/wp-"]),
    ("match", r"(^|/)\.git(/|$)", ["/.git", ".git/config", "/a/.git/"], ["/.gitignore", "/x.git"]),
    ("match", r"\.(php|asp)$", ["/x.php", "/.asp"], ["/x.php?y", "/x.php\n"]),
    ("match", r"(\.\./){2,}", ["../../etc", "/a/../../"], ["../x", "../x/../"]),
    ("match", r"^[^a-z]{2,3}$", ["AB", "12+"], ["A", "ABCD", "Ab"]),
    ("match", r"a.c", ["a\nc", "a/c", "a€c"], ["ac"]),
    ("match", r"\d\D\w\W\s\S", ["1xA- x", "0-_/\n€"], ["1xA- ", "٣xA- x"]),
    ("match", r"[\]a-c\-]\x2f\u20ac", ["]/€", "b/€", "-/€"], ["d/€"]),
    ("match", r"(?i)[x-z]K", ["Yk", "zK"], ["ak", "z\u212a"]),
    ("match", "^$", [""], ["x"]),
    ("match", "^a|b$", ["ax", "xb"], ["xa", "bx"]),
    ("match", "a{0}b??c*?d", ["d", "bccd"], ["a"]),
    ("match", "x{3}", ["xxx", "axxxxb"], ["xx"]),
    ("match", "}]", ["}]"], ["]}"]),
]


@pytest.mark.parametrize(("kind", "text", "matching", "others"), MATCHES)
def test_a_pattern_matches_by_three_implementations(
    kind: PatternKind, text: str, matching: list[str], others: list[str]
) -> None:
    pattern = Pattern(kind, text)
    test = compile_pattern(pattern)
    compared = [*matching, *others]
    expected = {one: one in matching for one in compared}
    assert {one: test(one) for one in compared} == expected
    assert {one: pattern_holds(kind, text, one) for one in compared} == expected
    assert {one: pattern_matches(pattern, one) for one in compared} == expected


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("match", r"(a)\1", r"\1 refers to a group"),
        ("match", r"(?P=x)", "(?P= refers to a group"),
        ("match", "a(?=b)", "(?= looks around"),
        ("match", "(?<!a)b", "(?<! looks around"),
        ("match", "(?P<x>a)", "(?P< names a group"),
        ("match", "(?>a+)b", "(?> gives nothing back"),
        ("match", "a++b", "++ gives nothing back"),
        ("match", "a(?i)b", "(?i sets a flag"),
        ("match", "(?s)b", "(?s sets a flag"),
        ("match", r"\bunion\b", r"\b is a word boundary"),
        ("match", r"\pL", r"\p is not known"),
        ("match", r"a\Z", r"\Z is not known"),
        ("match", r"\0", r"\0 is not a character"),
        ("match", r"\xg", r"\xg is not a character"),
        ("match", "a**", "* repeats what is repeated"),
        ("match", "a{2}{3}", "{ repeats what is repeated"),
        ("match", "*a", "* repeats nothing"),
        ("match", "(|+)", "+ repeats nothing"),
        ("match", "^*a", "* repeats an end"),
        ("match", "a^b", "^ stands behind"),
        ("match", "(a$)+", "$ stands in front of"),
        ("match", "a{101}", "{101} repeats more than 100"),
        ("match", "a{3,2}", "{3,2} is an empty range"),
        ("match", "a{,3}", "{ begins no repeat"),
        ("match", "a{b}", "{ begins no repeat"),
        ("match", "(a", "( is not closed"),
        ("match", "a)", ") closes no group"),
        ("match", "[a", "[ is not closed"),
        ("match", "[]", "[ is not closed"),
        ("match", "[b-a]", "b-a is an empty range"),
        ("match", r"[\d-x]", "a class is not the end of a range"),
        ("match", "[[:alpha:]]", "[: is not a class"),
        ("match", "[[a]", "[ may mean something else"),
        ("match", "[a&&b]", "&& may mean something else"),
        ("match", r"[^\d\D]", "a set has no characters"),
        ("match", "a\\", r"\ escapes nothing"),
        ("match", "((((((((((((((((((((((a))))))))))))))))))))))", "has groups 21 deep"),
        ("match", "((a{100}){100}){100}", "has 1,000,000 places"),
        ("match", "x" * 501, "has 501 characters"),
        ("match", "a*", "matches every text"),
        ("match", "^", "matches every text"),
        ("match", "", "is empty"),
        ("glob", "/search?q=*", "? is not in a path"),
        ("glob", "/a#b", "# is not in a path"),
        ("glob", "/***", "*** is not a part of a glob"),
        ("glob", "/**", "/** says nothing"),
        ("glob", "*", "* says nothing"),
        ("prefix", "", "is empty"),
    ],
)
def test_a_pattern_outside_of_the_subset_is_refused(kind: PatternKind, text: str, problem: str) -> None:
    with pytest.raises(PatternFault, match="^" + re.escape(problem)) as refused:
        compile_pattern(Pattern(kind, text))
    assert refused.value.cure


SMALL = "ab/.A"
TEXTS = st.text(st.sampled_from(SMALL + "?#\n€"), max_size=6)  # Python takes long for longer ones
ATOMS = st.sampled_from(["a", "b", "A", "/", ".", r"\.", "[ab]", "[^a]", r"\w", r"\s", "[^/]", "[/-A]"])
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])


def groups(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    branches = st.lists(st.lists(inner, max_size=3).map("".join), min_size=1, max_size=3).map("|".join)
    return st.builds("{}{}{}){}".format, st.sampled_from(["(", "(?:"]), st.just(""), branches, REPEATS)


PIECES = st.recursive(st.builds("{}{}".format, ATOMS, REPEATS), groups, max_leaves=4)
EXPRESSIONS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "", "(?i)"]),
    st.sampled_from(["", "", "^", "(^|/)"]),
    st.lists(PIECES, min_size=1, max_size=4).map("".join),
    st.sampled_from(["", "", "$", "(a|$)"]),
)


@settings(max_examples=deeper(120))
@given(EXPRESSIONS, st.lists(TEXTS, min_size=1, max_size=6))
@example("(?i)(^|/)(a|b)+A{0,2}$", ["/ab", "aBaa", "", "/ab\n"])
def test_expressions_match_as_those_of_python_do(expression: str, texts: list[str]) -> None:
    pattern = Pattern("match", expression)
    try:
        test = compile_pattern(pattern)
    except PatternFault:  # matches every text
        assert pattern_matches(pattern, "")
        return
    for text in texts:
        assert test(text) is pattern_matches(pattern, text) is pattern_holds("match", expression, text)


GLOBS = st.lists(st.sampled_from(["a", "b", "/", ".", "*", "**", "**/", "/*/"]), min_size=1, max_size=7)


@settings(max_examples=deeper(100))
@given(GLOBS.map("".join), st.lists(TEXTS, min_size=1, max_size=6))
def test_globs_match_as_every_ending_tried_says(glob: str, texts: list[str]) -> None:
    pattern = Pattern("glob", glob)
    try:
        test = compile_pattern(pattern)
    except PatternFault:
        return
    for text in texts:
        assert test(text) is pattern_matches(pattern, text) is pattern_holds("glob", glob, text)


# With `re` the first text takes longer than the age of the universe, and each of the others minutes.
@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("^(a+)+$", "a" * 20_000 + "b"),
        ("^(a|aa)+$", "a" * 20_000 + "b"),
        ("(.*a){12}b$", "a" * 20_000),
        (".*.*.*x", "a" * 20_000),
        ("(a?){60}a{60}b", "a" * 20_000),
        (r"\s+$", " " * 20_000 + "x"),
    ],
)
def test_no_text_makes_an_expression_slow(expression: str, text: str) -> None:
    test = compile_pattern(Pattern("match", expression))
    begin = time.process_time()
    assert not test(text)
    assert time.process_time() - begin < 0.5


def test_states_are_bounded_and_made_again() -> None:
    automaton = Automaton(parse_expression("a[ab]{14}c"))  # of which there are 2^15
    number, text = 1, ""
    for _ in range(6_000):
        number = number * 1_103_515_245 + 12_345 & 0x7FFFFFFF
        text += "ab"[number >> 20 & 1]
    assert not automaton.matches(text)
    assert automaton.matches(text + "a" * 15 + "c")
    assert len(automaton._states) <= STATES_MAX


def test_a_pattern_has_as_many_positions_as_is_allowed() -> None:
    compile_pattern(Pattern("match", f"(a{{100}}){{{POSITIONS_MAX // 100}}}"))
    with pytest.raises(PatternFault):
        compile_pattern(Pattern("match", f"(a{{100}}){{{POSITIONS_MAX // 100}}}b"))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("union|select", ["union", "select"]),
        ("(?i)UNION.*sel", ["union"]),
        ("(abc)?de", ["de"]),
        ("(abc){2}d", ["abc"]),
        ("[ab]c|d*", []),
        ("(?i)é1", ["1"]),
        ("[0-9]+", []),
    ],
)
def test_a_text_without_these_words_needs_not_be_read(expression: str, words: list[str]) -> None:
    assert required_words(parse_expression(expression)) == words


def test_characters_beyond_those_that_are_kept_are_found() -> None:
    test = compile_pattern(Pattern("match", "[\u4e00-\u9fff]{3}x$"))
    text = "".join(chr(0x3400 + number * 37 % 0x5000) for number in range(2_000))
    assert not test(text)
    assert test(text + "\u4e00\u4e01\u9fffx")
    assert not test(text + "\u4e00\u4e01\ua000x")
