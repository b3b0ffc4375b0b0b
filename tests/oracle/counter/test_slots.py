"""Slots and distinct values against the slow counter: requests some seconds apart, in several drains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.counting.counter.verdict_counts import with_admitted
from analyzer.kernel.model import DrainedCounts, Record, Records
from analyzer.plan.mapping import Condition, NumberField, ResourceField, SourceMapping, TextField
from analyzer.plan.meters import Meter, joins_by_meter, with_requests
from tests.oracle.counter import hostile
from tests.oracle.counter.slow_counter import SlowCounter
from tests.support.counters import CounterClass
from tests.support.counting import PART, mapping_of
from tests.support.depth import deeper
from tests.support.recordsets import NOW_MS
from tests.support.stored_counts import comparable

MAPPING = mapping_of(
    {
        "resource": ResourceField(("path",), ("/a", "/b")),
        "took": NumberField(("took",)),
        "gate": TextField(("gate",)),
        "policy": TextField(("policy",)),
    },
    deny_if=(Condition("gate", ("denied",)),),
)
METERS = (
    Meter("took", "took"), Meter("longest", "took", "max"),
    Meter("slow", where=(Condition("took", ("5-9",)),))
)  # fmt: skip
VALUES = (
    Meter("paths", "resource", "distinct"),
    Meter("slow-policies", "policy", "distinct", where=(Condition("took", ("5-9",)),)),
)
NAMES = ("requests", *(meter.name for meter in METERS))
GROUPINGS = st.sampled_from([("caller",), ("caller", "caller+resource"), ("caller", "everyone")])


class Sent(NamedTuple):
    """A request, and whether the counter is drained behind it."""

    key: str
    path: str
    at_ms: int
    took: int
    policy: str | None  # that denied it
    drains: bool

    def document(self, believed: Sequence[str | None]) -> bytes:
        """Returns the record, as one of an admitted request unless a believed policy denied it."""
        denied = {"gate": "denied", "policy": self.policy} if self.policy in believed else {}
        about = {"key": self.key, "path": self.path, "took": self.took}
        return json.dumps(about | denied | {"ts": NOW_MS + self.at_ms}).encode()


SENT = st.lists(
    st.builds(
        Sent,
        st.sampled_from("abc"),
        st.sampled_from(["/a", "/b"]),
        st.one_of(st.integers(-3_000, 3_000), st.integers(-200_000, 200_000)),
        st.integers(0, 9),
        st.sampled_from([None, None, "true", "false"]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=30,
)


@st.composite
def wanted(draw: st.DrawFn) -> hostile.Wanted:
    groupings = draw(GROUPINGS)
    slots = draw(hostile.slots_of(groupings, NAMES))
    return hostile.Wanted(groupings, METERS + VALUES, slots, draw(hostile.distinct_of(groupings, VALUES)))


def drained(
    counter_class: CounterClass,
    wanted: hostile.Wanted,
    sent: Sequence[Sent],
    believed: Sequence[str],
    mapping: SourceMapping = MAPPING,
) -> list[DrainedCounts]:
    """Returns what the counter drains; requests are denied where their policy is among `believed`."""
    counter, found = wanted.new(counter_class, mapping), []
    for offset, one in enumerate(sent):
        counter.feed(Records.of(PART, offset, offset + 1, [Record(offset, NOW_MS, one.document(believed))]))
        if one.drains:
            found.append(counter.drain())
    return [*found, counter.drain()]


@settings(max_examples=deeper(100), deadline=None)
@given(wanted(), SENT)
def test_slots_have_the_requests_of_their_seconds(
    counter_class: CounterClass, wanted: hostile.Wanted, sent: list[Sent]
) -> None:
    fast = drained(counter_class, wanted, sent, ["true", "false"])
    slow = drained(SlowCounter, wanted, sent, ["true", "false"])
    assert [*map(comparable, fast)] == [*map(comparable, slow)]


@settings(max_examples=deeper(100), deadline=None)
@given(wanted(), SENT)
def test_disbelieved_requests_count_in_minutes_and_slots_as_if_they_had_been_admitted(
    counter_class: CounterClass, wanted: hostile.Wanted, sent: list[Sent]
) -> None:
    joins = joins_by_meter(with_requests(METERS))
    decided = [
        with_admitted(
            counted, {at for at, one in enumerate(counted.verdicts) if one.policy == "false"}, joins
        )
        for counted in drained(counter_class, wanted, sent, ["true", "false"])
    ]
    for found, expected in zip(decided, drained(SlowCounter, wanted, sent, ["true"]), strict=True):
        assert found.rows == expected.rows
        assert [sorted(table.rows()) for table in found.slots if any(table.rows())] == [
            sorted(table.rows()) for table in expected.slots
        ]
