"""Too many rejected records in a row: the offset at which a partition stops, and what is kept of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzer.kernel.model import Counter, CounterState, DrainedCounts, FeedResult, Records, RecordSet
from analyzer.plan.mapping import TextField
from tests.support.counter_states import CounterStates
from tests.support.counters import CounterClass
from tests.support.counting import PART, a_record, mapping_of, some_records
from tests.support.recordsets import NOW_MS, Entry, batch

GOOD, BAD, TOMBSTONE = a_record(), b"{", None
FIELDLESS = a_record(key=None)  # has no field of a caller


NewCounter = Callable[..., Counter]


@pytest.fixture(scope="session")
def a_counter(counter_class: CounterClass) -> NewCounter:
    """Makes a counter that stops at `most` rejected records in a row, by default three."""
    return lambda most=3: counter_class({"log": mapping_of(rejected_in_row_max=most)}, ["caller"])


def batches(start: int, *values: bytes | None) -> RecordSet:
    """Returns a record set with one batch per record."""
    raw = b"".join(batch([Entry(value, time=n)], start + n) for n, value in enumerate(values))
    return RecordSet(PART, start, raw)


def outcome(found: DrainedCounts) -> tuple[int, int, int, int, list[int], int]:
    """Returns (next offset, seen, counted, dead, offsets of rejected records, length of the run)."""
    (progress,) = found.parts
    assert progress.state is not None
    return (
        progress.next, progress.seen, progress.counted, progress.dead,
        [rejected.offset for rejected in found.rejected], progress.state.reject_run,
    )  # fmt: skip


FITS = -mapping_of().fingerprint


@pytest.mark.parametrize("form", [some_records, batches])
def test_a_partition_stops_before_a_run_that_no_record_came_before(
    a_counter: NewCounter,
    form: Callable[..., Records | RecordSet],
) -> None:
    counter = a_counter()
    fed = counter.feed(form(0, TOMBSTONE, FIELDLESS, BAD, BAD, BAD, GOOD))
    assert fed[:6] == FeedResult(2, 2, 1, "too-many-rejected", bad=2, skip_to=5)[:6]
    assert fed.first is not None
    assert (fed.first.offset, fed.first.reason, fed.first.sample) == (2, "bad-json", BAD)
    found = counter.drain()
    assert outcome(found) == (2, 2, 1, 1, [0], 0)


@pytest.mark.parametrize("form", [some_records, batches])
def test_once_a_record_was_read_no_run_stops_the_partition(
    a_counter: NewCounter,
    form: Callable[..., Records | RecordSet],
) -> None:
    counter, states = a_counter(), CounterStates()
    assert counter.feed(form(0, BAD, BAD, GOOD, *[BAD] * 9)).status == "ok"
    found = counter.drain()
    states.store(found)
    assert outcome(found) == (12, 12, 1, 11, [*range(2), *range(3, 12)], FITS)
    counter = a_counter()
    counter.resume(PART, states.of(PART))
    assert counter.feed(form(12, *[BAD] * 9)).status == "ok"
    assert outcome(counter.drain())[-1] == FITS


def test_another_mapping_must_show_again_that_it_fits(a_counter: NewCounter) -> None:
    counter, states = a_counter(), CounterStates()
    counter.feed(some_records(0, GOOD))
    states.store(counter.drain())
    other = type(counter)({"log": mapping_of({"x": TextField(("x",))}, rejected_in_row_max=3)}, ["caller"])
    other.resume(PART, states.of(PART))
    assert other.feed(some_records(1, BAD, BAD, BAD)).status == "too-many-rejected"


def test_a_record_without_a_callers_field_is_counted_and_shows_nothing(a_counter: NewCounter) -> None:
    counter = a_counter()
    assert counter.feed(some_records(0, *[FIELDLESS] * 9)).status == "ok"
    assert outcome(counter.drain()) == (9, 9, 9, 0, [], 0)
    assert counter.feed(some_records(9, BAD, FIELDLESS, BAD, FIELDLESS, BAD)).status == "too-many-rejected"


def test_a_run_over_several_sets_stops_the_partition_at_its_first_record(a_counter: NewCounter) -> None:
    counter = a_counter()
    counter.feed(some_records(0, TOMBSTONE, BAD))
    assert counter.feed(some_records(2, BAD)).status == "ok"
    fed = counter.feed(batches(3, BAD, GOOD))
    assert (fed.next, fed.seen, fed.counted, fed.bad, fed.skip_to) == (1, 0, 0, 1, 4)
    found = counter.drain()
    assert outcome(found) == (1, 1, 0, 1, [0], 0)


def test_the_part_of_a_run_that_was_drained_stays_and_its_length_is_carried_on(a_counter: NewCounter) -> None:
    counter, states = a_counter(4), CounterStates()
    counter.feed(some_records(0, TOMBSTONE, BAD, BAD))
    states.store(counter.drain())
    assert states.of(PART).reject_run == 2
    counter = a_counter(4)
    counter.resume(PART, states.of(PART))
    fed = counter.feed(some_records(3, TOMBSTONE, BAD, BAD, GOOD))
    assert (fed.status, fed.bad, fed.skip_to) == ("too-many-rejected", 4, 6)
    assert outcome(counter.drain()) == (4, 1, 0, 1, [3], 2)  # two again: nothing is kept of the rest


def test_a_tombstone_neither_extends_nor_ends_a_run(a_counter: NewCounter) -> None:
    counter = a_counter()
    assert counter.feed(some_records(0, BAD, BAD, TOMBSTONE, TOMBSTONE, TOMBSTONE)).status == "ok"
    assert counter.feed(some_records(5, BAD)).status == "too-many-rejected"
    counter = a_counter()
    assert counter.feed(some_records(0, *[TOMBSTONE] * 9)).status == "ok"


def test_every_other_reason_extends_a_run(a_counter: NewCounter) -> None:
    """A wrong unit, for example, makes records of the future or the past."""
    for value in (a_record(ts=0), a_record(ts=2 * NOW_MS), a_record(key=1), b"\xff"):
        assert a_counter().feed(some_records(0, value, value, value)).status == "too-many-rejected"


def test_a_set_with_a_resume_token_is_counted_whole_or_not_at_all(a_counter: NewCounter) -> None:
    """Reading can continue only at an offset whose resume token is stored."""
    counter = a_counter()
    counter.feed(some_records(0, FIELDLESS, BAD, resume_token="w3"))
    fed = counter.feed(some_records(2, BAD, TOMBSTONE, BAD, BAD, BAD, resume_token="w7"))
    assert (fed.next, fed.seen, fed.counted, fed.status, fed.bad, fed.skip_to) == (
        2, 0, 0, "too-many-rejected", 2, 5,
    )  # fmt: skip
    found = counter.drain()
    assert outcome(found) == (2, 2, 1, 1, [1], 1)
    assert found.parts[0].resume_token == "w3"


def test_accepted_records_are_rejected_without_extending_a_run(a_counter: NewCounter) -> None:
    counter = a_counter()
    counter.resume(PART, CounterState(reject_run=2, rejects_accepted_to=3))
    assert counter.feed(some_records(0, *[BAD] * 3)).status == "ok"
    assert outcome(counter.drain()) == (3, 3, 0, 3, [0, 1, 2], 2)
    assert counter.feed(some_records(3, BAD)).status == "too-many-rejected"


def test_a_damaged_batch_behind_the_run_is_not_reported(a_counter: NewCounter) -> None:
    raw = batches(0, TOMBSTONE, BAD, BAD, BAD).raw
    damaged = bytearray(batch([Entry(GOOD)], 4))
    damaged[-1] ^= 1
    fed = a_counter().feed(RecordSet(PART, 0, raw + bytes(damaged)))
    assert (fed.status, fed.next, fed.bad) == ("too-many-rejected", 1, 1)
