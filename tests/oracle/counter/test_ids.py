"""Ids of events: repeats across batches, drains and restarts, at the edges of horizon and `ids_max`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzer.kernel.model import Counter, Record, Records, RecordSet
from analyzer.plan.mapping import EventIdRule, ResourceField, SourceMapping, TextField
from analyzer.plan.meters import Meter
from tests.oracle.counter.slow_counter import SlowCounter
from tests.support.counter_states import CounterStates
from tests.support.counters import CounterClass
from tests.support.counting import PART, mapping_of
from tests.support.depth import deeper
from tests.support.recordsets import NOW_MS, Entry, batch
from tests.support.stored_counts import comparable

HORIZON_MS = 80_000
DAY_MS = 86_400_000
BAD = [b"{", None, b"\xff"]
# Around the ends of generations, of the horizon, of an hour and of what a clock may be wrong by.
MOVES_MS = [
    0, 0, 0, 1, 9_999, 10_000, 10_001, 40_000, 79_999, 80_000, 80_001, 90_000, -1, -30_000, -90_000,
    3_600_000, DAY_MS, DAY_MS + 1, -DAY_MS - 1, 3 * DAY_MS,
]  # fmt: skip


class Sent(NamedTuple):
    """One record: its caller, id, the distance of its Kafka time from that before; or an unreadable value."""

    caller: str
    id: Any
    moved_ms: int
    bad: bytes | str | None  # "" for a readable record


class Step(NamedTuple):
    """Some records, as batches or decoded; then perhaps a drain, and perhaps another counter."""

    records: Sequence[Sent]
    raw: bool
    resume_token: str
    drains: bool
    is_replaced: bool
    has_kafka_times: bool


SENT = st.builds(
    Sent,
    st.sampled_from("abcde"),
    st.sampled_from(["1", "2", "3", "4", "5", "6", "7", 7, 8, True, 1.5, None, "", "-", "\ud800", ["1"]]),
    st.sampled_from(MOVES_MS),
    st.sampled_from([""] * 9 + BAD),
)
STEPS = st.lists(
    st.builds(
        Step,
        st.lists(SENT, min_size=1, max_size=9),
        st.booleans(),
        st.sampled_from(["", "", "here"]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([True, True, False]),
    ),
    min_size=1,
    max_size=10,
)
MAPPINGS = st.builds(
    lambda ids_max, callers, rejected: replace(
        mapping_of(
            {
                "id": TextField(("id",)),
                "resource": ResourceField(("path",)),
                "target": TextField(("path",)),
            },
            future_ms_max=10 * DAY_MS,
            id=EventIdRule("id", HORIZON_MS, ids_max),
        ),
        callers_max=callers,
        rejected_in_row_max=rejected,
    ),
    st.sampled_from([3, 8, 16, 24, 10_000]),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([2, 3, 1000]),
)


def value_of(sent: Sent, ms: int) -> bytes | None:
    if sent.bad != "":
        assert not isinstance(sent.bad, str)
        return sent.bad
    return json.dumps({"key": sent.caller, "ts": ms, "id": sent.id, "path": f"/{sent.moved_ms % 5}"}).encode()


def taken(step: Step, start: int, ms: int) -> tuple[RecordSet | Records, int]:
    """Returns the records, and the Kafka time of the last one."""
    items = []
    for offset, sent in enumerate(step.records, start):
        ms += sent.moved_ms
        items.append(Record(offset, ms if step.raw or step.has_kafka_times else None, value_of(sent, ms)))
    if step.raw:
        entries = [Entry(item.value, time=(item.kafka_ms or 0) - NOW_MS) for item in items]
        raw = batch(entries[:3], start) + (batch(entries[3:], start + 3) if entries[3:] else b"")
        return RecordSet(PART, start, raw, (), step.resume_token), ms
    return Records.of(PART, start, start + len(items), items, step.resume_token), ms


GROUPINGS = [("caller",), ("caller", "resource"), ("everyone",), ("caller", "caller+model")]


@settings(max_examples=deeper(60), deadline=None)
@given(MAPPINGS, STEPS, st.sampled_from(GROUPINGS))
def test_repeats_are_those_of_the_slow_counter_with_any_drains_and_replacements(
    counter_class: CounterClass, mapping: SourceMapping, steps: list[Step], groupings: Sequence[str]
) -> None:
    def new(cls: CounterClass) -> Counter:
        named = {"model": "target"}
        return cls({"log": mapping}, groupings, [Meter("fine")], named_values=named, id_secret=b"secret")

    fast, slow = new(counter_class), new(SlowCounter)
    states, start, ms = CounterStates(), 500, NOW_MS
    for step in steps:
        records, ms = taken(step, start, ms)
        result = fast.feed(records)
        assert result == slow.feed(records)
        start = result.next
        if step.drains or result.status != "ok":
            counted = fast.drain()
            assert comparable(counted) == comparable(slow.drain())
            states.store(counted)
        if step.drains and step.is_replaced:
            fast = new(counter_class)
            fast.resume(PART, states.of(PART))
        if result.status != "ok":
            break
    assert comparable(fast.drain()) == comparable(slow.drain())


@settings(max_examples=deeper(8), deadline=None)
@given(st.lists(st.integers(0, 60), min_size=100, max_size=400), st.sampled_from([50, 10_000]))
def test_repeats_within_one_large_set_are_those_of_the_slow_counter(
    counter_class: CounterClass, ids: list[int], ids_max: int
) -> None:
    """Nothing but ids is drawn, so that whole columns are answered at once."""
    rule = EventIdRule("id", HORIZON_MS, ids_max)
    mapping = mapping_of({"id": TextField(("id",))}, id=rule, callers_max=2)
    items = [
        Record(at, NOW_MS + at * 100, json.dumps({"key": f"{one % 3}", "ts": NOW_MS, "id": one}).encode())
        for at, one in enumerate(ids)
    ]
    fast, slow = (cls({"log": mapping}, ["caller"]) for cls in (counter_class, SlowCounter))
    for counter in (fast, slow):
        counter.feed(Records.of(PART, 0, 5, items[:5]))
        counter.feed(Records.of(PART, 5, len(items), items[5:]))
    assert comparable(fast.drain()) == comparable(slow.drain())
