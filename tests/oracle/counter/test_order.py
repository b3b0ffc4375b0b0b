"""Counts that depend on the order of records: runs of rejected ones, and callers that are counted by name.

The counter is replaced now and then by one that continues with what was stored; the slow one sees all
records.
"""

from __future__ import annotations

import json
from collections import Counter as Sums
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzer.counting.counter.caller_budget import drawn_offset
from analyzer.kernel.model import Counter, DrainedCounts, FactRun, Record, Records, RecordSet, Rejected
from analyzer.plan.mapping import ResourceField, SourceMapping, TextField
from analyzer.plan.meters import Meter
from tests.oracle.counter.slow_counter import SlowCounter
from tests.support.counter_states import CounterStates
from tests.support.counters import CounterClass
from tests.support.counting import PART, mapping_of
from tests.support.depth import deeper
from tests.support.recordsets import NOW_MS, Entry, batch
from tests.support.stored_counts import comparable

HOUR_MS = 3_600_000
BEGIN = 998  # the first drawn offset behind it is 1004
BAD = [b"{", None, None, b"\xff", b'{"key":1}']


class Step(NamedTuple):
    """Some records, as batches or decoded; then perhaps a drain, and perhaps another counter."""

    values: Sequence[bytes | None]
    raw: bool
    resume_token: str
    drains: bool
    is_replaced: bool


def document(caller: str, hours: int, plan: str | None, path: str | None) -> bytes:
    sent = {"key": caller, "ts": NOW_MS + hours * HOUR_MS, "plan": plan, "path": path}
    return json.dumps(sent).encode()


GOOD = st.builds(
    document,
    st.sampled_from("abcdefgh"),
    st.sampled_from([0, 0, 0, 0, 1, 1, -1, -30, 2, -25, -24]),
    st.sampled_from(["free", "free", "pro", None]),
    st.sampled_from(["/a", "/b?x", "/c", "/d", "", None]),
)
STEPS = st.lists(
    st.builds(
        Step,
        st.lists(st.one_of(GOOD, GOOD, GOOD, st.sampled_from(BAD)), min_size=1, max_size=8),
        st.booleans(),
        st.sampled_from(["", "", "here"]),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
MAPPINGS = st.builds(
    lambda callers, rejected: replace(
        mapping_of(
            {"plan": TextField(("plan",)), "resource": ResourceField(("path",))},
            future_ms_max=10 * HOUR_MS,
            facts=("plan",),
        ),
        callers_max=callers,
        rejected_in_row_max=rejected,
    ),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 100]),
)


GROUPINGS = [
    ("caller",),
    ("caller", "everyone"),
    ("everyone",),
    ("caller", "caller+resource", "resource"),
    ("caller", "caller+model", "resource", "model"),
]


def taken(step: Step, start: int) -> RecordSet | Records:
    if step.raw:
        entries = [Entry(value) for value in step.values]
        raw = batch(entries[:3], start) + (batch(entries[3:], start + 3) if entries[3:] else b"")
        return RecordSet(PART, start, raw, (), step.resume_token)
    items = [Record(start + n, NOW_MS, value) for n, value in enumerate(step.values)]
    return Records.of(PART, start, start + len(items), items, step.resume_token)


def summed(
    drained: Sequence[DrainedCounts],
) -> tuple[Sums[tuple[object, ...]], list[Rejected], list[int]]:
    """Returns the rows, the rejected records and the ledger of several drains together."""
    rows: Sums[tuple[object, ...]] = Sums()
    ledger = [0, 0, 0, 0, 0]
    for counted in drained:
        for row in counted.rows:
            rows[row[:-2]] += row.value
        for progress in counted.parts:
            numbers = (progress.seen, progress.counted, progress.dead, progress.late, progress.overflow)
            ledger = [total + number for total, number in zip(ledger, numbers, strict=True)]
    return rows, [rejected for counted in drained for rejected in counted.rejected], ledger


def store_facts(stored: dict[str, FactRun], counted: DrainedCounts) -> None:
    """Stores the plans of callers as a flush does: a first run of what is stored changes nothing."""
    for facts in counted.facts:
        for caller, (run,) in facts.runs.items():
            if run is not None and not (
                run.is_first and caller in stored and stored[caller].value == run.value
            ):
                stored[caller] = run._replace(is_first=False)


