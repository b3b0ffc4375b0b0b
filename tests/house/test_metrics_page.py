"""docs/metrics.md against the code: every metric with its kind, labels and meaning; rules that use them."""

from __future__ import annotations

import re

from analyzer import metrics
from analyzer.metrics import Metric
from tests.house.reading import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text()
METRICS = [value for value in vars(metrics).values() if isinstance(value, Metric)]
ROW = re.compile(r"^\| `(gatelock_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", re.MULTILINE)
EXPRESSION = re.compile(r"^ +expr: (.+)$", re.MULTILINE)


def row_of(metric: Metric) -> tuple[str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    return metric.name, metric.kind, labels, metric.help


def test_the_page_has_every_metric_as_the_code_defines_it() -> None:
    assert len(METRICS) > 15
    assert ROW.findall(PAGE) == [row_of(metric) for metric in METRICS]


def test_the_rules_use_metrics_and_labels_that_exist() -> None:
    labels_of = {metric.name: set(metric.labels) for metric in METRICS}
    expressions = EXPRESSION.findall(PAGE)
    assert len(expressions) > 7
    for expression in expressions:
        (name,) = re.findall(r"gatelock_\w+", expression)
        by = {
            label.strip() for group in re.findall(r"by \((.+?)\)", expression) for label in group.split(",")
        }
        assert by <= labels_of[name], expression


def test_the_summaries_use_labels_that_their_rule_keeps() -> None:
    rules = re.findall(r"expr: (.+)\n(?: +for: .+\n)? +annotations: (.+)", PAGE)
    labels_of = {metric.name: set(metric.labels) for metric in METRICS}
    for expression, summary in rules:
        (name,) = re.findall(r"gatelock_\w+", expression)
        used = set(re.findall(r"\$labels\.(\w+)", summary)) - {"instance"}
        assert used <= labels_of[name], summary
