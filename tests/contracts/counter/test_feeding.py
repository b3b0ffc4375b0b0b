"""Feeding and draining: rows of groupings and meters, the ledger, several partitions, the bounds."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.kernel.model import (
    Counter,
    CountRow,
    FeedResult,
    Partition,
    PartitionProgress,
    Record,
    Records,
    RecordSet,
)
from analyzer.plan.mapping import Condition, Field, NumberField, ResourceField, SourceMapping, TextField
from analyzer.plan.meters import Meter
from tests.support.batches import records_of
from tests.support.counters import CounterClass
from tests.support.counting import PART, PLAIN, Counted, a_record, mapping_of, some_records, totals
from tests.support.recordsets import NOW_MS, PACK, batch, wrapped

OTHER = PART._replace(number=1)
NOW_S = NOW_MS // 1000
MINUTE = NOW_S - NOW_S % 60
FIELDS: dict[str, Field] = {
    "resource": ResourceField(("path",), ("/v1/items/{id}", "/v1/search")),
    "status": TextField(("status",)),
    "bytes": NumberField(("bytes",)),
    "took": NumberField(("took",), "duration"),
}
DENY = (Condition("status", ("429",)),)


NewCounter = Callable[..., Counter]


@pytest.fixture(scope="session")
def a_counter(counter_class: CounterClass) -> NewCounter:
    """Makes a counter of PLAIN records by caller, with bounds."""
    return lambda **bounds: counter_class({"log": PLAIN}, ["caller"], **bounds)


def test_each_grouping_and_each_meter_has_its_rows(counted: Counted) -> None:
    found = counted(
        mapping_of(FIELDS, deny_if=DENY),
        a_record(path="/v1/items/7", bytes=10, status=200),
        a_record(path="/v1/items/8", bytes=5, status=429),
        a_record(path="/v1/search?q", bytes=3, status=200),
        a_record(path="/elsewhere", bytes=2, status=503, key="ann"),
        groupings=["caller", "caller+resource", "resource"],
        meters=[Meter("volume", "bytes"), Meter("errors", where=(Condition("status", ("500-599",)),))],
    )
    acme, ann, items, search = "api_key:acme", "api_key:ann", "/v1/items/{id}", "/v1/search"
    expected = [
        ("caller", acme, "", "requests", 2, 1),
        ("caller", acme, "", "volume", 13, 5),
        ("caller", ann, "", "errors", 1, 0),
        ("caller", ann, "", "requests", 1, 0),
        ("caller", ann, "", "volume", 2, 0),
        ("caller+resource", acme, items, "requests", 1, 1),
        ("caller+resource", acme, items, "volume", 10, 5),
        ("caller+resource", acme, search, "requests", 1, 0),
        ("caller+resource", acme, search, "volume", 3, 0),
        ("caller+resource", ann, "other", "errors", 1, 0),
        ("caller+resource", ann, "other", "requests", 1, 0),
        ("caller+resource", ann, "other", "volume", 2, 0),
        ("resource", items, "", "requests", 1, 1),
        ("resource", items, "", "volume", 10, 5),
        ("resource", search, "", "requests", 1, 0),
        ("resource", search, "", "volume", 3, 0),
        ("resource", "other", "", "errors", 1, 0),
        ("resource", "other", "", "requests", 1, 0),
        ("resource", "other", "", "volume", 2, 0),
    ]
    assert found.rows == sorted(
        CountRow(grouping, key, resource, meter, 60, MINUTE, value, denied)
        for grouping, key, resource, meter, value, denied in expected
    )


def test_a_maximum_is_kept_of_admitted_and_of_denied_requests(counted: Counted) -> None:
    records = [
        a_record(bytes=size, status=status) for size, status in [(5, 200), (9, 429), (7, 200), (2, 429)]
    ]
    found = counted(mapping_of(FIELDS, deny_if=DENY), *records, meters=[Meter("largest", "bytes", "max")])
    assert totals(found)["api_key:acme", "largest"] == (7, 9)


def test_each_meter_counts_in_buckets_of_a_minute(counted: Counted) -> None:
    records = [a_record(ts=MINUTE * 1000 + ms, bytes=7) for ms in (-1, 0, 999, 59_999, 60_000)]
    found = counted(mapping_of(FIELDS), *records, meters=[Meter("volume", "bytes")])
    assert [(row.meter, row.width_s, row.bucket_s - MINUTE, row.value) for row in found.rows] == [
        ("requests", 60, -60, 1),
        ("requests", 60, 0, 3),
        ("requests", 60, 60, 1),
        ("volume", 60, -60, 7),
        ("volume", 60, 0, 21),
        ("volume", 60, 60, 7),
    ]


def test_a_meter_of_a_number_that_the_source_lacks_counts_nothing(counted: Counted) -> None:
    meters = [Meter("tokens", "tokens"), Meter("strange", where=(Condition("model", ("large",)),))]
    assert totals(counted(PLAIN, a_record(), meters=meters)) == {("api_key:acme", "requests"): (1, 0)}


def test_meters_may_share_a_field_and_fields_may_share_a_path(counted: Counted) -> None:
    fields: dict[str, Field] = {
        "n": NumberField(("n",)),
        "exact": NumberField(("n",), "decimal"),
        "text": TextField(("n",)),
    }
    meters = [
        Meter("sum", "n"),
        Meter("max", "n", "max"),
        Meter("exact", "exact"),
        Meter("of", where=(Condition("text", ("3",)),)),
    ]
    found = counted(mapping_of(fields), a_record(n=3), a_record(n=4), meters=meters)
    assert {meter: value for (_, meter), (value, _) in totals(found).items()} == {
        "sum": 7, "max": 4, "exact": 7_000_000, "of": 1, "requests": 2
    }  # fmt: skip


def test_the_ledger_adds_up_and_has_the_next_offset(a_counter: NewCounter) -> None:
    counter = a_counter()
    old = a_record(ts=0)
    fed = counter.feed(some_records(40, a_record(), None, old, a_record(), resume_token="w1"))
    assert fed == FeedResult(next=44, seen=4, counted=2)
    assert counter.feed(Records.of(PART, 44, 50, [Record(47, NOW_MS + 5, a_record())], "w2")) == FeedResult(
        50, 1, 1
    )
    (progress,) = counter.drain().parts
    assert progress._replace(state=None, delays=None) == PartitionProgress(
        PART, 40, 50, seen=5, counted=3, duplicate=0, dead=1, late=1, resume_token="w2"
    )
    assert progress.seen == progress.counted + progress.duplicate + progress.dead + progress.late


def test_a_second_drain_has_only_what_was_fed_since_the_first(a_counter: NewCounter) -> None:
    counter = a_counter()
    counter.feed(some_records(0, a_record(), b"?"))
    counter.drain()
    assert counter.drain() == ([], [], [], [], [], [], [])
    counter.feed(some_records(2, a_record()))
    again = counter.drain()
    assert [(row.value, row.denied) for row in again.rows] == [(1, 0)]
    assert [(progress.start, progress.next) for progress in again.parts] == [(2, 3)]


def test_a_set_without_records_is_reported_when_it_moves_the_offset(a_counter: NewCounter) -> None:
    counter = a_counter()
    counter.feed(RecordSet(PART, 7, b""))
    assert counter.drain().parts == []
    counter.feed(RecordSet(PART, 7, wrapped(b"", count=0, last=4, base=7)))
    assert [(progress.start, progress.next, progress.seen) for progress in counter.drain().parts] == [
        (7, 12, 0)
    ]


def test_sets_of_a_partition_must_follow_each_other(a_counter: NewCounter) -> None:
    counter = a_counter()
    counter.feed(some_records(0, a_record()))
    for start in (0, 2):
        with pytest.raises(ValueError, match=r"access-log\[0\]: a set from . was fed after 1"):
            counter.feed(some_records(start, a_record()))
    counter.feed(some_records(7, a_record(), part=OTHER))  # each partition has separate offsets
    assert sum(row.value for row in counter.drain().rows) == 2


def test_a_forgotten_partition_was_never_fed(a_counter: NewCounter) -> None:
    counter = a_counter()
    counter.feed(some_records(0, a_record(key="ann"), b"?"))
    counter.feed(some_records(0, a_record(), b"?", part=OTHER))
    counter.forget(PART)
    counter.forget(PART)
    found = counter.drain()
    assert [row.key for row in found.rows] == ["api_key:acme"]
    assert [item.part for item in [*found.parts, *found.rejected]] == [OTHER, OTHER]


def test_partitions_are_joined_in_rows_and_separate_in_ledgers(counter_class: CounterClass) -> None:
    meters = [Meter("largest", "bytes", "max")]
    counter = counter_class({"log": mapping_of(FIELDS)}, ["caller"], meters)
    for part, sizes in ((OTHER, (5, 1)), (PART, (2, 9))):
        counter.feed(some_records(0, *(a_record(bytes=size) for size in sizes), b"?", part=part))
    found = counter.drain()
    assert [(row.meter, row.value) for row in found.rows] == [("largest", 9), ("requests", 4)]
    assert [progress.part for progress in found.parts] == [PART, OTHER]
    assert [(rejected.part, rejected.offset) for rejected in found.rejected] == [(PART, 2), (OTHER, 2)]


def test_each_source_is_read_by_its_mapping(counter_class: CounterClass) -> None:
    web = Partition("file", "web", 0, "web", "access.log")
    line = b'192.0.2.1 - - [20/Nov/2026:23:06:40 +0000] "GET /v1/search HTTP/1.1" 200 5'
    counter = counter_class({"log": PLAIN, "web": SourceMapping(format="combined")}, ["caller"])
    counter.feed(some_records(0, a_record()))
    counter.feed(some_records(0, line, part=web))
    assert [row.key for row in counter.drain().rows] == ["address:192.0.2.1", "api_key:acme"]
    with pytest.raises(KeyError):
        counter.feed(some_records(0, line, part=Partition("file", "x", 0, "nowhere", "x.log")))


def test_a_counter_is_full_when_a_bound_is_reached(a_counter: NewCounter) -> None:
    few_rows, few_rejected = a_counter(rows_max=3), a_counter(rejected_max=2)
    for n in range(3):
        assert not few_rows.full()
        few_rows.feed(some_records(n, a_record(key=f"c{n}")))
    assert few_rows.full()
    few_rejected.feed(some_records(0, b"?", b"?", b"?"))
    assert few_rejected.full()
    assert len(few_rejected.drain().rejected) == 3, "a set is fed whole: one set may exceed a bound"
    assert not few_rejected.full()


def test_a_refused_batch_is_not_counted_and_those_before_it_are(a_counter: NewCounter) -> None:
    counter = a_counter()
    good, bad = batch([a_record()] * 3), batch([a_record()], 3)[:-1] + b"?"
    fed = counter.feed(RecordSet(PART, 0, good + bad + batch([a_record()], 4)))
    assert fed == FeedResult(next=3, seen=3, counted=3, status="corrupt", bad=3, skip_to=4)
    (progress,) = counter.drain().parts
    assert (progress.next, progress.counted) == (3, 3)
    again = counter.feed(RecordSet(PART, 3, bad))
    assert (again.next, again.status) == (3, "corrupt")
    assert counter.drain().parts == []


def test_small_batches_count_like_one_large_batch(a_counter: NewCounter) -> None:
    values = [a_record(key=f"c{n % 50}", ts=NOW_MS + n * 100) if n % 17 else b"?" for n in range(5000)]
    small = b"".join(batch([value], n) for n, value in enumerate(values))
    one, many = a_counter(), a_counter()
    assert one.feed(RecordSet(PART, 0, batch(values))) == many.feed(RecordSet(PART, 0, small))
    assert one.drain() == many.drain()


VALUES = st.one_of(
    st.builds(
        a_record, key=st.sampled_from(["acme", "ann", 7]), ts=st.integers(NOW_MS - 9**7, NOW_MS + 9**7)
    ),
    st.none(),
    st.binary(max_size=9),
)


@given(
    st.lists(st.lists(VALUES, min_size=1, max_size=9), max_size=4),
    st.sampled_from(sorted(PACK)),
    st.integers(0, 9),
)
def test_decoded_records_count_like_their_raw_batches(
    a_counter: NewCounter, batches_of_values: list[list[bytes | None]], codec: str, start: int
) -> None:
    raw, base = b"", 0
    for values in batches_of_values:
        raw += batch(values, base, codec=codec)
        base += len(values)
    next_offset, items = records_of(raw, start, [])
    by_bytes, by_records = a_counter(), a_counter()
    fed = by_bytes.feed(RecordSet(PART, start, raw))
    assert by_records.feed(Records.of(PART, start, next_offset, items)) == fed
    assert by_records.drain() == by_bytes.drain()


@given(st.lists(VALUES, max_size=30), st.data())
def test_any_division_of_a_log_into_sets_gives_the_same_counts(
    a_counter: NewCounter, values: list[bytes | None], data: st.DataObject
) -> None:
    whole, cut = a_counter(), a_counter()
    whole.feed(some_records(0, *values))
    at = 0
    while at < len(values):
        end = data.draw(st.integers(at + 1, len(values)))
        cut.feed(some_records(at, *values[at:end]))
        at = end
    assert whole.drain() == cut.drain()


def test_earlier_records_do_not_change_the_reading_of_later_ones(a_counter: NewCounter) -> None:
    """A counter may cache values: the texts "1" and "true" before the number 1 and the boolean."""
    fresh, used = a_counter(), a_counter()
    used.feed(
        some_records(
            0, *(json.dumps({"key": key, "ts": NOW_MS}).encode() for key in ("1", "acme", "true", ""))
        )
    )
    used.drain()
    records = [json.dumps({"key": key, "ts": NOW_MS}).encode() for key in (1, True, 1.0, "1", None, "acme")]
    for counter in (fresh, used):
        counter.feed(some_records(4, *records))
    first, second = fresh.drain(), used.drain()
    assert (first.rows, first.rejected) == (second.rows, second.rejected)
