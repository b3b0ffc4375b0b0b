"""What depends on the order of records: runs of rejected ones, and who is counted by name.

The counter dies now and then, and the next one goes on with what was stored; the slow one sees all records.
"""

from __future__ import annotations

import json
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.core.counting.counter import PythonCounter
from analyzer.core.counting.meters import Meter
from analyzer.core.model import CounterState, DrainedCounts, Record, Records, RecordSet, Rejected
from analyzer.core.records.mapping import SourceMapping
from tests.oracle.counter.slow_counter import SlowCounter
from tests.support.counting import PART, mapping_of
from tests.support.recordsets import NOW_MS, Entry, batch
from tests.support.shelf import Shelf, names_of

HOUR_MS = 3_600_000
BEGIN = 604  # the records at 610 and, some further on, at 1597 are drawn
BAD = [b"{", None, None, b"\xff", b'{"key":1}']


class Step(NamedTuple):
    """What happens next: some records come, in which form; then perhaps a flush, perhaps another process."""

    values: Sequence[bytes | None]
    raw: bool
    resume_token: str
    drains: bool
    dies: bool


def document(caller: str, hours: int) -> bytes:
    return json.dumps({"key": caller, "ts": NOW_MS + hours * HOUR_MS}).encode()


GOOD = st.builds(
    document, st.sampled_from("abcdefgh"), st.sampled_from([0, 0, 0, 0, 1, 1, -1, -30, 2, -25, -24])
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
        mapping_of(future_ms_max=10 * HOUR_MS), callers_max=callers, rejected_in_row_max=rejected
    ),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 100]),
)


def taken(step: Step, start: int) -> RecordSet | Records:
    if step.raw:
        entries = [Entry(value) for value in step.values]
        raw = batch(entries[:3], start) + (batch(entries[3:], start + 3) if entries[3:] else b"")
        return RecordSet(PART, start, raw, (), step.resume_token)
    items = [Record(start + n, NOW_MS, value) for n, value in enumerate(step.values)]
    return Records(PART, start, start + len(items), items, step.resume_token)


def summed(
    all_counted: Sequence[DrainedCounts],
) -> tuple[Tally[tuple[object, ...]], list[Rejected], list[int]]:
    rows: Tally[tuple[object, ...]] = Tally()
    ledger = [0, 0, 0, 0, 0]
    for counted in all_counted:
        for row in counted.rows:
            rows[row[:-2]] += row.value
        for progress in counted.parts:
            each = (progress.seen, progress.counted, progress.dead, progress.late, progress.overflow)
            ledger = [total + more for total, more in zip(ledger, each, strict=True)]
    return rows, [each for counted in all_counted for each in counted.rejected], ledger


def of_two_hours(carried: CounterState) -> tuple[object, ...]:
    names = [names_of(carried.named, hour) for hour in (carried.hour, carried.hour_before)]
    return (carried.reject_run, carried.hour, carried.hour_before, carried.behind_run, *names)


@settings(max_examples=300, deadline=None)
@given(MAPPINGS, STEPS, st.sampled_from([("caller",), ("caller", "everyone"), ("everyone",)]))
def test_neither_flushes_nor_deaths_show_in_what_is_counted(
    mapping: SourceMapping, steps: list[Step], groupings: Sequence[str]
) -> None:
    def new() -> PythonCounter:
        return PythonCounter({"log": mapping}, groupings, [Meter("fine")])

    fast, slow = new(), SlowCounter({"log": mapping}, groupings, [Meter("fine")])
    shelf, theirs = Shelf(), Shelf()
    ours: list[DrainedCounts] = []
    know: list[DrainedCounts] = []
    start = BEGIN
    for step in steps:
        given = taken(step, start)
        said, known = fast.feed(given), slow.feed(given)
        assert said == known
        start = said.next
        if step.drains or said.status != "ok":
            know.append(slow.drain())
            theirs.put(know[-1])
            ours.append(fast.drain())
            shelf.put(ours[-1])
            assert ours[-1] == know[-1]
        if step.drains and step.dies:
            fast = new()
            fast.resume(PART, shelf.of(PART))
        if said.status != "ok":
            break
    assert of_two_hours(shelf.of(PART)) == of_two_hours(theirs.of(PART))


@settings(max_examples=200, deadline=None)
@given(MAPPINGS, STEPS)
def test_in_one_piece_or_in_many_the_same_is_counted(mapping: SourceMapping, steps: list[Step]) -> None:
    """But for a run of rejected records: its part before a flush is stored, whatever comes after."""
    mapping = replace(mapping, rejected_in_row_max=1000)
    at_once, parted = (PythonCounter({"log": mapping}, ["caller", "everyone"]) for _ in range(2))
    shelf = Shelf()
    ours = []
    start = BEGIN
    for step in steps:
        start = at_once.feed(taken(step, start)).next
        parted.feed(taken(step, start - len(step.values)))
        if step.drains:
            ours.append(parted.drain())
            shelf.put(ours[-1])
        if step.drains and step.dies:
            parted = PythonCounter({"log": mapping}, ["caller", "everyone"])
            parted.resume(PART, shelf.of(PART))
    ours.append(parted.drain())
    assert summed(ours) == summed([at_once.drain()])
