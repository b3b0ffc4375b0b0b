"""Check of what the sources yield: one caller for all requests, or one for each, is a question."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.counting.records.reading_doubts import REQUESTS_MIN, doubt
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.counting.usage_windows import counted_range
from analyzer.faces.signals.doctor.observations import Installation, Observation
from analyzer.plan.meters import DAY_S, REQUESTS


def doubtful_callers(installation: Installation) -> Iterator[Observation]:
    """Yields the question that the newest counted day raises."""
    counted = counted_range(installation.engine, "caller")
    if counted is None:
        return
    from_s = (counted.until_s - 1) // DAY_S * DAY_S
    query = UsageQuery("caller", DAY_S, from_s=from_s, top=REQUESTS_MIN, meter=REQUESTS.name)
    requests: dict[str, int] = {}
    for row in usage_rows(installation.engine, query):
        requests[row.key] = requests.get(row.key, 0) + row.value + row.denied
    busiest = max(requests, key=lambda key: requests[key], default="")
    if question := doubt(sum(requests.values()), len(requests), busiest):
        yield Observation("fine", question, "see `gatelock look FILE` for other fields with addresses")
