"""Limits with units: the meter's kind says which, and everything that shows an amount shows it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings
from analyzer.judging.kinds import policy_kind
from analyzer.plan.meter_units import UNITS, Unit, amount_text, readings
from analyzer.plan.plan import plan_from

Read = Callable[[str], Settings]

FIELDS = """
    [[sources]]
    topic = "calls"
    [sources.fields]
    user  = "user"
    took  = { path = "took", unit = "s" }
    cost  = { path = "cost", kind = "decimal" }
    spend = { path = "spend", kind = "money" }
    size  = { path = "size", kind = "bytes" }
    words = "words"
"""


def limited(field: str, limit: str) -> str:
    meter = f'[[meters]]\nname = "m"\nsum = "{field}"\n'
    policy = f'[[policies]]\nname = "p"\nmeter = "m"\nlimit = {limit}\nwindow = {{ per = "day" }}\n'
    return FIELDS + meter + policy


@pytest.mark.parametrize(
    ("field", "limit", "stored", "described"),
    [
        ("took", '"1h"', 3_600_000_000, "at most 1h of m"),
        ("took", '"1h30m"', 5_400_000_000, "at most 1h30m of m"),
        ("took", '"3.6 ms"', 3_600, "at most 3.6ms of m"),
        ("cost", '"50.00"', 50_000_000, "at most 50.00 of m"),
        ("cost", '"50"', 50_000_000, "at most 50.00 of m"),
        ("cost", '"8000000000"', 8_000_000_000_000_000, "at most 8,000,000,000.00 of m"),
        ("spend", '"50.00"', 50_000_000_000, "at most 50.00 of m"),
        ("spend", '"50"', 50_000_000_000, "at most 50.00 of m"),
        ("spend", '"0.000000075"', 75, "at most 0.000000075 of m"),
        ("size", '"2 GiB"', 2 << 30, "at most 2 GiB of m"),
        ("size", '"500 MB"', 500_000_000, "at most 500 MB of m"),
        ("words", "1_000", 1_000, "at most 1,000 m"),
    ],
)
def test_a_limit_has_the_unit_of_its_meter(
    read: Read, field: str, limit: str, stored: int, described: str
) -> None:
    (policy,) = read(limited(field, limit)).plan().policies
    assert policy.limit == stored
    assert described in policy_kind(policy).describe(policy)


@pytest.mark.parametrize(
    ("field", "limit", "what", "cure"),
    [
        ("took", "3600", 'measured in time, and 3600 has none', 'limit = "1h"'),
        ("cost", "50", "measured in decimals, and 50 has none", 'limit = "50.00"'),
        ("size", "2_000", '"m" is measured in bytes', 'limit = "2 GiB"'),
        ("took", '"2 GiB"', '"m" is measured in time', 'limit = "1h"'),
        ("words", '"1h"', '"m" has no unit', "write digits"),
        ("words", "0.5", "must be a whole number, or text with a unit, not 0.5", 'limit = "0.50"'),
        ("cost", '"0.0000001"', "is finer than millionths", "write fewer digits"),
        ("spend", "50", "measured in money, and 50 has none", 'limit = "50.00"'),
        ("spend", '"0.0000000001"', "is finer than", "write fewer digits"),
        ("spend", '"8000000000"', "is measured in money", 'limit = "50.00"'),
        ("took", '"0s"', '"0s" is too small', "choose 1 or more"),
        ("took", '"1 fortnight"', "must be a whole number, or text with a unit", '"1h30m"'),
    ],
)  # fmt: skip
def test_a_limit_in_another_unit_or_without_one_is_a_fault(
    read: Read, field: str, limit: str, what: str, cure: str
) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        read(limited(field, limit))
    (fault,) = raised.value.faults
    assert (fault.where, fault.line is None) == ('[[policies]] "p", limit', False)
    assert what in fault.what
    assert cure in fault.cure


def test_requests_take_no_unit(read: Read) -> None:
    with pytest.raises(ConfigInvalid, match='"requests" has no unit'):
        read(FIELDS + '[[policies]]\nname = "p"\nlimit = "1h"\nwindow = { per = "day" }\n')


WITHOUT_A_KIND = """
    [[sources]]
    topic  = "calls"
    [sources.fields]
    user  = "user"
    bytes = "size"
"""


@pytest.mark.parametrize(
    "another_source", ["", WITHOUT_A_KIND], ids=["alone", "with a source without a kind"]
)
def test_bytes_of_a_combined_line_are_bytes(read: Read, another_source: str) -> None:
    settings = read(f"""
        [[sources]]
        file   = "access.log"
        format = "combined"
        {another_source}
        [[meters]]
        name = "traffic"
        sum  = "bytes"
        """)
    assert settings.units() == {"traffic": "bytes"}


def test_the_stored_plan_keeps_the_unit_and_has_none_for_whole_numbers(read: Read) -> None:
    timed, plain = (read(limited(*case)).plan() for case in (("took", '"1h"'), ("words", "5")))
    assert plan_from(timed.to_json()) == timed
    assert '"unit":"duration"' in timed.to_json()
    assert '"slow":null,"unit"' not in plain.to_json(), "plans of earlier versions stay equal"


@given(st.sampled_from(UNITS), st.integers(1, (1 << 62) - 1))
def test_an_amount_is_shown_exactly(unit: Unit, value: int) -> None:
    assert readings(amount_text(value, unit).replace(",", ""))[unit] == Decimal(value)
