"""Outcomes: requests by the class of their duration, and errors, of a whole and of heavy series."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from analyzer.counting.counter.counter import PythonCounter
from analyzer.counting.counter.outcomes import SERIES_END, duration_classes, middle_us
from analyzer.kernel.model import Record, Records, SlotLayout
from analyzer.plan.mapping import Condition, NumberField, ResourceField, TextField
from tests.support.counting import PART, a_record, mapping_of
from tests.support.recordsets import NOW_MS

MAPPING = mapping_of(
    {
        "status": TextField(("status",)),
        "duration": NumberField(("took",), "duration", "ms"),
        "resource": ResourceField(("path",), ("/a", "/b")),
        "gate": TextField(("gate",)),
        "n": NumberField(("n",)),
    },
    deny_if=(Condition("gate", ("denied",)),),
)
LAYOUT = SlotLayout("caller+resource+outcome", 5, ("outcomes",))
SLOT_S = NOW_MS // 5000 * 5

GATE = {True: "denied", False: ""}
Request = tuple[str, str, str, int, bool]  # key, path, status, took, is denied
requests = st.tuples(
    st.sampled_from(["ann", "bob", "eve"]),
    st.sampled_from(["/a", "/b"]),
    st.sampled_from(["200", "500", "599", "404"]),
    st.sampled_from([0, 1, 3, 250, 9_000]),
    st.booleans(),
)


def counted(story: list[Request]) -> dict[tuple[str, str], int]:
    """Returns the drained outcomes by whole and by text, of all requests in one slot."""
    counter = PythonCounter({PART.source: MAPPING}, ["caller+resource"], slots=[LAYOUT])
    records = [
        Record(
            at,
            NOW_MS,
            a_record(key=key, path=path, status=status, took=took, gate="denied" if denied else ""),
        )
        for at, (key, path, status, took, denied) in enumerate(story)
    ]
    counter.feed(Records.of(PART, 0, len(records), records))
    found: dict[tuple[str, str], int] = {}
    for table in counter.drain().slots:
        assert (table.grouping, set(table.buckets_s)) == (LAYOUT.grouping, {SLOT_S})
        found |= dict(zip(zip(table.keys, table.resources, strict=True), table.admitted[0], strict=True))
    return found


@given(st.lists(requests, max_size=40))
def test_the_outcomes_are_those_of_each_admitted_request(story: list[Request]) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    admitted = [one for one in story if not one[4]]
    for key, path, status, took, _ in admitted:
        of_route = [one for one in admitted if one[1] == path]
        own = [one for one in of_route if one[0] == key]
        times = [sum(one[3] for one in wanted) for wanted in (own, of_route)]
        is_heavy = len(own) * 20 >= len(of_route) or times[0] * 20 >= times[1] > 0
        [class_] = duration_classes([took * 1000])
        for name in ("", f"api_key:{key}") if is_heavy else ("",):
            expected[path, f"{name}{SERIES_END}{class_}"] += 1
            expected[path, f"{name}{SERIES_END}e"] += status in ("500", "599")
            expected[path, f"{name}{SERIES_END}us"] += took * 1000
    assert counted(story) == {at: value for at, value in expected.items() if value}


def test_a_light_series_is_counted_with_all_others_alone() -> None:
    story: list[Request] = [("ann", "/a", "200", 250, False)] * 40 + [("bob", "/a", "200", 1, False)]
    found = counted(story)
    assert {name.partition(SERIES_END)[0] for _, name in found} == {"", "api_key:ann"}


@given(st.integers(1, 10**12))
def test_the_middle_of_a_class_is_at_most_6_per_cent_off(duration_us: int) -> None:
    assert abs(middle_us(*duration_classes([duration_us])) - duration_us) <= 0.0625 * duration_us
