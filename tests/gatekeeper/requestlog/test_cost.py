"""CPU cost of the request log per request, compared to a logging.FileHandler."""

from __future__ import annotations

from tests.benchmarks.requestlog import figures


def test_a_record_costs_less_than_a_line_through_logging() -> None:
    """0.45 of it on an idle machine: `make bench ARGS=requestlog`."""
    cost = figures(requests=3_000, rounds=5)
    assert cost["RequestLog"].here < 0.8 * cost["FileHandler"].here
