"""Shipping delays of records: the time in Kafka minus the time of the request, as a histogram.

Its cost is bounded. A histogram has one count per bucket of `BOUNDS_MS`. It is filled from two columns of
times, without an object per record: differences are taken and sorted in C, and each bucket that has any is
found by one search. Of many records only a sample is measured (`DelaySample`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import compress
from math import ceil
from operator import sub
from typing import NamedTuple, cast

# Upper bounds of the buckets, included: seven for each power of ten, so that a percentile is at most a half
# too large. The first has records whose Kafka time is not after their request; the last ends with nothing.
BOUNDS_MS = (
    0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700,
    1_000, 1_500, 2_000, 3_000, 5_000, 7_000, 10_000, 15_000, 20_000, 30_000, 60_000,
    120_000, 300_000, 600_000, 1_800_000, 3_600_000, 14_400_000, 86_400_000,
)  # fmt: skip


# Of the counted records since a drain, the first ones are all measured, and of those behind them each
# sixteenth: all others would cost a twentieth of the throughput, and say the same.
ALL_OF, EVERY = 1_000, 16
KEPT_MAX = 4_000  # times in memory, before they become a histogram


class ShippingDelays(NamedTuple):
    """The delays of some records of one partition.

    Attributes:
        counts: Records per bucket: one for each of `BOUNDS_MS`, and one for those above. Empty where
            requests have no time but the one in Kafka, so that no delay is known.
        least_ms: The least delay; below 0, the clock of the request's time was ahead of the one in Kafka.
        most_ms: The greatest delay.
        newest_ms: The newest time in Kafka.
    """

    counts: tuple[int, ...]
    least_ms: int
    most_ms: int
    newest_ms: int

    @property
    def records(self) -> int:
        return sum(self.counts)

    def plus(self, delays: ShippingDelays) -> ShippingDelays:
        """Returns the delays of both. Those without counts add their newest time alone."""
        newest_ms = max(self.newest_ms, delays.newest_ms)
        if not self.counts or not delays.counts:
            return (self if self.counts else delays)._replace(newest_ms=newest_ms)
        return ShippingDelays(
            tuple(map(sum, zip(self.counts, delays.counts, strict=True))),
            min(self.least_ms, delays.least_ms),
            max(self.most_ms, delays.most_ms),
            newest_ms,
        )

    def percentile_ms(self, share: float) -> int | None:
        """Returns a delay that this share of the records does not exceed; None without records.

        The upper bound of a bucket, or the greatest delay: never too small.

        >>> measure_delays([1_000, 1_000, 1_400], [999, 900, 0]).percentile_ms(0.5)
        100
        """
        remaining = ceil(share * self.records)
        if not self.records:
            return None
        for bound_ms, count in zip(BOUNDS_MS, self.counts, strict=False):
            remaining -= count
            if remaining <= 0:
                return min(bound_ms, self.most_ms)
        return self.most_ms


def measure_delays(
    kafka_ms: Sequence[int | None], times_ms: Sequence[int], *, has_own_times: bool = True
) -> ShippingDelays | None:
    """Returns the delays of records by their times in Kafka, and those of their requests; None without any.

    A record without a time in Kafka (None, or negative) has no delay. `has_own_times`: whether requests have
    a time of another clock than the one in Kafka.
    """
    logged_ms = cast("Sequence[int]", kafka_ms)
    try:
        is_complete = min(logged_ms, default=-1) >= 0
    except TypeError:  # some are None
        is_complete = False
    if not is_complete:
        has_time = [ms is not None and ms >= 0 for ms in kafka_ms]
        logged_ms, times_ms = list(compress(logged_ms, has_time)), list(compress(times_ms, has_time))
        if not logged_ms:
            return None
    newest_ms = max(logged_ms)
    if not has_own_times:
        return ShippingDelays((), 0, 0, newest_ms)
    delays_ms = sorted(map(sub, logged_ms, times_ms))
    counts = [0] * (len(BOUNDS_MS) + 1)
    index, last = 0, len(delays_ms)
    while index < last:
        bucket = bisect_left(BOUNDS_MS, delays_ms[index])
        end = last if bucket == len(BOUNDS_MS) else bisect_right(delays_ms, BOUNDS_MS[bucket], index)
        counts[bucket] += end - index
        index = end
    return ShippingDelays(tuple(counts), delays_ms[0], delays_ms[-1], newest_ms)


def joined(parts: Iterable[ShippingDelays | None]) -> ShippingDelays | None:
    """Returns the delays of all parts; None where none has any."""
    total: ShippingDelays | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total.plus(part)
    return total


class DelaySample:
    """The delays of a sample of the counted records of one partition, from one drain to the next.

    Which records are measured depends on how many were counted before, not on how they were fed.

    Args:
        has_own_times: Whether requests have a time of another clock than the one in Kafka.
    """

    __slots__ = ("_found", "_has_own_times", "_logged_ms", "_times_ms")

    def __init__(self, *, has_own_times: bool) -> None:
        self._has_own_times = has_own_times
        self._logged_ms: list[int | None] = []
        self._times_ms: list[int] = []
        self._found: ShippingDelays | None = None

    def add(self, kafka_ms: Sequence[int | None], times_ms: Sequence[int], counted: int) -> None:
        """Adds counted records by their times; `counted` is how many were added before."""
        begin = max(0, ALL_OF - counted)
        self._logged_ms += kafka_ms[:begin]
        self._times_ms += times_ms[:begin]
        if len(times_ms) > begin:
            begin += -(counted + begin) % EVERY
            self._logged_ms += kafka_ms[begin::EVERY]
            self._times_ms += times_ms[begin::EVERY]
        if len(self._times_ms) > KEPT_MAX:
            self._measure()

    def delays(self) -> ShippingDelays | None:
        """Returns the delays of the sample; None where no record has a time in Kafka."""
        self._measure()
        return self._found

    def _measure(self) -> None:
        delays = measure_delays(self._logged_ms, self._times_ms, has_own_times=self._has_own_times)
        self._found = joined([self._found, delays])
        self._logged_ms, self._times_ms = [], []
