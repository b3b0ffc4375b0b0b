"""Ids of events: each caller and id counts once within a horizon of the partition's time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from analyzer.kernel.model import Counter, DrainedCounts, Record, Records
from analyzer.plan.mapping import EventIdRule, NumberField, SourceMapping, TextField
from analyzer.plan.meters import DUPLICATES, Meter
from tests.support.counter_states import CounterStates
from tests.support.counters import CounterClass
from tests.support.counting import PART, Counted, a_record, mapping_of, reasons, some_records, totals
from tests.support.recordsets import NOW_MS

ACME, BOB = "api_key:acme", "api_key:bob"
HORIZON_MS = 80_000
RULE = EventIdRule("id", HORIZON_MS, 1_000)
RULE_OF_MANY = EventIdRule("id", HORIZON_MS, 10_000)
MAPPING = mapping_of({"id": TextField(("id",))}, id=RULE)
DAY_MS = 86_400_000


def counter_of(counter_class: CounterClass, mapping: SourceMapping = MAPPING) -> Counter:
    return counter_class({PART.source: mapping}, ["caller"])


def feed(counter: Counter, *records: tuple[int, Any], start: int = 0) -> DrainedCounts:
    """Counts records with (Kafka time after NOW_MS, id), and drains."""
    items = [
        Record(start + at, NOW_MS + ms, a_record(id=id_, ts=NOW_MS + ms))
        for at, (ms, id_) in enumerate(records)
    ]
    counter.feed(Records.of(PART, start, start + len(items), items))
    return counter.drain()


def duplicates(found: DrainedCounts) -> int:
    [progress] = found.parts
    assert progress.seen == progress.counted + progress.duplicate + progress.dead + progress.late
    return progress.duplicate


def test_a_repeat_is_left_out_of_every_meter_and_shown_as_a_duplicate(counted: Counted) -> None:
    found = counted(
        MAPPING, a_record(id="a"), a_record(id="a"), a_record(id="b"), meters=[Meter("volume", "bytes")]
    )
    assert totals(found) == {(ACME, "requests"): (2, 0), (ACME, DUPLICATES.name): (1, 0)}
    assert duplicates(found) == 1


def test_callers_have_separate_ids(counted: Counted) -> None:
    found = counted(MAPPING, a_record(id="a"), a_record(id="a", key="bob"), a_record(id="a", key="bob"))
    assert totals(found) == {
        (ACME, "requests"): (1, 0), (BOB, "requests"): (1, 0), (BOB, DUPLICATES.name): (1, 0)
    }  # fmt: skip


@pytest.mark.parametrize("id_", [None, "", "-", True, 1.5, ["a"], 2**64], ids=str)
def test_records_without_a_usable_id_all_count(counted: Counted, id_: Any) -> None:
    found = counted(MAPPING, a_record(id=id_), a_record(id=id_), a_record(id="a"))
    assert totals(found) == {(ACME, "requests"): (3, 0)}
    assert found.parts[0].without_id == 2


@pytest.mark.parametrize("id_", [7, "7", "x" * 5_000, "\ud800"], ids=["number", "digits", "long", "half"])
def test_texts_and_whole_numbers_are_ids(counted: Counted, id_: Any) -> None:
    assert duplicates(counted(MAPPING, a_record(id=id_), a_record(id=id_))) == 1


def test_a_rejected_records_id_is_not_remembered(counted: Counted) -> None:
    found = counted(MAPPING, a_record(id="a", ts="x"), a_record(id="a"), a_record(id="a", ts="x"))
    assert reasons(found) == ["bad-time", "bad-time"]
    assert (found.parts[0].counted, found.parts[0].duplicate) == (1, 0)


def test_a_run_that_stops_a_partition_leaves_the_ids_before_it(counter_class: CounterClass) -> None:
    counter = counter_of(counter_class, replace(MAPPING, rejected_in_row_max=2))
    one, two, bad = a_record(id="a"), a_record(id="b"), b"{"
    fieldless = a_record(id="a", key=None)  # shows nothing about the mapping
    result = counter.feed(some_records(0, fieldless, fieldless, bad, bad, two))
    assert (result.status, result.next, result.counted) == ("too-many-rejected", 2, 1)
    states = CounterStates()
    states.store(counter.drain())
    after = counter_of(counter_class)
    after.resume(PART, states.of(PART))
    after.feed(some_records(4, two, one, fieldless))
    assert duplicates(after.drain()) == 1


def test_lines_that_are_counted_whole_or_not_at_all_remember_nothing_of_what_is_refused(
    counter_class: CounterClass,
) -> None:
    counter = counter_of(counter_class, replace(MAPPING, rejected_in_row_max=2))
    one, bad = a_record(id="a", key=None), b"{"
    assert counter.feed(some_records(0, one, bad, bad, resume_token="here")).status == "too-many-rejected"
    counter.feed(some_records(0, one, resume_token="here"))
    assert duplicates(counter.drain()) == 0


def test_an_id_is_known_for_the_horizon_and_forgotten_when_a_generation_began_that_long_ago(
    counter_class: CounterClass,
) -> None:
    counter = counter_of(counter_class)
    feed(counter, (0, "a"), (10_000, "b"))
    assert duplicates(feed(counter, (89_999, "a"), start=2)) == 1
    found = feed(counter, (90_000, "a"), (90_000, "b"), start=3)
    assert duplicates(found) == 1, "only b: a's generation ended when b's began, a horizon ago"
    state = found.parts[0].state
    assert state is not None
    assert state.ids is not None
    assert (state.ids.forgotten_to, state.ids.kept_ms) == (1, HORIZON_MS)


def test_without_a_kafka_time_the_requests_own_time_moves_the_horizon(counter_class: CounterClass) -> None:
    counter = counter_of(counter_class)
    items = [Record(at, None, a_record(id=id_, ts=NOW_MS + ms)) for at, (ms, id_) in enumerate(
        [(0, "a"), (10_000, "b"), (90_000, "a"), (0, "b")]
    )]  # fmt: skip
    counter.feed(Records.of(PART, 0, 4, items))
    assert duplicates(counter.drain()) == 1


def test_too_many_ids_end_generations_early_and_the_state_has_the_horizon_really_kept(
    counter_class: CounterClass,
) -> None:
    counter = counter_of(
        counter_class, mapping_of({"id": TextField(("id",))}, id=EventIdRule("id", HORIZON_MS, 16))
    )
    found = feed(counter, *((second * 1000, second) for second in range(17)))
    assert found.parts[0].state is not None
    ids = found.parts[0].state.ids
    assert ids is not None
    assert (ids.held, ids.kept_ms) == (15, 14_000)
    assert duplicates(feed(counter, (17_000, 2), (17_000, 1), start=17)) == 1, "1 was forgotten with 0"


@pytest.mark.parametrize("ahead_ms", [2 * DAY_MS, 20 * DAY_MS])
def test_one_wrong_clock_does_not_make_ids_forgotten(counter_class: CounterClass, ahead_ms: int) -> None:
    counter = counter_of(counter_class, replace(MAPPING, future_ms_max=30 * DAY_MS))
    feed(counter, (0, "a"), (20_000, "b"))
    assert duplicates(feed(counter, (ahead_ms, "c"), (20_001, "a"), start=2)) == 1
    after_a_weekend = [(ahead_ms + at, f"new {at}") for at in range(100)]
    assert duplicates(feed(counter, *after_a_weekend, (ahead_ms, "a"), start=4)) == 0


def test_a_duplicates_caller_gets_no_name_by_it(counter_class: CounterClass) -> None:
    counter = counter_of(counter_class, replace(MAPPING, callers_max=1))
    counter.feed(some_records(0, a_record(id="a"), *[a_record(id="b", key="bob")] * 2))
    assert totals(counter.drain()) == {
        (ACME, "requests"): (1, 0),
        ("overflow:", "requests"): (1, 0),
        ("overflow:", DUPLICATES.name): (1, 0),
    }


def test_a_counter_that_continues_recognises_what_was_stored(
    counter_class: CounterClass,
) -> None:
    counter, states = counter_of(counter_class), CounterStates()
    states.store(feed(counter, (0, "a"), (1, "b")))
    states.store(feed(counter, (2, "c"), start=2))
    after = counter_of(counter_class)
    after.resume(PART, states.of(PART))
    assert duplicates(feed(after, (3, "a"), (3, "c"), (3, "d"), start=3)) == 2


def test_a_small_blob_is_extended_and_a_large_one_is_followed_by_another(
    counter_class: CounterClass,
) -> None:
    counter, states, sizes = counter_of(counter_class, replace(MAPPING, id=RULE_OF_MANY)), CounterStates(), []
    for start, number in ((0, 100), (100, 27), (127, 1), (128, 5), (133, 1)):
        drained = feed(counter, *((0, f"id {start + at}") for at in range(number)), start=start)
        states.store(drained)
        counter = counter_of(counter_class, replace(MAPPING, id=RULE_OF_MANY))
        counter.resume(PART, states.of(PART))
        assert drained.parts[0].state is not None
        assert drained.parts[0].state.ids is not None
        sizes += [(blob.number, len(blob.hashes) // 8) for blob in drained.parts[0].state.ids.blobs]
    assert sizes == [(0, 100), (0, 127), (0, 128), (1, 5), (1, 6)]
    assert duplicates(feed(counter, *((0, f"id {at}") for at in range(134)), start=134)) == 134


def test_an_id_must_be_a_text_field(counter_class: CounterClass) -> None:
    for fields in ({}, {"id": NumberField(("id",))}):
        with pytest.raises(ValueError, match="not mapped as a text field"):
            counter_of(counter_class, mapping_of(fields, id=RULE))
