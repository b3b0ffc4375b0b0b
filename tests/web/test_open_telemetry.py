"""OpenTelemetry: traces of flushes and of locks, and metrics, as a real receiver decodes them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.faces.signals.flush_traces import FlushFacts, flush_facts
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.signals.open_telemetry import GATES_AWAITED_S, Telemetry
from analyzer.faces.signals.telemetry_switch import is_asked_for, telemetry
from analyzer.flush.pipeline import FlushResult
from analyzer.gates.gate_health import GateHealth
from analyzer.judging.judge import Judged
from analyzer.kernel.flush_steps import STEPS, StepTimes
from analyzer.kernel.model import CountTable, DrainedCounts, Partition, PartitionProgress
from analyzer.kernel.shipping_delays import ShippingDelays
from gatekeeper.model import Cursor, GateStatus, Lock, Set
from tests.house.reading import ROOT
from tests.support.otlp_receiver import OtlpReceiver, attributes_of, otlp_receiver
from tests.support.waiting import wait_until

NOW_S = 1_764_331_200
NAME = "api_key:a-secret-name"
PART = Partition("cluster", "topic-id", 0, "web", "access-log")


class Clock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.ns = NOW_S * 10**9

    def __call__(self) -> int:
        return self.ns


def a_flush(*, locks: bool, records: int = 5) -> FlushResult:
    """A flush of a third of a second, which took its records from a log of a second ago."""
    times = iter([1.0, *(1.0 + 0.02 * number for number in range(1, len(STEPS) + 1))])
    steps = StepTimes(times.__next__)
    for step in STEPS:
        steps.ended(step)
    delays = ShippingDelays((records,), 100, 400, (NOW_S - 1) * 1000)
    began = datetime.fromtimestamp(NOW_S, UTC)
    lock = Lock("caller", NAME, "daily", began, began + timedelta(hours=1))
    judged = Judged([Set(lock)], at=Cursor(7, "m7")) if locks else Judged()
    table = CountTable("caller", 60, ["requests"], [NOW_S - 60], [NAME], [""], [[records]], [])
    progress = PartitionProgress(PART, 0, records, seen=records, counted=records, delays=delays)
    counted = DrainedCounts([progress], [table] if records else [], [])
    return FlushResult(counted, {}, judged, 0.3, steps=steps)


def a_gate(name: str, version: int | None, age_s: float = 0.5) -> GateHealth:
    at = None if version is None else Cursor(version, f"m{version}")
    status = GateStatus(name, 1, "shop", "0.1.0", at, 0.1, (), (0, 0), ())
    return GateHealth(status, age_s, 60.0)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
        yield receiver


def facts(result: FlushResult) -> FlushFacts:
    return flush_facts(result, NOW_S * 10**9)


def telemetry_of(gates: list[GateHealth], clock: Clock | None = None) -> Telemetry:
    return Telemetry("1.0", "analyzer-1", lambda: (), lambda: gates, 60, clock or Clock())


def test_a_flush_is_a_span_with_one_for_each_step(receiver: OtlpReceiver) -> None:
    exporting = telemetry_of([])
    exporting.note(facts(a_flush(locks=False)))
    exporting.note(facts(a_flush(locks=False, records=0)))
    exporting.look()
    exporting.close()
    (flush,) = receiver.named("flush")
    assert flush.end_time_unix_nano - flush.start_time_unix_nano == 300_000_000
    steps = [span for span in receiver.spans if span.parent_span_id == flush.span_id]
    assert [span.name for span in steps] == ["wait", *STEPS]
    ends = [span.end_time_unix_nano for span in steps]
    assert [span.start_time_unix_nano for span in steps[1:]] == ends[:-1]
    assert abs(ends[-1] - flush.end_time_unix_nano) < 1_000
    found = attributes_of(flush)
    assert (found["gatelock.records"], found["gatelock.rows"], found["gatelock.partitions"]) == (5, 1, 1)
    assert receiver.resources[0]["service.name"] == "gatelock"
    assert receiver.resources[0]["service.instance.id"] == "analyzer-1"


def test_a_lock_is_one_trace_from_the_request_to_the_last_gate(receiver: OtlpReceiver) -> None:
    clock, gates = Clock(), [a_gate("a", 7), a_gate("b", 6), a_gate("gone", 6, age_s=3_600)]
    exporting = telemetry_of(gates, clock)
    exporting.note(facts(a_flush(locks=True)))
    clock.ns += 2 * 10**9
    exporting.look()
    gates[1] = a_gate("b", 8)
    clock.ns += 10**9
    exporting.look()
    exporting.close()
    (lock,) = receiver.named("lock")
    assert {span.trace_id for span in receiver.spans} == {lock.trace_id}
    inside = [span for span in receiver.spans if span.parent_span_id == lock.span_id]
    assert sorted(span.name for span in inside) == ["flush", "gate", "gate", "ship", "take"]
    (ship,), (take,), (flush,) = map(receiver.named, ("ship", "take", "flush"))
    assert lock.start_time_unix_nano == ship.start_time_unix_nano == (NOW_S - 1) * 10**9 - 400 * 10**6
    assert ship.end_time_unix_nano == take.start_time_unix_nano == (NOW_S - 1) * 10**9
    assert take.end_time_unix_nano == flush.start_time_unix_nano
    arrived = sorted(span.end_time_unix_nano - NOW_S * 10**9 for span in receiver.named("gate"))
    assert arrived == [1_500_000_000, 2_500_000_000]
    found = attributes_of(lock)
    assert (found["gatelock.policies"], found["gatelock.feed.version"]) == ("daily", 7)
    assert (found["gatelock.gates"], found["gatelock.gates.missing"]) == (2, 0)


def test_a_gate_that_does_not_get_the_lock_is_missing_in_its_trace(receiver: OtlpReceiver) -> None:
    clock = Clock()
    exporting = telemetry_of([a_gate("a", 7), a_gate("b", None)], clock)
    exporting.note(facts(a_flush(locks=True)))
    exporting.look()
    clock.ns += round((GATES_AWAITED_S + 1) * 10**9)
    exporting.look()
    exporting.close()
    (lock,) = receiver.named("lock")
    assert attributes_of(lock)["gatelock.gates.missing"] == 1


def test_no_name_of_a_caller_leaves_the_house(receiver: OtlpReceiver) -> None:
    exporting = telemetry_of([a_gate("a", 7)])
    exporting.note(facts(a_flush(locks=True)))
    exporting.look()
    exporting.close()
    assert len(receiver.spans) > 10
    assert NAME not in str(receiver.spans)


def test_metrics_have_the_names_and_values_of_the_page(
    receiver: OtlpReceiver, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    health = Health(Metrics("1"), lambda: 0.0)
    with telemetry("analyzer-1", health, engine, dict):
        health.flush_committed(a_flush(locks=False))
        wait_until(lambda: receiver.metrics)
    measurements = health.measurements({}, None, (), None, None, None, has_paths=True)
    text = health.metrics.exposition(measurements, "")[0].decode()
    pages = set(re.findall(r"^(gatelock_\w+)", text, re.MULTILINE))
    pages = {re.sub(r"_(bucket|count|sum)$", "", name) for name in pages}
    assert pages - receiver.metrics.keys() == set()
    counted = receiver.metrics["gatelock_records_total"].sum
    assert counted.is_monotonic
    assert {attributes_of(point)["result"]: point.as_double for point in counted.data_points}["counted"] == 5
    (histogram,) = receiver.metrics["gatelock_flush_seconds"].histogram.data_points
    assert (histogram.count, sum(histogram.bucket_counts)) == (1, 1)
    assert histogram.sum == pytest.approx(0.3)
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
    assert receiver.named("flush")
    assert health.on_flush(a_flush(locks=False)) is None, "nothing is noted any more"


# FastAPI imports the interface of OpenTelemetry where it is installed, and nothing behind it.
def test_nothing_is_imported_where_it_is_not_asked_for() -> None:
    code = (
        "import sys, analyzer.faces.cli.verbs.run; print({'opentelemetry.sdk', 'requests'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr
    assert not is_asked_for({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"})


def test_without_the_package_a_warning_names_the_extra(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "analyzer.faces.signals.open_telemetry", None)
    health: Any = Health(Metrics("1"), lambda: 0.0)
    with telemetry("analyzer-1", health, engine, dict):
        health.flush_committed(a_flush(locks=False))
    assert "pip install 'gatelock[otel]'" in caplog.text
