"""The billing services that usage is handed over to: the form of their events, their limits, and their
answers.

A service is an entry of `SERVICES`. Each accepts an identifier once, and says so in another way: Lago and
Stripe by an error that names it, OpenMeter not at all. Sources of the limits: the documentation of Stripe's
"Create a billing meter event", Lago's "Batch events" with `Events::CreateBatchService`, and OpenMeter's
"Ingest events".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

from analyzer.billing.hand_over.service_sums import ReadSums, lago_sums, openmeter_sums, stripe_sums
from analyzer.billing.hand_over.usage_events import UsageEvent, rfc3339

DAY_S = 86_400
HOUR_S = 3_600
SENTENCE_MAX = 300  # characters of an answer that a message repeats

Fields = Mapping[str, Any]


class Answer(NamedTuple):
    """An answer of a service to a request with some events.

    Attributes:
        known: Indexes of the events that the service had before: they are acknowledged.
        is_whole: Whether the other events are accepted. Otherwise none of them is, and they can be sent
            again. refusal: Why the service takes these events never; "" if it does.
    """

    known: frozenset[int] = frozenset()
    is_whole: bool = True
    refusal: str = ""


ACCEPTED = Answer()


class BillingService(NamedTuple):
    """The form, the limits and the answers of a billing service.

    Attributes:
        path: Under the service's URL.
        content_type: Of a request.
        events_max: In one request.
        remembers_s: Seconds in which it accepts an identifier once; None: without end.
        past_s: The oldest event that is accepted; None: any.
        digits_max: Of a value; None: any number of them.
        fields: An event as a JSON object, for a file of events.
        content: Of a request with some events.
        answer: Reads the answer to a request with these events, of status 2xx or 4xx.
        sums: Asks for the sums that it has.
    """

    path: str
    content_type: str
    events_max: int
    remembers_s: int | None
    past_s: int | None
    digits_max: int | None
    fields: Callable[[UsageEvent], Fields]
    content: Callable[[Sequence[UsageEvent]], bytes]
    answer: Callable[[int, bytes, Sequence[UsageEvent]], Answer]
    sums: ReadSums


def compact_json(fields: object) -> str:
    """Returns JSON on one line, equal for equal events."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _stripe_fields(event: UsageEvent) -> Fields:
    return {
        "event_name": event.name,
        "identifier": event.identifier,
        "timestamp": event.at_s,
        "payload": {"stripe_customer_id": event.customer, "value": str(event.amount.value)},
    }


def _stripe_content(events: Sequence[UsageEvent]) -> bytes:
    [fields] = map(_stripe_fields, events)
    plain = {name: value for name, value in fields.items() if name != "payload"}
    payload = {f"payload[{name}]": value for name, value in fields["payload"].items()}
    return urlencode(plain | payload).encode()


def _stripe_answer(status: int, body: bytes, events: Sequence[UsageEvent]) -> Answer:
    if status < HTTPStatus.BAD_REQUEST:
        return ACCEPTED
    error = _object(_object(_parsed(body)).get("error"))
    message, code = str(error.get("message", "")), error.get("code")
    is_duplicate = "already exists with identifier" in message and events[0].identifier in message
    if status == HTTPStatus.BAD_REQUEST and (is_duplicate or code == "duplicate_meter_event"):
        return Answer(frozenset({0}))
    return Answer(is_whole=False, refusal=_sentence(status, message or body.decode(errors="replace")))


def _lago_fields(event: UsageEvent) -> Fields:
    return {
        "transaction_id": event.identifier,
        "external_subscription_id": event.customer,
        "code": event.name,
        "timestamp": event.at_s,
        "properties": _properties(event),
    }


def _lago_content(events: Sequence[UsageEvent]) -> bytes:
    return compact_json({"events": [_lago_fields(event) for event in events]}).encode()


def _lago_answer(status: int, body: bytes, events: Sequence[UsageEvent]) -> Answer:
    """A batch with an event that Lago has already is refused as a whole, and names these events."""
    if status < HTTPStatus.BAD_REQUEST:
        return ACCEPTED
    problem = _object(_parsed(body))
    details = _object(problem.get("error_details"))
    duplicates = frozenset(
        int(index)
        for index, errors in details.items()
        if index.isdecimal() and int(index) < len(events)
        if errors == {"transaction_id": ["value_already_exist"]}
    )
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and duplicates and len(duplicates) == len(details):
        return Answer(duplicates, is_whole=len(duplicates) == len(events))
    wrong = {
        events[int(index)].customer if index.isdecimal() and int(index) < len(events) else index: errors
        for index, errors in details.items()
        if not index.isdecimal() or int(index) not in duplicates
    }
    reason = compact_json(wrong) if wrong else str(problem.get("error", "")) or body.decode(errors="replace")
    return Answer(is_whole=False, refusal=_sentence(status, reason))


def _cloudevents_fields(event: UsageEvent) -> Fields:
    return {
        "specversion": "1.0",
        "id": event.identifier,
        "source": "gatelock",
        "type": event.name,
        "subject": event.customer,
        "time": rfc3339(event.at_s),
        "datacontenttype": "application/json",
        "data": _properties(event),
    }


def _cloudevents_content(events: Sequence[UsageEvent]) -> bytes:
    return compact_json([_cloudevents_fields(event) for event in events]).encode()


def _cloudevents_answer(status: int, body: bytes, _events: Sequence[UsageEvent]) -> Answer:
    if status < HTTPStatus.BAD_REQUEST:
        return ACCEPTED
    problem = _object(_parsed(body))
    reason = str(problem.get("detail") or problem.get("title") or body.decode(errors="replace"))
    return Answer(is_whole=False, refusal=_sentence(status, reason))


def _properties(event: UsageEvent) -> Fields:
    amount = event.amount
    properties: dict[str, Any] = {"value": amount.value, "day": amount.day}
    if event.unit:
        properties["unit"] = event.unit
    if amount.resource:
        properties[event.second_part] = amount.resource
    if amount.denied:
        properties["denied"] = amount.denied
    if event.is_provisional:
        properties["provisional"] = True
    return properties


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _sentence(status: int, reason: str) -> str:
    return f"{status} {' '.join(reason.split())[:SENTENCE_MAX]}".rstrip()


SERVICES: Mapping[str, BillingService] = {
    "stripe": BillingService(
        path="/v1/billing/meter_events",
        content_type="application/x-www-form-urlencoded",
        events_max=1,
        remembers_s=DAY_S - HOUR_S,  # "a rolling period of at least 24 hours"
        past_s=35 * DAY_S - HOUR_S,
        digits_max=15,
        fields=_stripe_fields,
        content=_stripe_content,
        answer=_stripe_answer,
        sums=stripe_sums,
    ),
    "lago": BillingService(
        path="/api/v1/events/batch",
        content_type="application/json",
        events_max=100,
        remembers_s=None,
        past_s=None,
        digits_max=None,
        fields=_lago_fields,
        content=_lago_content,
        answer=_lago_answer,
        sums=lago_sums,
    ),
    "cloudevents": BillingService(
        path="/api/v1/events",
        content_type="application/cloudevents-batch+json",
        events_max=100,
        remembers_s=DAY_S - HOUR_S,  # OpenMeter's deduplication has a time to live, 24 hours by default
        past_s=None,
        digits_max=None,
        fields=_cloudevents_fields,
        content=_cloudevents_content,
        answer=_cloudevents_answer,
        sums=openmeter_sums,
    ),
}
