"""docs/metrics.md and the files for Prometheus and Grafana against the code: metrics, labels, alerts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from analyzer import metrics
from analyzer.metrics import Metric
from tests.house.reading import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text()
ANALYZER, GATES = PAGE.split("## Metrics of gates")
DEPLOY = ROOT / "deploy"
BOARD = DEPLOY / "grafana" / "gatelock.json"
RULES_FILE = DEPLOY / "prometheus" / "gatelock.rules.yml"
RULES = RULES_FILE.read_text()
METRICS = [value for value in vars(metrics).values() if isinstance(value, Metric)]
LABELS_OF = {metric.name: set(metric.labels) for metric in METRICS}
ROW = re.compile(r"^\| `(gatelock_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", re.MULTILINE)
EXPRESSION = re.compile(r"^ +expr: (.+)$", re.MULTILINE)


def row_of(metric: Metric) -> tuple[str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    return metric.name, metric.kind, labels, metric.help


def test_the_page_has_every_metric_as_the_code_defines_it() -> None:
    assert len(METRICS) > 15
    assert ROW.findall(ANALYZER) == [row_of(metric) for metric in METRICS]


def labels_in(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression, each with the labels by which it is aggregated."""
    by = {label.strip() for group in re.findall(r"by \((.+?)\)", expression) for label in group.split(",")}
    names = {name.removesuffix("_bucket") for name in re.findall(r"gatelock_\w+", expression)}
    return dict.fromkeys(names, by - {"le"})


def test_the_rules_use_metrics_and_labels_that_exist() -> None:
    expressions = EXPRESSION.findall(RULES)
    assert len(expressions) > 7
    for expression in expressions:
        for name, by in labels_in(expression).items():
            assert by <= LABELS_OF[name], expression


def test_the_summaries_use_labels_that_their_rule_keeps() -> None:
    rules = re.findall(r"expr: (.+)\n(?: +for: .+\n)? +annotations: (.+)", RULES)
    assert len(rules) == len(EXPRESSION.findall(RULES))
    for expression, summary in rules:
        (name,) = labels_in(expression)
        used = set(re.findall(r"\$labels\.(\w+)", summary)) - {"instance"}
        assert used <= LABELS_OF[name], summary


def test_the_page_lists_every_alert() -> None:
    assert re.findall(r"alert: (\w+)", RULES) == re.findall(r"^\| `(Gatelock\w+)` \|", PAGE, re.MULTILINE)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_promtool_accepts_the_rules() -> None:
    command = ["promtool", "check", "rules", str(RULES_FILE)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def targets() -> list[dict[str, Any]]:
    dashboard = json.loads(BOARD.read_text())
    return [target for panel in dashboard["panels"] for target in panel["targets"]]


def test_the_dashboard_uses_metrics_and_labels_that_exist() -> None:
    assert len(targets()) > 10
    for target in targets():
        found = labels_in(target["expr"])
        assert found
        for name, by in found.items():
            assert by <= LABELS_OF[name], target["expr"]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= by, target["expr"]


def test_the_dashboard_has_a_number_and_a_place_for_each_panel() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
