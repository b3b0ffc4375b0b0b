"""The histogram of shipping delays: against a recount of single records, however they are fed."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.kernel.shipping_delays import (
    ALL_OF,
    BOUNDS_MS,
    EVERY,
    KEPT_MAX,
    DelaySample,
    ShippingDelays,
    joined,
    measure_delays,
)

MOMENTS = st.integers(0, 10_000_000)
KAFKA_MS = st.one_of(st.none(), st.just(-1), MOMENTS, st.just(2**63))
RECORDS = st.lists(st.tuples(KAFKA_MS, st.integers(-(2**63), 2**63) | MOMENTS), max_size=60)
SHARES = st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0])


def recount(records: Sequence[tuple[int | None, int]]) -> ShippingDelays | None:
    """The delays of records, one by one."""
    timed = [(kafka_ms, ms) for kafka_ms, ms in records if kafka_ms is not None and kafka_ms >= 0]
    if not timed:
        return None
    counts = [0] * (len(BOUNDS_MS) + 1)
    for kafka_ms, ms in timed:
        counts[sum(kafka_ms - ms > bound_ms for bound_ms in BOUNDS_MS)] += 1
    delays_ms = [kafka_ms - ms for kafka_ms, ms in timed]
    return ShippingDelays(tuple(counts), min(delays_ms), max(delays_ms), max(ms for ms, _ in timed))


@given(RECORDS)
@example([(0, 0), (1, 0), (None, 5)])
def test_a_histogram_equals_a_recount(records: list[tuple[int | None, int]]) -> None:
    kafka_ms, times_ms = [one for one, _ in records], [one for _, one in records]
    assert measure_delays(kafka_ms, times_ms) == recount(records)


@given(RECORDS, RECORDS)
def test_histograms_add_up(first: list[tuple[int | None, int]], more: list[tuple[int | None, int]]) -> None:
    assert joined([recount(first), None, recount(more)]) == recount([*first, *more])


@given(st.lists(st.integers(-1_000, 200_000_000), min_size=1, max_size=60), SHARES)
def test_a_percentile_is_never_too_small_and_at_most_one_bucket_too_large(
    delays_ms: list[int], share: float
) -> None:
    found = measure_delays(delays_ms, [0] * len(delays_ms)) if min(delays_ms) >= 0 else None
    found = found or measure_delays([ms + 1_000 for ms in delays_ms], [1_000] * len(delays_ms))
    assert found is not None
    exact = sorted(delays_ms)[ceil(share * len(delays_ms)) - 1]
    percentile = found.percentile_ms(share)
    assert percentile is not None
    assert exact <= percentile <= max(0, 6 * exact)


@given(st.lists(st.integers(1, 700), min_size=1, max_size=12), st.integers(0, 5))
def test_a_sample_does_not_depend_on_how_records_are_fed(sizes: list[int], missing_every: int) -> None:
    number = sum(sizes)
    kafka_ms = [None if missing_every and at % 7 == missing_every else at * at for at in range(number)]
    times_ms = [at * 3 for at in range(number)]
    sample, begin = DelaySample(has_own_times=True), 0
    for size in sizes:
        sample.add(kafka_ms[begin : begin + size], times_ms[begin : begin + size], begin)
        begin += size
    taken = [at for at in range(number) if at < ALL_OF or at % EVERY == 0]
    assert sample.delays() == recount([(kafka_ms[at], times_ms[at]) for at in taken])


def test_a_long_sample_keeps_a_bounded_number_of_times() -> None:
    sample, times_ms = DelaySample(has_own_times=True), list(range(10_000))
    for at in range(0, 1_000_000, 10_000):
        sample.add(times_ms, times_ms, at)
        assert len(sample._times_ms) <= KEPT_MAX + ALL_OF
    found = sample.delays()
    assert found is not None
    assert found.records == ALL_OF + len(range(ALL_OF + -ALL_OF % EVERY, 1_000_000, EVERY))


def test_without_own_times_only_the_newest_time_in_kafka_is_known() -> None:
    assert measure_delays([5, None, 9], [5, 7, 9], has_own_times=False) == ShippingDelays((), 0, 0, 9)
    found = measure_delays([3], [1])
    assert found is not None
    assert found.plus(ShippingDelays((), 0, 0, 9)) == found._replace(newest_ms=9)
