"""Three JSON parsers agree on what is valid JSON, and on its content."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.counting.records import strict_json
from tests.oracle.counter import hostile
from tests.oracle.counter.refused import Refused
from tests.oracle.counter.slow_json import Digits, parse_json
from tests.support.depth import deeper

TOKENS = [
    *"{}[]:, ",
    '"a"',
    '"a":',
    "1",
    "-",
    "01",
    "1.5e3",
    "true",
    "null",
    '"\\u0',
    "\x00",
    "\ufeff",
    "NaN",
]
NEARLY_JSON = st.lists(st.sampled_from(TOKENS), max_size=12).map("".join)
HOSTILE = hostile.documents().map(lambda data: data.decode("utf-8", "replace"))


def plain(value: object) -> object:
    """Returns a document in a form that is equal for all three parsers."""
    match value:
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case Digits():
            is_long = len(value) > 40 or set(value) & set(".eE")
            return ("number", value.encode() if is_long else int(value))
        case bool() | None | str():
            return value
        case int() | bytes():
            return ("number", value)
        case _:
            return "an array"


def outcome(read: Callable[[str], object], text: str) -> object:
    try:
        return plain(read(text))
    except (ValueError, Refused):
        return "not JSON"


@settings(max_examples=deeper(160))
@given(st.one_of(HOSTILE, HOSTILE, NEARLY_JSON))
def test_three_parsers_agree(text: str) -> None:
    found = outcome(strict_json.read, text)
    assert found == outcome(strict_json.read_without_recursion, text) == outcome(parse_json, text)
