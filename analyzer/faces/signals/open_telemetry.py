"""Traces of flushes and of locks, and all metrics, to an OpenTelemetry collector. Needs the extra `otel`.

The packages of OpenTelemetry are imported here alone, and only where $OTEL_EXPORTER_OTLP_ENDPOINT is set.
Their variables say where to and how often: docs of OpenTelemetry have them all.

A flush that changes locks is a part of a trace that begins with the request and ends at the gates:

    lock                request begins ................................................ every gate has it
      ship              request begins -> record in the log
      take                                record in the log -> flush begins
      flush                                                    flush begins -> commit, a span for each step
      gate, one each                                                          commit -> reported by the gate

A gate says which version it holds when it reports, so its span ends no earlier than it had the lock. Any
other flush that counted records is a trace by itself; heartbeats have none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import prometheus_client as prometheus
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Span, set_span_in_context
from prometheus_client.samples import Sample

from analyzer.faces.signals.flush_traces import SECOND_NS, FlushFacts
from analyzer.gates.gate_health import GateHealth
from analyzer.kernel.errors import AnalyzerError

log = logging.getLogger(__name__)

SCOPE = "gatelock"
QUEUED_MAX = 1_000  # flushes that wait for the thread; the oldest are left out beyond
LOOK_S = 1.0  # between two looks at the queue, and at the gates while a lock is on its way
GATES_AWAITED_S = 60.0  # after the commit; then the trace ends, and says how many gates lack the lock
GATES_MAX = 100  # spans of gates in one trace
CLOSING_S = 2.0
LOCKS_AWAITED_MAX = 100  # traces of locks that are open at a time


class LockTrace(NamedTuple):
    """A lock on its way to the gates: the span of its whole way, and the gates that have it."""

    span: Span
    facts: FlushFacts
    arrived: set[str]


class Telemetry:
    """Exports traces of flushes, and metrics, in a thread.

        telemetry = Telemetry("1.0", "analyzer-1", collect, gates, metrics_every_s=60)
        health.on_flush = telemetry.note

    Args:
        version: The version of this program.
        name: The name of this analyzer.
        collect: Returns all metrics, as `/metrics` has them. May block, and raise AnalyzerError.
        gates: Returns the gates that report. May block, and raise AnalyzerError.
        metrics_every_s: Seconds between two exports of metrics.
        clock_ns: Nanoseconds since 1970.
    """

    def __init__(
        self,
        version: str,
        name: str,
        collect: Callable[[], Iterable[prometheus.Metric]],
        gates: Callable[[], Sequence[GateHealth]],
        metrics_every_s: float,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._collect, self._gates, self._clock_ns = collect, gates, clock_ns
        self._every_s = metrics_every_s
        stated = {"service.name": "gatelock", "service.version": version, "service.instance.id": name}
        # $OTEL_SERVICE_NAME and $OTEL_RESOURCE_ATTRIBUTES come first.
        self._resource = Resource.create({**stated, **OTELResourceDetector().detect().attributes})
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(SCOPE, version)
        self._metrics = OTLPMetricExporter()
        self._version = version
        self._started_ns = clock_ns()
        self._queue: deque[FlushFacts] = deque(maxlen=QUEUED_MAX)
        self._on_their_way: deque[LockTrace] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def note(self, facts: FlushFacts) -> None:
        """Takes the facts of a flush. Never waits; any thread."""
        if not facts.is_heartbeat:
            self._queue.append(facts)

    def close(self) -> None:
        """Exports what is left, and ends. A collector that is away is awaited for `CLOSING_S`, no longer."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LOOK_S + CLOSING_S)
        last = threading.Thread(target=self._export_rest, name="telemetry-end", daemon=True)
        last.start()
        last.join(CLOSING_S)

    def _export_rest(self) -> None:
        self.look()
        for trace in self._on_their_way:
            trace.span.end(self._clock_ns())
        self._provider.shutdown()
        self._metrics.shutdown()

    def _run(self) -> None:
        exported_s = time.monotonic()
        while not self._stop.wait(LOOK_S):
            self.look()
            if time.monotonic() - exported_s >= self._every_s:
                exported_s = time.monotonic()
                self.export_metrics()

    def look(self) -> None:
        """Makes spans of the flushes that wait, and follows locks to the gates."""
        while self._queue:
            self._trace(self._queue.popleft())
        if self._on_their_way:
            try:
                self._follow(self._gates())
            except AnalyzerError as error:
                log.debug("gates cannot be read: %s", error)

    def export_metrics(self) -> None:
        """Exports all metrics once."""
        try:
            families = list(self._collect())
        except (AnalyzerError, TimeoutError) as error:
            log.debug("metrics cannot be read: %s", error)
            return
        now_ns = self._clock_ns()
        metrics = [
            metric
            for family in families
            if (metric := _exported(family, self._started_ns, now_ns)) is not None
        ]
        scope = ScopeMetrics(InstrumentationScope(SCOPE, self._version), metrics, "")
        self._metrics.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))

    def _trace(self, facts: FlushFacts) -> None:
        began_ns = facts.ended_ns - round(facts.seconds * SECOND_NS)
        if facts.at is None:
            self._trace_flush(facts, began_ns, None)
            return
        logged_ns = min(began_ns if facts.logged_ns is None else facts.logged_ns, began_ns)
        requested_ns = min(logged_ns if facts.requested_ns is None else facts.requested_ns, logged_ns)
        policies = ", ".join(sorted(facts.locked))
        attributes: dict[str, str | int] = {
            "gatelock.policies": policies,
            "gatelock.locks": sum(facts.locked.values()),
            "gatelock.feed.version": facts.at.version,
        }
        span = self._tracer.start_span("lock", Context(), attributes=attributes, start_time=requested_ns)
        context = set_span_in_context(span)
        self._span("ship", context, requested_ns, logged_ns)
        self._span("take", context, logged_ns, began_ns)
        self._trace_flush(facts, began_ns, context)
        self._on_their_way.append(LockTrace(span, facts, set()))
        if len(self._on_their_way) > LOCKS_AWAITED_MAX:
            self._end(self._on_their_way.popleft(), missing=None)

    def _trace_flush(self, facts: FlushFacts, began_ns: int, context: Context | None) -> None:
        """Makes a span of a flush, and one of each step: these end with the commit, one behind the other."""
        attributes = dict(facts.attributes)
        within = Context() if context is None else context
        flush = self._tracer.start_span("flush", within, attributes=attributes, start_time=began_ns)
        inside = set_span_in_context(flush)
        step_ns = max(began_ns, facts.ended_ns - round(sum(facts.steps.values()) * SECOND_NS))
        self._span("wait", inside, began_ns, step_ns)
        for step, seconds in facts.steps.items():
            ended_ns = min(facts.ended_ns, step_ns + round(seconds * SECOND_NS))
            self._span(step, inside, step_ns, ended_ns)
            step_ns = ended_ns
        flush.end(facts.ended_ns)

    def _span(
        self, name: str, context: Context, began_ns: int, ended_ns: int, **attributes: str | int
    ) -> None:
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=began_ns)
        span.end(ended_ns)

    def _follow(self, gates: Sequence[GateHealth]) -> None:
        """Ends the traces of locks that all living gates have, or that are awaited for too long."""
        now_ns = self._clock_ns()
        for _ in range(len(self._on_their_way)):
            trace = self._on_their_way.popleft()
            version = 0 if trace.facts.at is None else trace.facts.at.version
            missing = 0
            for gate in gates:
                status = gate.status
                if not gate.is_alive or status.instance in trace.arrived:
                    continue
                if status.at is None or status.at.version < version:
                    missing += 1
                    continue
                trace.arrived.add(status.instance)
                if len(trace.arrived) <= GATES_MAX:
                    reported_ns = now_ns - round(gate.report_age_s * SECOND_NS)
                    ended_ns = max(trace.facts.ended_ns, reported_ns)
                    context = set_span_in_context(trace.span)
                    self._span("gate", context, trace.facts.ended_ns, ended_ns, **_gate_attributes(gate))
            is_late = now_ns - trace.facts.ended_ns > GATES_AWAITED_S * SECOND_NS
            if missing and not is_late:
                self._on_their_way.append(trace)
            else:
                self._end(trace, missing)

    def _end(self, trace: LockTrace, missing: int | None) -> None:
        trace.span.set_attribute("gatelock.gates", len(trace.arrived))
        if missing is not None:
            trace.span.set_attribute("gatelock.gates.missing", missing)
        trace.span.end(max(trace.facts.ended_ns, self._clock_ns()) if trace.arrived else trace.facts.ended_ns)


