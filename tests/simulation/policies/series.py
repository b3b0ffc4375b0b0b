"""Under which series a request counts, and what it adds."""

from __future__ import annotations

from tests.simulation.kafka_log import Expected

Series = tuple[str, str]  # key, resource


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