@settings(max_examples=deeper(100), deadline=None)
@given(MAPPINGS, STEPS, st.sampled_from(GROUPINGS))
def test_drains_and_replaced_counters_do_not_change_the_counts(
    counter_class: CounterClass, mapping: SourceMapping, steps: list[Step], groupings: Sequence[str]
) -> None:
    def new(cls: CounterClass) -> Counter:
        return cls({"log": mapping}, groupings, [Meter("fine")], named_values={"model": "plan"})

    fast, slow = new(counter_class), new(SlowCounter)
    states = CounterStates()
    stored: dict[str, FactRun] = {}
    expected: dict[str, FactRun] = {}

    def assert_equal(counted: DrainedCounts, slowly: DrainedCounts) -> None:
        """A counter that was replaced returns facts again that the other one knows to be stored."""
        store_facts(stored, counted)
        store_facts(expected, slowly)
        assert stored == expected
        assert comparable(counted._replace(facts=())) == comparable(slowly._replace(facts=()))

    start = BEGIN
    for step in steps:
        result = fast.feed(taken(step, start))
        assert result == slow.feed(taken(step, start))
        start = result.next
        if step.drains or result.status != "ok":
            counted = fast.drain()
            assert_equal(counted, slow.drain())
            states.store(counted)
        if step.drains and step.is_replaced:
            fast = new(counter_class)
            fast.resume(PART, states.of(PART))
        if result.status != "ok":
            break
    assert_equal(fast.drain(), slow.drain())


@settings(max_examples=deeper(60), deadline=None)
@given(MAPPINGS, STEPS)
def test_one_drain_and_many_drains_give_the_same_counts(
    counter_class: CounterClass, mapping: SourceMapping, steps: list[Step]
) -> None:
    """Runs of rejected records are left out: a drain stores their beginning before they are too long."""
    mapping = replace(mapping, rejected_in_row_max=1000)
    groupings = ["caller", "everyone"]
    at_once, parted = (counter_class({"log": mapping}, groupings) for _ in range(2))
    states = CounterStates()
    drained = []
    start = BEGIN
    for step in steps:
        start = at_once.feed(taken(step, start)).next
        parted.feed(taken(step, start - len(step.values)))
        if step.drains:
            drained.append(parted.drain())
            states.store(drained[-1])
        if step.drains and step.is_replaced:
            parted = counter_class({"log": mapping}, groupings)
            parted.resume(PART, states.of(PART))
    drained.append(parted.drain())
    assert summed(drained) == summed([at_once.drain()])


class Sent(NamedTuple):
    """A record, perhaps at a drawn offset; then perhaps a drain, and perhaps another counter."""

    kind: str
    caller: str
    hours: int
    is_drawn: bool
    drains: bool
    is_replaced: bool


SENT = st.builds(
    Sent,
    st.sampled_from(["key", "key", "user"]),
    st.sampled_from("abcdefghij"),
    st.sampled_from([0] * 12 + [1]),
    st.booleans(),
    st.sampled_from([False, False, True]),
    st.booleans(),
)


@settings(max_examples=deeper(100), deadline=None)
@given(st.integers(1, 3), st.lists(SENT, min_size=8, max_size=60))
def test_drawn_callers_are_those_of_the_slow_counter(
    counter_class: CounterClass, callers_max: int, sent: list[Sent]
) -> None:
    """With offsets far apart, half of which are drawn; callers of two kinds."""
    fields = {"user": TextField(("user",))}
    mapping = replace(mapping_of(fields, callers_max=callers_max), caller=("api_key", "user"))
    mapping = replace(mapping, future_ms_max=100 * HOUR_MS)

    def new(cls: CounterClass) -> Counter:
        return cls({"log": mapping}, ["caller"])

    fast, slow = new(counter_class), new(SlowCounter)
    states = CounterStates()
    start, hours, unsent = 0, 0, list[Record]()
    for number, one in enumerate(sent):
        hours += one.hours
        drawn = drawn_offset(number)
        value = json.dumps({one.kind: one.caller, "ts": NOW_MS + hours * HOUR_MS}).encode()
        offset = drawn if one.is_drawn else number * 1024 + (drawn + 1) % 1024
        unsent.append(Record(offset, NOW_MS, value))
        if not one.drains and number < len(sent) - 1:
            continue
        records = Records.of(PART, start, (number + 1) * 1024, unsent)
        assert fast.feed(records) == slow.feed(records)
        start, unsent = records.next, []
        counted = fast.drain()
        assert comparable(counted) == comparable(slow.drain())
        states.store(counted)
        if one.is_replaced:
            fast = new(counter_class)
            fast.resume(PART, states.of(PART))
