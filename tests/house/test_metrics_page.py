"""docs/metrics.md and the files for Prometheus and Grafana against the code: metrics, labels, alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from analyzer.faces.signals import metrics
from analyzer.faces.signals.metrics import Metric
from gatekeeper.telemetry.prometheus import GATE_METRICS
from tests.house.reading import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text()
ANALYZER, GATES = PAGE.split("## Metrics of gates")
DEPLOY = ROOT / "deploy"
BOARD = DEPLOY / "grafana" / "gatelock.json"
RULES_FILE = DEPLOY / "prometheus" / "gatelock.rules.yml"
RULES = RULES_FILE.read_text()
METRICS = [value for value in vars(metrics).values() if isinstance(value, Metric)]
LABELS_OF = {metric.name: {*metric.labels} for metric in METRICS}
LABELS_OF |= {metric.name: {"gate", *metric.labels} for metric in GATE_METRICS}
OF_PROMETHEUS = {"instance", "le"}  # labels of each target, and of a histogram's buckets
LEFT_OUT = {
    "gatelock_records_without_id_total",
    "gatelock_unusable_facts_total",
    "gatelock_alert_messages",
    "gatelock_event_id_horizon_seconds",
    "gatelock_config_last_reload_success_timestamp_seconds",
    *(
        "gatelock_gate_view_age_seconds",
        "gatelock_gate_healthy",
        "gatelock_gate_off",
    ),  # gatelock_gates has them
    *("gatelock_gate_locked_keys", "gatelock_gate_analyzers_behind_seconds"),
}
ROW = re.compile(r"^\| `(gatelock_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", re.MULTILINE)
EXPRESSION = re.compile(r"^ +expr: (.+)$", re.MULTILINE)


def row_of(metric: Metric) -> tuple[str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    return metric.name, metric.kind, labels, metric.help


def test_the_page_has_every_metric_as_the_code_defines_it() -> None:
    assert len(METRICS) > 15
    assert ROW.findall(ANALYZER) == [row_of(metric) for metric in METRICS]


class Use(NamedTuple):
    """A metric in an expression, with the labels by which it is selected and aggregated."""

    name: str
    labels: frozenset[str]


def uses_in(expression: str) -> Iterator[Use]:
    for part in re.split(r" [-+/] ", expression):  # each aggregates for itself
        by = {label.strip() for group in re.findall(r"by \((.+?)\)", part) for label in group.split(",")}
        for name, selector in re.findall(r"\b(gatelock_\w+)(\{.*?\})?", part):
            selected = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selector))
            family = name if name in LABELS_OF else re.sub("_(bucket|sum|count)$", "", name)
            yield Use(family, frozenset(by | selected) - OF_PROMETHEUS)


def kept_labels(expression: str) -> set[str]:
    """The labels that the result of an expression has."""
    by = {label.strip() for group in re.findall(r"by \((.+?)\)", expression) for label in group.split(",")}
    if by or re.search(r"\b(sum|max|min|absent)\(", expression):
        return by
    return {label for use in uses_in(expression) for label in LABELS_OF[use.name]} | OF_PROMETHEUS


def test_rules_and_board_use_metrics_and_labels_that_exist() -> None:
    expressions = [*EXPRESSION.findall(RULES), *(target["expr"] for target in targets())]
    assert len(expressions) > 50
    for expression in expressions:
        uses = list(uses_in(expression))
        assert uses, expression
        for use in uses:
            assert use.labels <= LABELS_OF[use.name], expression


def test_no_metric_has_a_label_that_prometheus_gives_to_targets() -> None:
    assert [name for name, labels in LABELS_OF.items() if labels & {"job", "instance"}] == []


def rules() -> list[dict[str, str]]:
    """The alerts, each with its lines by their first word."""
    texts = RULES.split("      - alert: ")[1:]
    return [dict(re.findall(r"^ *(\w+): (.+)$", f"alert: {text}", re.MULTILINE)) for text in texts]


def test_each_alert_says_how_bad_it_is_what_happens_and_what_to_do() -> None:
    for rule in rules():
        assert re.findall(r"severity: (\w+)", rule["labels"])[0] in ("critical", "warning", "info"), rule
        used = set(re.findall(r"\$labels\.(\w+)", rule["summary"] + rule["description"]))
        assert used <= kept_labels(rule["expr"]), rule
        path, _, anchor = rule["docs"].strip('"').partition("#")
        assert anchor in anchors_of(ROOT / path), rule


def anchors_of(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_lists_every_alert() -> None:
    listed = re.findall(r"^\| `(Gatelock\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert [(rule["alert"], re.findall(r"severity: (\w+)", rule["labels"])[0]) for rule in rules()] == listed


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(BOARD.read_text())["panels"]
    return found


def targets() -> list[dict[str, Any]]:
    return [target for panel in panels() for target in panel.get("targets", ())]


def test_the_legends_use_labels_that_their_expression_keeps() -> None:
    for target in targets():
        used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert used <= kept_labels(target["expr"]), target


def test_the_board_has_a_number_and_a_place_for_each_panel() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        rows, columns = range(at["y"], at["y"] + at["h"]), range(at["x"], at["x"] + at["w"])
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_is_on_the_board_or_in_a_rule_or_left_out_on_purpose() -> None:
    text = RULES + BOARD.read_text()
    assert {name for name in LABELS_OF if name not in text} == LEFT_OUT
