"""Every metric's name, kind and labels, in one list. Never a label per caller: there may be millions."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from analyzer.core.model import DrainedCounts, Gap, Lag, Partition
from gatekeeper.model import Change, Set

FLUSH_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metric(NamedTuple):
    name: str  # ends with its unit; a counter's with _total
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


PARTITION = ("source", "topic", "partition")

RECORDS = Metric(
    "gatelock_records_total",
    "counter",
    "Records of the log, by what became of them: counted, duplicate, dead, late.",
    ("source", "result"),
)
REJECTED = Metric(
    "gatelock_rejected_records_total",
    "counter",
    "Records that could not be read or counted, by reason.",
    ("source", "reason"),
)
OVERFLOW = Metric(
    "gatelock_overflow_records_total",
    "counter",
    "Records that were counted, but not by their caller's name: there were too many callers.",
    ("source",),
)
LOCK_CHANGES = Metric(
    "gatelock_lock_changes_total",
    "counter",
    "Locks that this analyzer set, extended or cleared, by policy.",
    ("policy", "change"),
)
FAILURES = Metric(
    "gatelock_failures_total",
    "counter",
    "Attempts that failed and are made again, by what was away.",
    ("what",),
)
FLUSH = Metric(
    "gatelock_flush_seconds", "histogram", "Time that a flush took, from draining the counter to the commit."
)
LAG_RECORDS = Metric(
    "gatelock_lag_records", "gauge", "Records of a partition that are not taken yet.", PARTITION
)
LAG_SECONDS = Metric(
    "gatelock_lag_seconds", "gauge", "Age of a partition's oldest record that is not taken yet.", PARTITION
)
STOPPED = Metric(
    "gatelock_stopped_partitions",
    "gauge",
    "Partitions that wait for a person, by what stopped them; `gatelock gaps list` says which.",
    ("source", "kind"),
)
SINCE_FLUSH = Metric("gatelock_since_flush_seconds", "gauge", "Time since the last flush that was committed.")
SINCE_LOOP = Metric("gatelock_since_turn_seconds", "gauge", "Time since the loop last turned.")
PROBLEMS = Metric("gatelock_problems", "gauge", "Things that are wrong now; /readyz says which.")
PROBLEM = Metric(
    "gatelock_problem", "gauge", "1 for each thing that is wrong, by its name in /readyz.", ("name",)
)
ACTIVE_LOCKS = Metric(
    "gatelock_active_locks", "gauge", "Locks in force in the database, by policy.", ("policy",)
)
SUSPENDED = Metric(
    "gatelock_suspended", "gauge", "1 while every gate is open, by `gatelock locks suspend`; otherwise 0."
)
FEED_VERSION = Metric("gatelock_feed_version", "gauge", "Version of the lock feed in the database.")
BUILD = Metric("gatelock_build_info", "gauge", "The version that runs.", ("version",))

METRICS = (
    RECORDS, REJECTED, OVERFLOW, LOCK_CHANGES, FAILURES, FLUSH, LAG_RECORDS, LAG_SECONDS, STOPPED,
    SINCE_FLUSH, SINCE_LOOP,
    PROBLEMS, PROBLEM, ACTIVE_LOCKS, SUSPENDED, FEED_VERSION, BUILD,
)  # fmt: skip


class Measurements(NamedTuple):
    """What is measured at the moment somebody asks; None is not known and not shown."""

    lags: Mapping[Partition, Lag]
    since_flush_s: float | None
    since_loop_s: float | None
    problems: Collection[str]
    active_locks: Mapping[str, int] | None
    feed_version: int | None
    suspended: bool | None = None
    gaps: Mapping[Partition, Gap] = {}


class Metrics:
    """What is counted as it happens. A registry of its own: nothing global is touched."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._registry = prometheus.CollectorRegistry()
        self._records = self._counter(RECORDS)
        self._rejected = self._counter(REJECTED)
        self._overflow = self._counter(OVERFLOW)
        self._lock_changes = self._counter(LOCK_CHANGES)
        self._failures = self._counter(FAILURES)
        self._flush = prometheus.Histogram(
            FLUSH.name, FLUSH.help, buckets=FLUSH_BUCKETS_S, registry=self._registry
        )

    def record_flush(self, counted: DrainedCounts, changes: Sequence[Change], seconds: float) -> None:
        """One transaction was committed."""
        self._flush.observe(seconds)
        for progress in counted.parts:
            for result in ("counted", "duplicate", "dead", "late"):
                self._records.labels(progress.part.source, result).inc(getattr(progress, result))
            self._overflow.labels(progress.part.source).inc(progress.overflow)
        rejected = Tally((each.part.source, each.reason) for each in counted.rejected)
        for labels, count in rejected.items():
            self._rejected.labels(*labels).inc(count)
        self.record_lock_changes(changes)

    def record_lock_changes(self, changes: Sequence[Change]) -> None:
        """These locks were set, extended or cleared."""
        for change in changes:
            policy, word = (
                (change.lock.policy, "set") if isinstance(change, Set) else (change.at.policy, "clear")
            )
            self._lock_changes.labels(policy, word).inc()

    def record_failure(self, what: str) -> None:
        self._failures.labels(what).inc()

    def exposition(self, reading: Measurements, accept: str) -> tuple[bytes, str]:
        """Everything in the format that `accept` asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(_Everything(self._registry, reading, self._version)), content_type

    def _counter(self, metric: Metric) -> prometheus.Counter:
        return prometheus.Counter(metric.name, metric.help, metric.labels, registry=self._registry)


class _Everything(Collector):
    """What was counted and what is measured now. Gauges are made anew for each answer, so that a
    partition that went to another analyzer leaves nothing behind."""

    def __init__(self, counted: Collector, reading: Measurements, version: str) -> None:
        self._counted = counted
        self._reading = reading
        self._version = version

    def collect(self) -> Iterator[prometheus.Metric]:
        for metric in self._counted.collect():
            # When a series began helps nobody here, and doubles the number of series.
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric
        now = self._reading
        lags = [((part.source, part.topic, str(part.number)), lag) for part, lag in now.lags.items()]
        yield _gauge(LAG_RECORDS, {labels: lag.records for labels, lag in lags})
        yield _gauge(LAG_SECONDS, {labels: lag.seconds for labels, lag in lags})
        yield _gauge(STOPPED, Tally((part.source, gap.kind) for part, gap in now.gaps.items()))
        yield _gauge(SINCE_FLUSH, {(): now.since_flush_s})
        yield _gauge(SINCE_LOOP, {(): now.since_loop_s})
        yield _gauge(PROBLEMS, {(): len(now.problems)})
        yield _gauge(PROBLEM, {(name,): 1 for name in now.problems})
        yield _gauge(ACTIVE_LOCKS, {(policy,): count for policy, count in (now.active_locks or {}).items()})
        yield _gauge(SUSPENDED, {(): now.suspended})
        yield _gauge(FEED_VERSION, {(): now.feed_version})
        yield _gauge(BUILD, {(self._version,): 1})


def _gauge(metric: Metric, values: Mapping[tuple[str, ...], float | None]) -> prometheus.Metric:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        if value is not None:
            family.add_metric(labels, value)
    return family
