"""Delays and clocks that an analyzer has measured in the last minutes, as it stores them for commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from analyzer.kernel.shipping_delays import ShippingDelays, joined

STRETCH_S = 60.0  # what is shown covers the last one or two of them
LISTED_MAX = 3
P50, P99 = 0.5, 0.99


class DelayLimits(NamedTuple):
    """Limits of delays and clock differences, in seconds; beyond them there is an alarm."""

    shipping_s: float = 30.0
    skew_s: float = 2.0


class SourceDelay(msgspec.Struct, frozen=True):
    """The shipping delay of the records of one source: their time in Kafka minus that of their requests.

    Attributes:
        p50_ms: Half of the sampled records have no greater delay.
        p99_ms: 99 % of them have no greater delay.
        records: Size of the sample.
    """

    p50_ms: int
    p99_ms: int
    records: int


class PartitionClock(msgspec.Struct, frozen=True):
    """The clocks of one partition, as far as the times of its records prove something.

    Attributes:
        source: The source of the partition.
        ahead_ms: The newest time in Kafka minus the database's clock when it was stored, at its greatest.
            Above 0, the clock of Kafka's times is ahead by as much at least; below 0, it is behind by as much
            at most, since the delay of reading and storing is part of it.
        least_ms: The least shipping delay; below 0, the clock of the requests' times is ahead of that of
            Kafka's times by as much at least. None where requests have no times but those in Kafka.
    """

    source: str
    ahead_ms: int
    least_ms: int | None

    @property
    def skew_ms(self) -> int:
        """By how much some clock is ahead at least, as far as the times prove it; else 0."""
        return max(0, self.ahead_ms, -(self.least_ms or 0))


class MeasuredDelays(msgspec.Struct, frozen=True):
    """Measurements of one analyzer in the last minutes.

    Attributes:
        flush_every_s: Its configured time between two flushes.
        flush_s: Its slowest flush; None without any.
        lag_s: The greatest age of a record that it had not read yet.
        sources: Shipping delays by source; none of a source whose records have no two times.
        clocks: What is known of clocks, by the text of the partition, `topic[number]`.
    """

    flush_every_s: float = 0.0
    flush_s: float | None = None
    lag_s: float = 0.0
    sources: dict[str, SourceDelay] = {}
    clocks: dict[str, PartitionClock] = {}

    def to_json(self) -> str:
        """Returns the text for `measured_from`."""
        return msgspec.json.encode(self).decode()


def measured_from(text: str) -> MeasuredDelays | None:
    """Returns what `to_json` made a text of; None for "", and for a text that cannot be read."""
    try:
        return msgspec.json.decode(text, type=MeasuredDelays) if text else None
    except msgspec.MsgspecError:  # of another version
        return None


def alarms(measured: MeasuredDelays, limits: DelayLimits) -> dict[str, str]:
    """Returns what exceeds the limits: a sentence by the name of the alarm."""
    return dict(_alarms(measured, limits))


def _alarms(measured: MeasuredDelays, limits: DelayLimits) -> Iterator[tuple[str, str]]:
    slow = {
        source: delay.p99_ms / 1000
        for source, delay in measured.sources.items()
        if delay.p99_ms > limits.shipping_s * 1000
    }
    if slow:
        shown = _listed([f"{source} {delay_s:g} s" for source, delay_s in sorted(slow.items())])
        yield (
            "shipping-delay",
            f"records reach Kafka late after their requests (99th percentile): {shown}; locks are late by as "
            f"much, and shipping_delay_max is {limits.shipping_s:g} s",
        )
    skewed = {part: clock for part, clock in measured.clocks.items() if clock.skew_ms > limits.skew_s * 1000}
    if skewed:
        shown = _listed([f"{part} {clock_sentence(clock)}" for part, clock in sorted(skewed.items())])
        yield "clock-skew", f"clocks differ by more than clock_skew_max = {limits.skew_s:g} s: {shown}"


def clock_sentence(clock: PartitionClock) -> str:
    """Returns which clock is ahead of which, as far as the times of a partition prove it.

    >>> clock_sentence(PartitionClock("web", 3_000, 5))
    "has Kafka times 3.0 s ahead of the database's clock"
    """
    if clock.ahead_ms >= -(clock.least_ms or 0):
        return f"has Kafka times {clock.ahead_ms / 1000:.1f} s ahead of the database's clock"
    return f"has requests {-(clock.least_ms or 0) / 1000:.1f} s ahead of their Kafka times"


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - LISTED_MAX} more" if len(items) > LISTED_MAX else ""
    return ", ".join(items[:LISTED_MAX]) + more


class _Stretch(NamedTuple):
    """Measurements of one stretch of time, by the source and the text of a partition."""

    delays: dict[tuple[str, str], ShippingDelays]
    ahead_ms: dict[tuple[str, str], int]
    seconds: list[float]  # the slowest flush and the greatest lag


class RecentDelays:
    """Keeps what the flushes of the last one or two minutes have measured.

    Its size is bounded by the partitions that are read in that time. Uptimes are in seconds.

    Args:
        flush_every_s: The configured time between two flushes.
    """

    def __init__(self, flush_every_s: float = 0.0) -> None:
        self.flush_every_s = flush_every_s
        self._before, self._current = _new(), _new()
        self._began_s = float("-inf")

    def add_flush(self, seconds: float, lag_s: float, now_s: float) -> None:
        """Adds the duration of a flush, and the greatest lag of a partition at that time."""
        self._advance(now_s)
        slowest = self._current.seconds or [0.0, 0.0]
        self._current.seconds[:] = [max(slowest[0], seconds), max(slowest[1], lag_s)]

    def add(self, key: tuple[str, str], delays: ShippingDelays, stored_ms: int, now_s: float) -> None:
        """Adds the delays of a partition, by its source and text, that were stored at that database time."""
        self._advance(now_s)
        total, ahead_ms = joined([self._current.delays.get(key), delays]), delays.newest_ms - stored_ms
        if total is not None:
            self._current.delays[key] = total
        self._current.ahead_ms[key] = max(ahead_ms, self._current.ahead_ms.get(key, ahead_ms))

    def measured(self, now_s: float) -> MeasuredDelays:
        """Returns what was measured in the last minutes."""
        self._advance(now_s)
        stretches = (self._before, self._current)
        parts = {*self._before.delays, *self._current.delays}
        delays = {key: joined(stretch.delays.get(key) for stretch in stretches) for key in sorted(parts)}
        ahead_ms = {
            key: max(stretch.ahead_ms[key] for stretch in stretches if key in stretch.ahead_ms)
            for key in delays
        }
        seconds = [stretch.seconds for stretch in stretches if stretch.seconds]
        return MeasuredDelays(
            self.flush_every_s,
            max((pair[0] for pair in seconds), default=None),
            max((pair[1] for pair in seconds), default=0.0),
            _by_source(delays),
            {
                part: PartitionClock(source, ahead_ms[source, part], delay.least_ms if delay.counts else None)
                for (source, part), delay in delays.items()
                if delay is not None
            },
        )

    def _advance(self, now_s: float) -> None:
        if now_s - self._began_s >= STRETCH_S:
            is_next = now_s - self._began_s < 2 * STRETCH_S
            self._before, self._current = self._current if is_next else _new(), _new()
            self._began_s = now_s


def _new() -> _Stretch:
    return _Stretch({}, {}, [])


def _by_source(delays: Mapping[tuple[str, str], ShippingDelays | None]) -> dict[str, SourceDelay]:
    by_source = {}
    for source in sorted({source for source, _ in delays}):
        whole = joined(
            delay for (name, _), delay in delays.items() if name == source and delay and delay.counts
        )
        if whole is not None:
            p50, p99 = whole.percentile_ms(P50), whole.percentile_ms(P99)
            by_source[source] = SourceDelay(p50 or 0, p99 or 0, whole.records)
    return by_source
