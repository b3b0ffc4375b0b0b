"""Numbers as people read them, over everything that is counted: from nothing to 10^15."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.kernel.number_texts import count_text, micros_text, share_text, size_text
from analyzer.plan.meter_units import UNITS, chart_scale, rounded_text

NUMBERS = st.integers(0, 10**15)
FACTORS = {
    "": 1, "B": 1, "µs": 1, "thousand": 10**3, "kB": 10**3, "ms": 10**3, "million": 10**6, "MB": 10**6,
    "s": 10**6,
    "billion": 10**9, "GB": 10**9, "trillion": 10**12, "TB": 10**12, "PB": 10**15, "min": 60 * 10**6,
    "h": 3_600 * 10**6, "d": 86_400 * 10**6,
}  # fmt: skip
PART = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?: ([A-Za-zµ]+))?")


def read(text: str) -> Decimal:
    """Returns the number that a text says."""
    assert PART.sub("", text).strip() == "", text
    return sum(
        (Decimal(number.replace(",", "")) * FACTORS[unit] for number, unit in PART.findall(text)), Decimal(0)
    )


@pytest.mark.parametrize("shown", [count_text, size_text, micros_text])
@given(NUMBERS)
def test_a_text_says_its_number_to_a_part_in_a_hundred_in_few_characters(
    shown: Callable[[int], str], number: int
) -> None:
    text = shown(number)
    assert abs(read(text) - number) <= number * Decimal("0.01"), text
    assert len(text) <= 14, text
    assert "e" not in text.replace("thousand", "").lower() or "E" not in text


@pytest.mark.parametrize("shown", [count_text, size_text, micros_text])
@given(NUMBERS, NUMBERS)
def test_a_larger_number_never_reads_as_a_smaller_one(
    shown: Callable[[int], str], first: int, second: int
) -> None:
    small, large = sorted((first, second))
    assert read(shown(small)) <= read(shown(large))


@given(NUMBERS, NUMBERS)
def test_a_share_has_no_exponent_and_is_all_or_nothing_only_where_it_is(part: int, whole: int) -> None:
    text = share_text(part, whole)
    assert re.fullmatch(r"less than 0\.1 %|\d[\d,]*(\.\d)? %", text), text
    if whole:
        assert (text == "0 %") == (part == 0)
        assert part >= whole or text != "100 %"


@pytest.mark.parametrize("unit", [None, *UNITS])
@given(NUMBERS)
def test_every_unit_shows_every_number_and_an_axis_of_it_is_narrow(unit: str | None, number: int) -> None:
    assert rounded_text(number, unit)
    divisor = chart_scale(number, unit).divisor
    assert number < 2 * divisor or number / divisor < 20_000
