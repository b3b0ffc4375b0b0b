"""Too many rejected in a row: where a partition stops, and what of the run is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzer.core.counting.counter import PythonCounter
from analyzer.core.model import CounterState, DrainedCounts, FeedResult, Record, Records, RecordSet
from tests.support.counting import PART, a_record, mapping_of
from tests.support.recordsets import NOW_MS, Entry, batch
from tests.support.shelf import Shelf

GOOD, BAD, GONE = a_record(), b"{", None


def a_counter(most: int = 3) -> PythonCounter:
    return PythonCounter({"log": mapping_of(rejected_in_row_max=most)}, ["caller"])


def some(start: int, *values: bytes | None, resume_token: str = "") -> Records:
    items = [Record(start + n, NOW_MS + n, value) for n, value in enumerate(values)]
    return Records(PART, start, start + len(items), items, resume_token)


def batches(start: int, *values: bytes | None) -> RecordSet:
    """A batch for each record."""
    raw = b"".join(batch([Entry(value, time=n)], start + n) for n, value in enumerate(values))
    return RecordSet(PART, start, raw)


def outcome(found: DrainedCounts) -> tuple[int, int, int, int, list[int], int]:
    """Where it ends, seen, counted, dead, which were rejected, and the run."""
    (progress,) = found.parts
    assert progress.state is not None
    return (
        progress.next, progress.seen, progress.counted, progress.dead,
        [each.offset for each in found.rejected], progress.state.reject_run,
    )  # fmt: skip


@pytest.mark.parametrize("form", [some, batches])
def test_a_partition_stops_at_the_first_of_too_many_and_keeps_none_of_them(
    form: Callable[..., Records | RecordSet],
) -> None:
    counter = a_counter()
    fed = counter.feed(form(0, BAD, GOOD, BAD, BAD, BAD, GOOD))
    assert fed[:6] == FeedResult(2, 2, 1, "too-many-rejected", bad=2, skip_to=5)[:6]
    assert fed.first is not None
    assert (fed.first.offset, fed.first.reason, fed.first.sample) == (2, "bad-json", BAD)
    found = counter.drain()
    assert outcome(found) == (2, 2, 1, 1, [0], 0)


def test_a_run_goes_on_from_set_to_set_and_is_cut_back_to_its_first_record() -> None:
    counter = a_counter()
    counter.feed(some(0, GOOD, BAD))
    assert counter.feed(some(2, BAD)).status == "ok"
    fed = counter.feed(batches(3, BAD, GOOD))
    assert (fed.next, fed.seen, fed.counted, fed.bad, fed.skip_to) == (1, 0, 0, 1, 4)
    found = counter.drain()
    assert outcome(found) == (1, 1, 1, 0, [], 0)


def test_what_of_a_run_was_stored_before_stays_and_the_next_process_remembers_how_long_it_was() -> None:
    counter, shelf = a_counter(4), Shelf()
    counter.feed(some(0, GOOD, BAD, BAD))
    shelf.put(counter.drain())
    assert shelf.of(PART).reject_run == 2
    counter = a_counter(4)
    counter.resume(PART, shelf.of(PART))
    fed = counter.feed(some(3, GONE, BAD, BAD, GOOD))
    assert (fed.status, fed.bad, fed.skip_to) == ("too-many-rejected", 4, 6)
    assert outcome(counter.drain()) == (4, 1, 0, 1, [3], 2)  # again two: of the rest nothing is kept


def test_a_record_that_is_counted_ends_a_run_and_a_tombstone_does_not() -> None:
    counter = a_counter()
    assert counter.feed(some(0, BAD, BAD, GOOD, BAD, BAD, GONE, GONE, GONE)).status == "ok"
    assert counter.feed(some(8, BAD)).status == "too-many-rejected"
    counter = a_counter()
    assert counter.feed(some(0, *[GONE] * 9)).status == "ok"


def test_every_other_reason_counts() -> None:
    """A wrong unit makes records of the future or the past: that is how it would be noticed."""
    for value in (a_record(ts=0), a_record(ts=2 * NOW_MS), a_record(key=1), b"\xff"):
        assert a_counter().feed(some(0, value, value, value)).status == "too-many-rejected"


def test_of_lines_with_a_witness_a_set_is_counted_whole_or_not_at_all() -> None:
    """A file is known again by all that was counted of it: it can go on only from where it says so."""
    counter = a_counter()
    counter.feed(some(0, GOOD, BAD, resume_token="w3"))
    fed = counter.feed(some(2, BAD, GOOD, BAD, BAD, BAD, resume_token="w7"))
    assert (fed.next, fed.seen, fed.counted, fed.status, fed.bad, fed.skip_to) == (
        2, 0, 0, "too-many-rejected", 4, 7,
    )  # fmt: skip
    found = counter.drain()
    assert outcome(found) == (2, 2, 1, 1, [1], 1)
    assert found.parts[0].resume_token == "w3"


def test_what_somebody_has_accepted_is_set_aside_and_makes_no_run() -> None:
    counter = a_counter()
    counter.resume(PART, CounterState(reject_run=2, rejects_accepted_to=3))
    assert counter.feed(some(0, *[BAD] * 3)).status == "ok"
    assert outcome(counter.drain()) == (3, 3, 0, 3, [0, 1, 2], 2)
    assert counter.feed(some(3, BAD)).status == "too-many-rejected"


def test_a_damaged_batch_behind_the_run_is_not_told() -> None:
    raw = batches(0, GOOD, BAD, BAD, BAD).raw
    spoilt = bytearray(batch([Entry(GOOD)], 4))
    spoilt[-1] ^= 1
    fed = a_counter().feed(RecordSet(PART, 0, raw + bytes(spoilt)))
    assert (fed.status, fed.next, fed.bad) == ("too-many-rejected", 1, 1)
