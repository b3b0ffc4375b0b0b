"""All metrics of the analyzer: their definitions, their counters, and the text of `/metrics`.

A new counter is a `Metric` here, a line in `Metrics.__init__` and a method that counts; a new gauge is a
`Metric`, a field of `Measurements` that `analyzer.faces.app` fills, and an entry of `GAUGES`.

No metric has a label for the caller: there may be millions of callers, and each value is a time series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from analyzer.alerts.message_rows import MessageCounts
from analyzer.counting.measured_delays import MeasuredDelays
from analyzer.faces.signals.signal_kinds import Signal
from analyzer.flush.pipeline import FlushResult
from analyzer.gates.fleet_summary import FleetSummary
from analyzer.judging.judge import Judged
from analyzer.kernel.model import Gap, Lag, Partition, shown_partition
from gatekeeper.model import Set

PATH_LABELS = ("topic", "name")  # which may be those of followed files
NOT_MEASURED = MeasuredDelays()
BY_RECORDS = "records"  # the cause of a change of a lock that a flush has made
FLUSH_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metric(NamedTuple):
    """Definition of one metric."""

    name: str  # ends with the unit, or with _total for a counter
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


PARTITION = ("source", "topic", "partition")

RECORDS = Metric(
    "gatelock_records_total",
    "counter",
    "Records read from the log, by result: counted, duplicate, dead, late.",
    ("source", "result"),
)
REJECTED = Metric(
    "gatelock_rejected_records_total",
    "counter",
    "Records that were rejected, by reason.",
    ("source", "reason"),
)
OVERFLOW = Metric(
    "gatelock_overflow_records_total",
    "counter",
    "Records counted in overflow instead of by their caller's name, because there were too many callers.",
    ("source",),
)
RENAMED = Metric(
    "gatelock_renamed_records_total",
    "counter",
    "Records counted under another name of their request, its address or `unnamed:`, because the name of "
    "their caller was missing or unusable, or did not count by `count_if`.",
    PARTITION,
)
WITHOUT_ID = Metric(
    "gatelock_records_without_id_total",
    "counter",
    "Records of a source with ids that were counted without one: a repeat of them would count again.",
    ("source",),
)
UNUSABLE_FACTS = Metric(
    "gatelock_unusable_facts_total",
    "counter",
    "Values in records that cannot be the fact about a caller that their field states, and are ignored.",
    ("source", "fact"),
)
DISBELIEVED = Metric(
    "gatelock_disbelieved_verdicts_total",
    "counter",
    "Requests that their records call denied and that count nevertheless, because no lock was in force.",
    ("source",),
)
NOTICES = Metric(
    "gatelock_notices_total",
    "counter",
    "Notices that this analyzer raised, by policy.",
    ("policy",),
)
LOCK_CHANGES = Metric(
    "gatelock_lock_changes_total",
    "counter",
    "Locks that this analyzer set (or extended) and cleared, by policy, mode (enforced, shadow) and cause: "
    "records, or the job of upkeep that judged.",
    ("policy", "change", "mode", "cause"),
)
DENIED = Metric(
    "gatelock_denied_requests_total",
    "counter",
    "Requests that gates have denied, as the log has them, by the policy of the lock: empty where records "
    "name none, `?` for names that no policy has.",
    ("source", "policy"),
)
FAILURES = Metric(
    "gatelock_failures_total",
    "counter",
    "Failed attempts that are repeated, by the dependency or the job that failed.",
    ("what",),
)
REFUSED = Metric(
    "gatelock_refused_requests_total",
    "counter",
    "Requests over HTTP that were refused: no-token, invalid-token, scope, not-local, other-token, "
    "too-many-gates.",
    ("reason",),
)
FLUSH = Metric(
    "gatelock_flush_seconds", "histogram", "Duration of a flush, from draining the counter to the commit."
)
FLUSH_STEP = Metric(
    "gatelock_flush_step_seconds_total",
    "counter",
    "Time in each step of flushes: offsets, plan, verdicts, totals, buckets, shared-totals, judge, publish, "
    "commit.",
    ("step",),
)
RELOADED = Metric(
    "gatelock_config_last_reload_successful",
    "gauge",
    "1 if the configuration was accepted when it was last read, 0 if it was refused.",
)
RELOADED_AT = Metric(
    "gatelock_config_last_reload_success_timestamp_seconds",
    "gauge",
    "Time at which a configuration was last accepted, in seconds since 1970.",
)
LAG_RECORDS = Metric(
    "gatelock_lag_records", "gauge", "Records of a partition that have not been read yet.", PARTITION
)
LAG_SECONDS = Metric(
    "gatelock_lag_seconds",
    "gauge",
    "Age of the oldest record of a partition that has not been read yet.",
    PARTITION,
)
EVENT_IDS = Metric(
    "gatelock_event_ids",
    "gauge",
    "Ids of events that a partition remembers.",
    PARTITION,
)
ID_HORIZON = Metric(
    "gatelock_event_id_horizon_seconds",
    "gauge",
    "How long a partition remembers the id of an event: less than `id_horizon` where there are more than "
    "`ids_max`.",
    PARTITION,
)
SHIPPING_P50 = Metric(
    "gatelock_shipping_delay_p50_seconds",
    "gauge",
    "Shipping delay of the last minutes that half of the records do not exceed.",
    ("source",),
)
SHIPPING_P99 = Metric(
    "gatelock_shipping_delay_p99_seconds",
    "gauge",
    "Shipping delay of the last minutes that 99 % of the records do not exceed.",
    ("source",),
)
KAFKA_AHEAD = Metric(
    "gatelock_kafka_clock_ahead_seconds",
    "gauge",
    "Newest time in Kafka minus the database's clock when it was stored: above 0, Kafka's times are ahead by "
    "as much at least; below 0, behind by as much at most.",
    PARTITION,
)
REQUESTS_AHEAD = Metric(
    "gatelock_request_clock_ahead_seconds",
    "gauge",
    "Time of a request minus its time in Kafka, at its greatest: above 0, the clock of the requests is ahead "
    "by as much at least.",
    PARTITION,
)
SIGNAL = Metric(
    "gatelock_signal",
    "gauge",
    "How many parts raise a signal, by its name and severity; `gatelock doctor` describes them.",
    ("name", "severity"),
)
STOPPED = Metric(
    "gatelock_stopped_partitions",
    "gauge",
    "Partitions that wait for an operator, by what stopped them; "
    "`gatelock upkeep sources list --gaps` names them.",
    ("source", "kind"),
)
SINCE_FLUSH = Metric("gatelock_since_flush_seconds", "gauge", "Time since a flush was last committed.")
SINCE_LOOP = Metric("gatelock_since_loop_seconds", "gauge", "Time since the loop last completed.")
PROBLEMS = Metric("gatelock_problems", "gauge", "Number of current problems; /readyz describes them.")
PROBLEM = Metric(
    "gatelock_problem", "gauge", "1 for each current problem, by its name in /readyz.", ("name",)
)
FAILING_JOBS = Metric(
    "gatelock_failing_job",
    "gauge",
    "1 for each job of upkeep that fails at present, by its name; `gatelock doctor` has the error.",
    ("name",),  # not `job`: Prometheus gives this label to every target
)
ACTIVE_LOCKS = Metric(
    "gatelock_active_locks", "gauge", "Locks in force in the database, by policy.", ("policy",)
)
POLICY_BRAKED = Metric(
    "gatelock_policy_braked",
    "gauge",
    "1 for each policy whose brake acts: its locks are in shadow, or new ones wait for their interval.",
    ("policy",),
)
UNMET_LOCKS = Metric(
    "gatelock_unmet_locks",
    "gauge",
    "Locks that no gate has met although requests of their callers still count, 100 at most; up to a minute "
    "old, and absent where gates do not report all that they meet. `gatelock locks list` names them.",
)
GATES = Metric(
    "gatelock_gates",
    "gauge",
    "Gates that report, by application and state: fine, shadow, fleet (all locks are suspended), or the "
    "first of its problems; up to a quarter of a minute old.",
    ("application", "state"),
)
GATE_VIEW_AGE = Metric(
    "gatelock_gates_view_age_seconds",
    "gauge",
    "Age of the oldest view of a gate, by application and the last reports, which come every five seconds.",
    ("application",),
)
ALERT_MESSAGES = Metric(
    "gatelock_alert_messages",
    "gauge",
    "Messages of alerts that are kept, by state: waiting, sent, dead.",
    ("state",),
)
ALERT_WAITING = Metric(
    "gatelock_alert_waiting_seconds",
    "gauge",
    "For how long the oldest message of alerts is due without being acknowledged; 0 without one.",
)
SUSPENDED = Metric("gatelock_suspended", "gauge", "1 while an operator keeps every gate open, otherwise 0.")
WAITING = Metric(
    "gatelock_waiting_judgements",
    "gauge",
    "Series at their limit that are not judged before the analyzers have caught up with a backlog.",
)
DIFFERING_DAYS = Metric(
    "gatelock_differing_days",
    "gauge",
    "Closed days in which the last audit found a difference, of their counts or of what was handed over; "
    "`gatelock billing days list` names them.",
)
FEED_VERSION = Metric("gatelock_feed_version", "gauge", "Version of the lock feed in the database.")
BUILD = Metric("gatelock_build_info", "gauge", "Version of the running analyzer.", ("version",))


class RememberedIds(NamedTuple):
    """The ids of events that a partition remembers."""

    held: int
    kept_ms: int


class Measurements(NamedTuple):
    """Values measured for one answer of `/metrics`; what is None is unknown and left out."""

    lags: Mapping[Partition, Lag]
    since_flush_s: float | None
    since_loop_s: float | None
    problems: Collection[str]
    active_locks: Mapping[str, int] | None
    feed_version: int | None
    suspended: bool | None = None
    gaps: Mapping[Partition, Gap] = {}
    failing_jobs: Collection[str] = ()
    waiting_judgements: int | None = None
    differing_days: int | None = None
    unmet_locks: int | None = None
    fleet: FleetSummary | None = None
    braked: Collection[str] = ()  # policies
    signals: Sequence[Signal] = ()
    measured: MeasuredDelays = NOT_MEASURED
    remembered: Mapping[Partition, RememberedIds] = {}
    alerts: MessageCounts | None = None
    has_paths: bool = True  # of files; otherwise their names alone


Labels = tuple[str, ...]
Values = Mapping[Labels, float | None]  # by the labels; None: not known


class Metrics:
    """Counters and histograms, counted as events happen, in a registry that only this object uses."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._registry = prometheus.CollectorRegistry()
        self._records = self._counter(RECORDS)
        self._rejected = self._counter(REJECTED)
        self._overflow = self._counter(OVERFLOW)
        self._renamed = self._counter(RENAMED)
        self._without_id = self._counter(WITHOUT_ID)
        self._unusable_facts = self._counter(UNUSABLE_FACTS)
        self._disbelieved = self._counter(DISBELIEVED)
        self._notices = self._counter(NOTICES)
        self._lock_changes = self._counter(LOCK_CHANGES)
        self._denied = self._counter(DENIED)
        self._failures = self._counter(FAILURES)
        self._refused = self._counter(REFUSED)
        self._reloaded = self._gauge(RELOADED)
        self._reloaded_at = self._gauge(RELOADED_AT)
        self._flush = prometheus.Histogram(
            FLUSH.name, FLUSH.help, buckets=FLUSH_BUCKETS_S, registry=self._registry
        )
        self._flush_steps = self._counter(FLUSH_STEP)
        self.record_reload(is_successful=True)  # the process has started with one

    def record_flush(self, result: FlushResult) -> None:
        """Counts a committed transaction: its records and verdicts, and how long it and its steps took."""
        counted = result.counted
        self._flush.observe(result.seconds)
        for step, seconds in result.steps.seconds.items():
            self._flush_steps.labels(step).inc(seconds)
        for source, requests in result.disbelieved.items():
            self._disbelieved.labels(source).inc(requests)
        for lock_labels, requests in result.denied.items():
            self._denied.labels(*lock_labels).inc(requests)
        for progress in counted.parts:
            for outcome in ("counted", "duplicate", "dead", "late"):
                self._records.labels(progress.part.source, outcome).inc(getattr(progress, outcome))
            self._overflow.labels(progress.part.source).inc(progress.overflow)
            if progress.state is not None and progress.state.ids is not None:
                self._without_id.labels(progress.part.source).inc(progress.without_id)
            part = progress.part
            self._renamed.labels(part.source, part.topic, str(part.number)).inc(progress.renamed)
        for stated in counted.facts:
            for fact, number in stated.unusable.items():
                self._unusable_facts.labels(stated.part.source, fact).inc(number)
        rejected = Counter((record.part.source, record.reason) for record in counted.rejected)
        for labels, count in rejected.items():
            self._rejected.labels(*labels).inc(count)

    def record_judged(self, judged: Judged, cause: str) -> None:
        """Counts locks that were set, extended or cleared, and notices that were raised.

        To be called after the commit. `cause` is `BY_RECORDS`, or the job that judged.
        """
        for notice in judged.notices:
            self._notices.labels(notice.at.policy).inc()
        for mode, changes in (("enforced", judged.changes), ("shadow", judged.in_shadow)):
            for change in changes:
                kind = "set" if isinstance(change, Set) else "clear"
                self._lock_changes.labels(change.at.policy, kind, mode, cause).inc()

    def record_failure(self, dependency: str) -> None:
        """Counts a failed attempt to use `dependency`."""
        self._failures.labels(dependency).inc()

    def record_refusal(self, reason: str) -> None:
        """Counts a request over HTTP that may not do what it asked for."""
        self._refused.labels(reason).inc()

    def record_reload(self, *, is_successful: bool) -> None:
        """Records the outcome of reading the configuration again."""
        self._reloaded.set(is_successful)
        if is_successful:
            self._reloaded_at.set_to_current_time()

    def exposition(self, measurements: Measurements, accept: str) -> tuple[bytes, str]:
        """Returns all metrics, in the format that the header `accept` asks for, and their content type."""
        encode, content_type = choose_encoder(accept)
        return encode(_Collector(self._registry, measurements, self._version)), content_type

    def families(self, measurements: Measurements) -> Iterator[prometheus.Metric]:
        """Yields all metrics, for another format than those of `/metrics`."""
        return _Collector(self._registry, measurements, self._version).collect()

    def _counter(self, metric: Metric) -> prometheus.Counter:
        return prometheus.Counter(metric.name, metric.help, metric.labels, registry=self._registry)

    def _gauge(self, metric: Metric) -> prometheus.Gauge:
        return prometheus.Gauge(metric.name, metric.help, metric.labels, registry=self._registry)


