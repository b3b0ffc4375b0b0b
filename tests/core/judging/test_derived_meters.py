"""Meters that policies with `where` make: their names, and the names of their sums."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from analyzer.plan.catalog import sum_meter, sum_windows
from analyzer.plan.derived_meters import (
    NAME_CHARACTERS_MAX,
    derived_meter,
    derived_name,
    is_derived,
    is_stated,
)
from analyzer.plan.mapping import Condition, Not, Pattern, in_order
from analyzer.plan.meters import DUPLICATES, REQUESTS, Meter
from analyzer.plan.sums import Sum, sum_text, total_key
from analyzer.plan.windows import Calendar, Rolling

FIELDS = st.sampled_from(["method", "path", "a-b.c"])
TEXTS = st.one_of(
    st.sampled_from(
        ["POST", "a|b", "x and y=z", "'", '"', "glob", "/v1/*", "500-599", "prefix '/a'", "\u00a0"]
    ),
    st.text(min_size=1, max_size=4),
)
VALUES = TEXTS | st.builds(Pattern, st.sampled_from(["glob", "prefix", "match"]), TEXTS)
WANTED = st.lists(VALUES, min_size=1, max_size=3, unique=True).map(tuple)
CONDITIONS = st.lists(st.builds(Condition, FIELDS, WANTED | WANTED.map(Not)), min_size=1, max_size=3).map(
    tuple
)
POST = Condition("method", ("POST",))
V1 = Condition("resource", (Pattern("glob", "/v1/*"),))


def test_a_name_says_what_is_counted_of_which_requests() -> None:
    errors = Condition("status", ("500-599", "429"))
    others = Condition("path", Not((Pattern("match", r"(?i)\.png$"), "/", Pattern("prefix", "/it's"))))
    assert derived_name("requests", [V1, POST]) == "requests where method=POST and resource=/v1/*"
    assert derived_name("volume", [errors]) == "volume where status=429|500-599"
    assert derived_name("requests", [others]) == (
        r"""requests where path!=/|match '(?i)\.png$'|prefix "/it's" """.rstrip()
    )
    assert derived_name("requests", [Condition("path", ("/v1/*", ""))]) == "requests where path=''|'/v1/*'"


@given(CONDITIONS, CONDITIONS)
def test_names_are_equal_for_equal_conditions_alone(
    one: tuple[Condition, ...], other: tuple[Condition, ...]
) -> None:
    for conditions in (one, other):
        name = derived_name("requests", conditions)
        assert name.isascii()
        assert name.isprintable()
        assert len(name) <= NAME_CHARACTERS_MAX
        for order in itertools.permutations(conditions):
            assert derived_name("requests", order) == name
    is_same = in_order(one) == in_order(other)
    assert (derived_name("requests", one) == derived_name("requests", other)) is is_same


def test_a_long_name_ends_with_a_digest_of_all_of_it() -> None:
    paths = [f"/v1/folders/{number:03}" for number in range(40)]
    names = {derived_name("requests", [Condition("path", tuple(paths[:count]))]) for count in range(1, 41)}
    assert len(names) == 40
    assert max(map(len, names)) == NAME_CHARACTERS_MAX
    assert derived_name("requests", [Condition("path", tuple(reversed(paths)))]) in names


def test_a_derived_meter_keeps_what_its_meter_counts() -> None:
    found = Condition("status", ("200",))
    volume = Meter("volume", "bytes", "max", (found,), renamed_from="traffic")
    derived = derived_meter(volume, [POST])
    assert derived == Meter("volume where method=POST", "bytes", "max", (found, POST))
    assert derived_meter(REQUESTS, [POST]) == Meter("requests where method=POST", where=(POST,))


def test_reports_list_unasked_what_configurations_state() -> None:
    derived = derived_name("requests", [POST])
    assert is_derived(derived)
    assert [is_stated(name) for name in (derived, "requests", "volume", DUPLICATES.name)] == [
        False, True, True, False
    ]  # fmt: skip


SUMS = st.builds(
    Sum,
    st.sampled_from(["caller", "caller+resource", "tenant"]),
    st.sampled_from(["requests", "requests-x", "volume"])
    | CONDITIONS.map(lambda one: derived_name("requests", one)),
    st.sampled_from([Calendar("day"), Calendar("day", "Europe/Berlin"), Rolling(60), Rolling(3_600)]),
)


@given(st.lists(SUMS, min_size=1, max_size=6, unique=True))
def test_a_sum_is_read_from_its_name_and_both_have_one_order(sums: list[Sum]) -> None:
    for sum_ in sums:
        assert sum_meter(sum_text(sum_)) == sum_.meter
        assert sum_windows(sum_text(sum_)) == sum_.window
    assert len(set(map(sum_text, sums))) == len(sums)
    assert sorted(sums, key=sum_text) == sorted(sums, key=total_key)