def _gate_attributes(gate: GateHealth) -> dict[str, str | int]:
    return {"gatelock.application": gate.status.application, "gatelock.instance": gate.status.instance}


def _exported(family: prometheus.Metric, started_ns: int, now_ns: int) -> Metric | None:
    """Returns a metric as OTLP has it, under its name at `/metrics`; None without samples."""
    if not family.samples:
        return None
    name = family.name
    data: Any
    if family.type == "counter":
        name = family.samples[0].name
        points = [_point(sample, started_ns, now_ns) for sample in family.samples]
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    elif family.type == "histogram":
        data = Histogram(
            list(_histograms(family.samples, started_ns, now_ns)), AggregationTemporality.CUMULATIVE
        )
    else:
        data = Gauge([_point(sample, None, now_ns) for sample in family.samples])
    return Metric(name, family.documentation, "", data)


def _point(sample: Sample, started_ns: int | None, now_ns: int) -> NumberDataPoint:
    return NumberDataPoint(dict(sample.labels), started_ns or 0, now_ns, float(sample.value))


def _histograms(samples: Iterable[Sample], started_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """Yields a point for each set of labels; Prometheus counts buckets cumulatively, OTLP each by itself."""
    by_labels: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        entry = by_labels.setdefault(tuple(sorted(labels.items())), {"le": []})
        if sample.name.endswith("_bucket"):
            entry["le"].append((float(sample.labels["le"]), sample.value))
        else:
            entry[sample.name.rpartition("_")[2]] = sample.value
    for pairs, entry in by_labels.items():
        buckets = sorted(entry["le"])
        counts = [int(count - before) for (_, before), (_, count) in pairwise([(0.0, 0), *buckets])]
        bounds = [bound for bound, _ in buckets if bound != float("inf")]
        count = int(entry.get("count", sum(counts)))
        least: Any = None  # and the most: Prometheus keeps neither
        yield HistogramDataPoint(
            dict(pairs), started_ns, now_ns, count, float(entry.get("sum", 0.0)), counts, bounds, least, least
        )
