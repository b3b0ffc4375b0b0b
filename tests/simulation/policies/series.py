"""Under which series a request counts, and what it adds."""

from __future__ import annotations

from collections import defaultdict

from analyzer.plan.sums import Sum
from tests.simulation.kafka_log import Expected

Series = tuple[str, str]  # key, resource
Counts = defaultdict[tuple[str, str, str, str, int], list[int]]  # grouping, key, resource, meter, day


def amount_of(meter: str, request: Expected) -> int:
    """Returns what a request adds to a meter of sums or maxima."""
    match meter:
        case "requests":
            return request.weight
        case "unrecorded requests":
            return request.weight - 1
        case _:
            return request.size


def series_of(grouping: str, request: Expected) -> Series:
    """Returns key and resource under which the request counts."""
    match grouping:
        case "caller":
            return request.caller, ""
        case "caller+resource":
            return request.caller, request.resource
        case "everyone":
            return "", ""
        case "resource":
            return request.resource, ""
        case "address/24":
            return f"{request.address.rpartition('.')[0]}.0/24", ""
    raise ValueError(grouping)


def has_all_parts(grouping: str, series: Series) -> bool:
    """Whether the series has a total: requests without a path have none where totals are by resource."""
    key, resource = series
    return (key != "" or grouping == "everyone") and (resource != "" or not grouping.endswith("+resource"))


def joined(sum_: Sum, one: int, other: int) -> int:
    return max(one, other) if sum_.meter == "largest" else one + other


def without_keys(counts: Counts, days: set[tuple[str, int]]) -> Counts:
    """Returns the counts with one key for all callers of these days, whose rows may have been joined."""
    found: Counts = defaultdict(lambda: [0, 0])
    for (grouping, key, resource, meter, day_s), amounts in counts.items():
        if (grouping, day_s) in days:
            at = grouping, "", "", meter, day_s
        else:
            at = grouping, key, resource, meter, day_s
        join = max if meter == "largest" else sum
        found[at] = [join(pair) for pair in zip(found[at], amounts, strict=True)]
    return found
