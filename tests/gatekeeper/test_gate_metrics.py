"""The metrics of gates: what is counted, by which labels, and what counting adds to a request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as families_in

from gatekeeper import Decision, Gate
from gatekeeper.model import Rate
from gatekeeper.telemetry.prometheus import GATE_METRICS, GateCollector
from gatekeeper.testing import ManualClock
from tests.support.feed import HandFeed, a_lock

ACME, SLOW, TAGGED, LENIENT = "api_key:acme", "user:slow", "user:tagged", "user:lenient"
PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def a_feed() -> HandFeed:
    return HandFeed(
        a_lock(ACME),
        a_lock(SLOW, "gentle", action="slow", slow=Rate(1, 1000.0)),
        a_lock(TAGGED, "watch", action="tag"),
        a_lock(LENIENT, on_stale="allow"),
    )


def a_gate(feed: HandFeed, clock: ManualClock | None = None, **options: Any) -> Gate:
    gate = Gate(feed, clock=clock or ManualClock(), **{"name": "shop"} | options)
    gate.ready(1.0)
    return gate


def values_of(*gates: Gate, registry: CollectorRegistry | None = None) -> Values:
    if registry is None:
        registry = CollectorRegistry()
        registry.register(GateCollector(*gates))
    families = families_in(generate_latest(registry).decode())
    return {
        (sample.name.removeprefix("gatelock_gate_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def checks(values: Values) -> dict[tuple[str, str], float]:
    found = {labels: value for (name, labels), value in values.items() if name == "checks_total"}
    return {(dict(labels)["outcome"], dict(labels)["policy"]): value for labels, value in found.items()}


def ask(gate: Gate, callers: Iterable[str]) -> list[bool]:
    return [gate.allow(caller) for caller in callers]


def test_checks_are_counted_by_outcome_and_policy_from_the_first_question_on() -> None:
    gate = a_gate(a_feed())
    ask(gate, [ACME])
    gate.measure()  # begins to count
    assert ask(gate, [ACME, ACME, SLOW, SLOW, TAGGED, "user:ann"]) == [False, False, True, False, True, True]
    values = values_of(gate)
    assert checks(values) == {
        ("denied", "daily"): 2, ("slowed", "gentle"): 1, ("denied", "gentle"): 1, ("tagged", "watch"): 1,
    }  # fmt: skip
    assert checks(values_of(gate)) == checks(values), "reading counts nothing"
    assert not any("user:" in value for _, labels in values for _, value in labels)


def test_a_request_without_a_lock_adds_nothing() -> None:
    gate = a_gate(a_feed())
    path = gate._path
    gate.measure()
    assert gate._path is path
    assert "user:ann" not in path.callers
    ask(gate, ["user:ann"] * 100)
    assert checks(values_of(gate)) == {}


def test_a_gate_in_shadow_counts_what_it_would_have_denied() -> None:
    gate = a_gate(a_feed(), shadow=True)
    gate.measure()
    assert ask(gate, [ACME]) == [True]
    assert checks(values_of(gate)) == {("shadow", "daily"): 1}


def test_locks_that_a_stale_view_ignores_fail_open() -> None:
    feed, clock = a_feed(), ManualClock()
    gate = a_gate(feed, clock)
    gate.measure()
    feed.away = True
    clock.advance(40.0)
    assert ask(gate, [ACME, LENIENT, TAGGED]) == [False, True, True]
    values = values_of(gate)
    shop = ("gate", "shop")
    assert values["failed_open_total", (shop, ("reason", "stale"))] == 1
    assert values["failed_open_total", (shop, ("reason", "limiter"))] == 0
    assert values["view_age_seconds", (shop,)] > 30
    assert values["healthy", (shop,)] == 0
    assert values["poll_failures_total", (shop,)] >= 4
    assert values["poll_seconds_count", (shop,)] >= values["poll_failures_total", (shop,)]


def test_a_stale_view_that_denies_has_no_policy() -> None:
    feed, clock = a_feed(), ManualClock()
    gate = a_gate(feed, clock, on_stale="deny")
    gate.measure()
    feed.away = True
    clock.advance(40.0)
    assert ask(gate, ["user:ann"]) == [False]
    assert checks(values_of(gate)) == {("denied", ""): 1}


class BrokenLimiter:
    def check(self, _key: str) -> Decision:
        raise OSError("away")


def test_a_limiter_that_fails_fails_open() -> None:
    feed, clock = a_feed(), ManualClock()
    gate = a_gate(feed, clock, on_stale=BrokenLimiter())
    gate.measure()
    feed.away = True
    clock.advance(40.0)
    assert ask(gate, ["user:ann"]) == [True]
    assert values_of(gate)["failed_open_total", (("gate", "shop"), ("reason", "limiter"))] == 1


def test_several_gates_of_a_process_have_separate_values() -> None:
    shop, till = a_gate(a_feed()), a_gate(HandFeed(a_lock(ACME)), name="till")
    values = values_of(shop, till)
    assert values["locked_keys", (("gate", "shop"),)] == 4
    assert values["locked_keys", (("gate", "till"),)] == 1
    assert values["feed_version", (("gate", "till"),)] == 1
    with pytest.raises(ValueError, match="different names"):
        GateCollector(shop, shop)
    with pytest.raises(ValueError, match="different names"):
        GateCollector()


def test_a_registry_refuses_the_same_metrics_twice() -> None:
    registry = CollectorRegistry()
    registry.register(GateCollector(a_gate(a_feed())))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(GateCollector(a_gate(a_feed(), name="till")))


def test_a_forked_child_begins_at_zero() -> None:
    gate = a_gate(a_feed())
    registry = CollectorRegistry()
    registry.register(GateCollector(gate))
    ask(gate, [ACME])
    assert checks(values_of(registry=registry)) == {("denied", "daily"): 1}
    child = os.fork()
    if not child:
        os._exit(0 if checks(values_of(registry=registry)) == {} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert checks(values_of(registry=registry)) == {("denied", "daily"): 1}


def test_the_page_has_every_metric_as_the_code_defines_it() -> None:
    kinds = {"CounterMetricFamily": "counter", "GaugeMetricFamily": "gauge", "SummaryMetricFamily": "summary"}
    rows = re.findall(r"^\| `(gatelock_gate_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
    assert rows == [
        (
            metric.name,
            kinds[metric.kind.__name__],
            ", ".join(f"`{label}`" for label in ("gate", *metric.labels)),
            metric.help,
        )
        for metric in GATE_METRICS
    ]
