"""Sums that billing services have of a period, by event and customer, from their public interfaces.

Stripe has a summary for each customer. OpenMeter sums a meter by subject. Lago's usage has the periods of
subscriptions, so the events that it lists are added up. Sources: "List billing meter event summaries" of
Stripe, "Query meter" of OpenMeter, "List all events" of Lago.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any
from urllib.parse import quote

from analyzer.billing.hand_over.usage_events import rfc3339
from analyzer.kernel.errors import DeliveryFailed, NotAtService
from analyzer.plan.windows import Window

OTHERS = ""  # in place of a customer: all that were not asked for
PAGE = 100  # of objects, and of customers in a request

Get = Callable[[str, Mapping[str, object]], Any]  # of a path and its parameters; see `ServiceReader.get`
Sums = Mapping[str, Decimal]
ReadSums = Callable[[Get, str, Sequence[str], Window], Sums]  # of an event, by customer, in a period


def stripe_sums(get: Get, event: str, customers: Sequence[str], period: Window) -> Sums:
    """Returns the sums of these customers: others cannot be asked for."""
    meter = _find_meter(_stripe_meters(get), event, "event_name")["id"]
    times = {"start_time": period.start_s, "end_time": period.until_s}
    sums = dict.fromkeys(customers, Decimal(0))
    for customer in customers:
        try:
            answer = get(f"/v1/billing/meters/{meter}/event_summaries", {"customer": customer, **times})
        except NotAtService:
            continue  # a customer that Stripe does not have
        sums[customer] = sum((Decimal(row["aggregated_value"]) for row in answer["data"]), Decimal(0))
    return sums


def _stripe_meters(get: Get) -> Iterator[Mapping[str, Any]]:
    parameters: dict[str, object] = {"limit": PAGE}
    while True:
        answer = get("/v1/billing/meters", parameters)
        yield from answer["data"]
        if not answer["has_more"]:
            return
        parameters["starting_after"] = answer["data"][-1]["id"]


def lago_sums(get: Get, event: str, _customers: Sequence[str], period: Window) -> Sums:
    """Returns the sums of all subscriptions."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    times = {"timestamp_from": rfc3339(period.start_s), "timestamp_to": rfc3339(period.until_s)}
    page = 1
    while page:
        answer = get("/api/v1/events", {"code": event, **times, "per_page": PAGE, "page": page})
        for row in answer["events"]:
            sums[row["external_subscription_id"]] += Decimal(row["properties"]["value"])
        page = answer["meta"]["next_page"]
    return sums


def openmeter_sums(get: Get, event: str, customers: Sequence[str], period: Window) -> Sums:
    """Returns the sums of these customers, and that of all others, if it is not 0."""
    path = f"/api/v1/meters/{quote(_find_meter(get('/api/v1/meters', {}), event, 'eventType')['slug'])}/query"
    times = {"from": rfc3339(period.start_s), "to": rfc3339(period.until_s)}
    sums: dict[str, Decimal] = defaultdict(Decimal)
    remaining = iter(customers)
    while subjects := list(islice(remaining, PAGE)):
        for row in get(path, {**times, "groupBy": "subject", "subject": subjects})["data"]:
            sums[row["subject"]] += Decimal(row["value"])
    whole = sum((Decimal(row["value"]) for row in get(path, times)["data"]), Decimal(0))
    if others := whole - sum(sums.values()):
        sums[OTHERS] = others
    return sums


def _find_meter(meters: Iterator[Mapping[str, Any]], event: str, field: str) -> Mapping[str, Any]:
    """Returns the first meter of an event. Raises DeliveryFailed."""
    meter = next((meter for meter in meters if meter[field] == event), None)
    if meter is None:
        raise DeliveryFailed(
            f"the service has no meter of the event {event}: create it, or name another in [billing] events"
        )
    return meter
