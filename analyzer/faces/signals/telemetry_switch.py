"""Telemetry by OTLP, where the environment asks for it. Nothing is imported, and nothing costs, elsewhere."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from analyzer.alerts.message_rows import count_messages
from analyzer.faces.signals.flush_traces import flush_facts
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.signal_table import standing_signals
from analyzer.faces.signals.status import installation_status
from analyzer.flush.pipeline import FlushResult
from analyzer.gates.fleet_summary import fleet_summary
from analyzer.gates.gate_reports import reporting_gates
from analyzer.gates.unmet_locks import number_of_unmet_locks
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.database.revisions import head

if TYPE_CHECKING:
    import prometheus_client as prometheus

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EVERY_MS = "OTEL_METRIC_EXPORT_INTERVAL"
DEFAULT_MS = 60_000.0
MISSING = "is set, and OpenTelemetry is not installed: pip install 'gatelock[otel]', or unset it"


def is_asked_for(variables: Mapping[str, str]) -> bool:
    """Whether the environment names a collector, and does not switch OpenTelemetry off.

    >>> is_asked_for({}), is_asked_for({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})
    (False, True)
    """
    is_off = variables.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_off and any(variables.get(name) for name in ENDPOINTS)


@contextmanager
def telemetry(
    name: str, health: Health, engine: Engine, problems: Callable[[], Mapping[str, str]]
) -> Iterator[None]:
    """Exports traces and metrics of an analyzer while it runs, if the environment asks for it."""
    if not is_asked_for(os.environ):
        yield
        return
    try:
        from analyzer.faces.signals.open_telemetry import Telemetry
    except ImportError:
        log.warning("%s %s", ENDPOINTS[0], MISSING)
        yield
        return
    collect = partial(_metrics, health, engine, problems)
    gates = partial(reporting_gates, engine)
    exporting = Telemetry(version("gatelock"), name, collect, gates, _every_s(os.environ))

    def note(result: FlushResult) -> None:
        exporting.note(flush_facts(result, time.time_ns()))

    health.on_flush = note
    exporting.start()
    log.info("traces and metrics go to %s by OTLP", next(filter(None, map(os.environ.get, ENDPOINTS))))
    try:
        yield
    finally:
        health.on_flush = _nothing
        exporting.close()


def _nothing(_result: FlushResult) -> None:
    """Notes nothing."""


def _every_s(variables: Mapping[str, str]) -> float:
    try:
        return max(1.0, float(variables.get(EVERY_MS, DEFAULT_MS)) / 1000)
    except ValueError:
        return DEFAULT_MS / 1000


def _metrics(
    health: Health, engine: Engine, problems: Callable[[], Mapping[str, str]]
) -> Iterable[prometheus.Metric]:
    """Returns all metrics of `/metrics`, with paths: a collector is the operator's. Raises StoreAway."""
    measurements = health.measurements(
        {**problems(), **health.problems},
        installation_status(engine, head()),
        standing_signals(engine),
        number_of_unmet_locks(engine),
        fleet_summary(reporting_gates(engine)),
        count_messages(engine),
        has_paths=True,
    )
    return health.metrics.families(measurements)