class _Collector(Collector):
    """Collects the counters and the gauges of one answer.

    The gauges are created for each answer, so that a partition which another analyzer took over leaves no
    time series behind.
    """

    def __init__(self, counters: Collector, measurements: Measurements, version: str) -> None:
        self._counters = counters
        self._now = measurements
        self._version = version

    def collect(self) -> Iterator[prometheus.Metric]:
        for metric in self._collect():
            yield metric if self._now.has_paths else _without_paths(metric)

    def _collect(self) -> Iterator[prometheus.Metric]:
        for metric in self._counters.collect():
            # The time at which a series began is of no use here, and doubles the number of series.
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        for gauge in GAUGES:
            yield _gauge(gauge.metric, gauge.read(self._now))
        yield _gauge(BUILD, {(self._version,): 1})


def without_path(name: str) -> str:
    """Returns the name of a file without its folders; any other name as it is.

    >>> without_path("/var/log/nginx/access.log[0]")
    'access.log[0]'
    """
    return name.rpartition("/")[2]


def _without_paths(metric: prometheus.Metric) -> prometheus.Metric:
    """Returns the metric without paths in its labels, and with one sample for each set of labels."""
    samples: dict[tuple[str, ...], Sample] = {}
    for sample in metric.samples:
        labels = {
            label: without_path(value) if label in PATH_LABELS else value
            for label, value in sample.labels.items()
        }
        samples.setdefault((sample.name, *labels.values()), sample._replace(labels=labels))
    metric.samples = list(samples.values())
    return metric


