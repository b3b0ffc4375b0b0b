"""Numbers, times, routes and names, each compared with its slow implementation."""

from __future__ import annotations

from fractions import Fraction
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from analyzer.plan import mapping as mappings
from analyzer.plan.decimals import scaled
from analyzer.plan.timestamps import clf_ms, rfc3339_ms
from analyzer.plan.value_rules import text_rule
from gatekeeper.identity import address_of, is_name
from tests.oracle.counter import slow_values
from tests.oracle.counter.slow_json import Digits
from tests.support.depth import deeper

NUMBERS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?\Z")


@settings(max_examples=deeper(160))
@given(NUMBERS, st.integers(-9, 9))
@example("-0.0", 6)
@example("0." + "0" * 400 + "1e400", 3)
def test_a_number_is_scaled_exactly_and_rounded_down(written: str, places: int) -> None:
    exact = slow_values.exactly(Digits(written), Fraction(10) ** places)
    found = scaled(written.encode(), places)
    if found is None:
        assert exact is None or abs(exact) >= 10**38  # of no use as a time or an amount
    elif exact is not None:
        assert found == exact


@given(st.integers(-(2**80), 2**80), st.integers(-9, 9))
def test_a_whole_number_is_scaled_like_its_digits(number: int, places: int) -> None:
    assert scaled(number, places) == slow_values.exactly(Digits(str(number)), Fraction(10) ** places)


DATES = st.dates().map(str)
CLOCKS = st.tuples(st.integers(0, 25), st.integers(0, 61), st.integers(0, 61)).map(
    lambda parts: ":".join(f"{part:02}" for part in parts)
)
ZONES = st.one_of(
    st.sampled_from(["Z", "z", ""]),
    st.tuples(st.sampled_from("+-"), st.integers(0, 25), st.integers(0, 61)).map(
        lambda zone: f"{zone[0]}{zone[1]:02}:{zone[2]:02}"
    ),
    st.tuples(
        st.sampled_from(["+", "-", " +", " -"]), st.integers(0, 25), st.sampled_from(["", "00", "30", ":45"])
    ).map(lambda zone: f"{zone[0]}{zone[1]:02}{zone[2]}"),
    st.sampled_from([" UTC", "UTC", " Z", "GMT"]),
)
PLACES = st.sampled_from(["", ".", ".0", ".5", ".999", ".0009", ".123456789", ".1\u0661", ".\u00b2", ",5"])
MONTHS = st.sampled_from([*slow_values.MONTHS, "jan", "Foo"])


def one_char_off(text: str, at: int, char: str) -> str:
    """Returns `text` with the character at `at` replaced, when there is one."""
    place = at % (len(text) + 8)
    return text if place >= len(text) else text[:place] + char + text[place + 1 :]


CHARS = st.sampled_from(["", " ", "0", "9", ":", "-", "\uff11", "\n", "Z"])


@settings(max_examples=deeper(160))
@example("2024-04-20", "T", "11:33:27", ".5", "+16:30", 26, ":")
@example("2024-04-20", "T", "11:33:27", "", "", 18, "")
@given(DATES, st.sampled_from(["T", "t", " ", "_"]), CLOCKS, PLACES, ZONES, st.integers(0, 60), CHARS)
def test_times_in_text_are_read_as_by_the_slow_implementation(
    date: str, between: str, clock: str, places: str, zone: str, at: int, char: str
) -> None:
    text = one_char_off(f"{date}{between}{clock}{places}{zone}", at, char)
    assert rfc3339_ms(text) == slow_values.iso_ms(text, "")
    assert rfc3339_ms(text, ZoneInfo("Europe/Berlin")) == slow_values.iso_ms(text, "Europe/Berlin")


@settings(max_examples=deeper(100))
@given(
    st.integers(0, 32), MONTHS, st.integers(1, 9999), CLOCKS, ZONES, st.booleans(), st.integers(0, 60), CHARS
)
def test_clf_times_are_read_as_by_the_slow_implementation(
    day: int, month: str, year: int, clock: str, zone: str, brackets: bool, at: int, char: str
) -> None:
    text = f"{day:02}/{month}/{year:04}:{clock} {zone.replace(':', '')}"
    text = one_char_off(f"[{text}]" if brackets else text, at, char)
    assert clf_ms(text) == slow_values.clf_ms(text)


SEGMENTS = st.sampled_from(["v1", "v", "", "items", "a.b", "{id}", "{kind}", "{}", "x{y}", "{", "(", "é"])
PATTERNS = st.lists(SEGMENTS, min_size=1, max_size=4).map(lambda segments: "/" + "/".join(segments))
PATHS = st.tuples(
    st.lists(
        st.sampled_from(["v1", "v", "", "items", "a.b", "axb", "7", "x{y}", "{id}", "(", "é", "\n"]),
        max_size=5,
    ),
    st.sampled_from(["", "", "?", "#", "?a/b", "#/v1?x"]),
).map(lambda drawn: "/" + "/".join(drawn[0]) + drawn[1])


@settings(max_examples=deeper(160))
@given(st.lists(PATTERNS, max_size=8, unique=True), st.lists(PATHS, min_size=1, max_size=6))
def test_a_path_gets_its_most_specific_route(patterns: list[str], paths: list[str]) -> None:
    field = mappings.ResourceField(("path",), tuple(patterns), "other")
    rule = text_rule(field, 12)
    assert rule.read(paths) == [slow_values.route_of(path, field, 12) for path in paths]


@given(
    st.one_of(st.ip_addresses().map(str), st.text(alphabet="0123456789abcdef:.%/ ", max_size=24)),
    st.integers(1, 128),
)
@example("1.2.3.4\n", 128)
@example("\u0661.2.3.4", 128)
def test_each_address_has_one_spelling(text: str, prefix6: int) -> None:
    assert address_of(text, prefix6) == slow_values.address_of(text, prefix6)


@given(st.text(max_size=300), st.integers(1, 300))
def test_is_name_agrees_with_the_slow_implementation(text: str, bytes_max: int) -> None:
    assert is_name(text, bytes_max) == slow_values.is_name(text, bytes_max)
