"""Metrics of gates for Prometheus. Needs prometheus-client: pip install 'gatelock[prometheus]'.

Values are read when Prometheus asks for them. Each process has separate numbers: docs/metrics.md says how to
export those of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from gatekeeper.telemetry.gate_counts import GateMeasurements

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise ImportError(
        "gatekeeper.telemetry.prometheus needs prometheus-client: pip install 'gatelock[prometheus]'"
    ) from missing

__all__ = ["GateCollector"]


class MeasuredGate(Protocol):
    """The part of a gate that a collector depends on."""

    def measure(self) -> GateMeasurements: ...


class GateMetric(NamedTuple):
    """Definition of one metric; each has the label `gate` besides."""

    name: str
    kind: type[CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily]
    help: str
    labels: tuple[str, ...] = ()


COUNTER, GAUGE, SUMMARY = CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

CHECKS = GateMetric(
    "gatelock_gate_checks_total",
    COUNTER,
    "Requests that met a lock, by outcome (denied, shadow, slowed, tagged) and policy; without a policy "
    "those that a stale view denied. Requests without a lock are not counted.",
    ("outcome", "policy"),
)
FAILED_OPEN = GateMetric(
    "gatelock_gate_failed_open_total",
    COUNTER,
    "Requests that passed because something failed: stale, a lock was ignored because the view is stale; "
    "limiter, the limiter for a stale view raised an error.",
    ("reason",),
)
POLL_FAILURES = GateMetric(
    "gatelock_gate_poll_failures_total", COUNTER, "Polls of the lock feed that failed."
)
POLLS = GateMetric(
    "gatelock_gate_poll_seconds",
    SUMMARY,
    "Polls of the lock feed, and the time that they took without the server's wait for news.",
)
VIEW_AGE = GateMetric(
    "gatelock_gate_view_age_seconds",
    GAUGE,
    "Time since the view was confirmed; infinite before the first answer.",
)
VERSION = GateMetric("gatelock_gate_feed_version", GAUGE, "Version of the lock feed that the view is at.")
LOCKS = GateMetric("gatelock_gate_locked_keys", GAUGE, "Callers, addresses and so on that have a lock.")
HEALTHY = GateMetric("gatelock_gate_healthy", GAUGE, "1 while the gate polls and its view is not stale.")
OFF = GateMetric(
    "gatelock_gate_off",
    GAUGE,
    "1 while an off switch is in force: process (GATEKEEPER=off) or fleet.",
    ("by",),
)
BEHIND = GateMetric(
    "gatelock_gate_analyzers_behind_seconds", GAUGE, "How far the analyzers were behind the log, by the feed."
)
GATE_METRICS = (
    CHECKS, FAILED_OPEN, POLL_FAILURES, POLLS, VIEW_AGE, VERSION, LOCKS, HEALTHY, OFF, BEHIND,
)  # fmt: skip


class GateCollector(Collector):
    """Collects the metrics of gates of this process, for a registry of prometheus-client.

    The gates begin to count when the collector is made. No metric has a label for the caller.

    Args:
        *gates: The gates, each with another `name`, which is their label.

    Raises:
        ValueError: Two gates have one name, or there is no gate.

    Example:
        >>> from gatekeeper import Gate
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> registry = CollectorRegistry()
        >>> with Gate(FixedSource(), name="shop") as gate:
        ...     registry.register(GateCollector(gate))
        ...     'gatelock_gate_locked_keys{gate="shop"} 0.0' in generate_latest(registry).decode()
        True
    """

    def __init__(self, *gates: MeasuredGate) -> None:
        names = [gate.measure().name for gate in gates]
        if not gates or len(set(names)) < len(names):
            raise ValueError(f"expected gates with different names, Gate(..., name=...), got {names}")
        self._gates = gates

    def describe(self) -> Iterator[Metric]:
        """Yields the metrics without values; a registry finds by them what is registered twice."""
        return _families(())

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics with the present values of all gates."""
        return _families([gate.measure() for gate in self._gates])


def _families(gates: Sequence[GateMeasurements]) -> Iterator[Metric]:
    for metric in GATE_METRICS:
        family = metric.kind(metric.name, metric.help, labels=("gate", *metric.labels))
        for gate in gates:
            _add(family, metric, gate)
        yield family


def _add(
    family: CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily,
    metric: GateMetric,
    gate: GateMeasurements,
) -> None:
    """Adds the samples of one gate."""
    if isinstance(family, SummaryMetricFamily):
        family.add_metric((gate.name,), gate.polls, gate.poll_seconds)
        return
    values: Mapping[GateMetric, Mapping[tuple[str, ...], float]] = {
        CHECKS: {(outcome, policy): number for (outcome, policy), number in gate.checks.items()},
        FAILED_OPEN: {(reason,): number for reason, number in gate.failed_open.items()},
        POLL_FAILURES: {(): gate.poll_failures},
        VIEW_AGE: {(): gate.age},
        VERSION: {(): gate.version},
        LOCKS: {(): gate.locks},
        HEALTHY: {(): gate.healthy},
        OFF: {(by,): gate.off == by for by in ("process", "fleet")},
        BEHIND: {(): gate.behind},
    }
    for labels, value in values[metric].items():
        family.add_metric((gate.name, *labels), value)