def _gauge(metric: Metric, values: Values) -> prometheus.Metric:
    """Returns a gauge with one sample for each set of labels whose value is known."""
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        if value is not None:
            family.add_metric(labels, value)
    return family


def _of_partition(part: Partition) -> Labels:
    return part.source, part.topic, str(part.number)


def _clock_labels(now: Measurements) -> Mapping[str, Labels]:
    """Returns source, topic and number of each partition whose clock is measured."""
    clocks = now.measured.clocks
    return {part: (clock.source, *shown_partition(part)) for part, clock in clocks.items()}


def _requests_ahead(now: Measurements) -> Values:
    labels, clocks = _clock_labels(now), now.measured.clocks
    least_ms = {part: clock.least_ms for part, clock in clocks.items() if clock.least_ms is not None}
    return {labels[part]: -ms / 1000 for part, ms in least_ms.items()}


class Gauge(NamedTuple):
    """A gauge of /metrics: what it is, and its value for each set of labels; None where it is not known."""

    metric: Metric
    read: Callable[[Measurements], Values]


def _single(metric: Metric, read: Callable[[Measurements], float | None]) -> Gauge:
    """Returns a gauge without labels."""
    return Gauge(metric, lambda now: {(): read(now)})


def _named(metric: Metric, read: Callable[[Measurements], Iterable[str]]) -> Gauge:
    """Returns a gauge that is 1 for each of some names."""
    return Gauge(metric, lambda now: {(name,): 1 for name in read(now)})


