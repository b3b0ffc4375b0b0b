"""What the request log costs a request: less than the logger that people would use instead."""

from __future__ import annotations

from tests.benchmarks.requestlog import figures


def test_a_request_pays_less_than_for_a_line_through_logging() -> None:
    """0.45 of it, measured at leisure: `make bench ARGS=requestlog`."""
    cost = figures(requests=3_000, rounds=5)
    assert cost["RequestLog"].here < 0.8 * cost["FileHandler"].here