# In the order of the answer.
GAUGES: Sequence[Gauge] = (
    Gauge(LAG_RECORDS, lambda now: {_of_partition(part): lag.records for part, lag in now.lags.items()}),
    Gauge(LAG_SECONDS, lambda now: {_of_partition(part): lag.seconds for part, lag in now.lags.items()}),
    Gauge(
        SHIPPING_P50,
        lambda now: {(name,): delay.p50_ms / 1000 for name, delay in now.measured.sources.items()},
    ),
    Gauge(
        SHIPPING_P99,
        lambda now: {(name,): delay.p99_ms / 1000 for name, delay in now.measured.sources.items()},
    ),
    Gauge(
        KAFKA_AHEAD,
        lambda now: {
            _clock_labels(now)[part]: clock.ahead_ms / 1000 for part, clock in now.measured.clocks.items()
        },
    ),
    Gauge(REQUESTS_AHEAD, _requests_ahead),
    Gauge(SIGNAL, lambda now: Counter((signal.name, signal.severity) for signal in now.signals)),
    Gauge(EVENT_IDS, lambda now: {_of_partition(part): ids.held for part, ids in now.remembered.items()}),
    Gauge(
        ID_HORIZON,
        lambda now: {_of_partition(part): ids.kept_ms / 1000 for part, ids in now.remembered.items()},
    ),
    Gauge(STOPPED, lambda now: Counter((part.source, gap.kind) for part, gap in now.gaps.items())),
    _single(SINCE_FLUSH, lambda now: now.since_flush_s),
    _single(SINCE_LOOP, lambda now: now.since_loop_s),
    _single(PROBLEMS, lambda now: len(now.problems)),
    _named(PROBLEM, lambda now: now.problems),
    _named(FAILING_JOBS, lambda now: now.failing_jobs),
    Gauge(
        ACTIVE_LOCKS,
        lambda now: {(policy,): count for policy, count in (now.active_locks or {}).items()},
    ),
    _named(POLICY_BRAKED, lambda now: now.braked),
    _single(UNMET_LOCKS, lambda now: now.unmet_locks),
    Gauge(
        GATES,
        lambda now: (
            {} if now.fleet is None else {tuple(labels): number for labels, number in now.fleet.gates.items()}
        ),
    ),
    Gauge(
        GATE_VIEW_AGE,
        lambda now: (
            {} if now.fleet is None else {(name,): age_s for name, age_s in now.fleet.view_ages_s.items()}
        ),
    ),
    Gauge(
        ALERT_MESSAGES,
        lambda now: {} if now.alerts is None else {(state,): n for state, n in now.alerts.by_state.items()},
    ),
    _single(ALERT_WAITING, lambda now: None if now.alerts is None else now.alerts.oldest_s),
    _single(SUSPENDED, lambda now: now.suspended),
    _single(WAITING, lambda now: now.waiting_judgements),
    _single(DIFFERING_DAYS, lambda now: now.differing_days),
    _single(FEED_VERSION, lambda now: now.feed_version),
)
