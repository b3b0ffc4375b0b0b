"""A billing service over HTTP that accepts each identifier once, as Stripe, Lago and OpenMeter do.

Before and after it stores events, a test's function may break the connection, refuse, or kill the sender.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlsplit

from tests.support.servers.child import own_address

KEY = "sk_live_a_key"
BATCH_MAX = 100

Fault = Literal["", "lose the request", "lose the answer", "refuse", "refuse after", "later", "redirect"]


class Received(NamedTuple):
    """An event as the service has it."""

    customer: str
    name: str
    value: int
    at: object
    more: dict[str, Any]


class BillingServer(ThreadingHTTPServer):
    """Listens on a free port of this machine.

    Args:
        kind: Whose answers it gives.
        fault: Called with the number of each request; says what goes wrong with it.
    """

    daemon_threads = True

    def __init__(self, kind: str, fault: Callable[[int], Fault] = lambda _: "") -> None:
        super().__init__((own_address(), 0), Handler)
        self.kind = kind
        self.fault = fault
        self.events: dict[str, Received] = {}
        self.requests = 0
        self.repeated = 0  # events that it had already
        self.agents: list[str] = []
        self.mutex = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}"

    def totals(self) -> dict[str, int]:
        """Returns the sums of the values, by name of the event."""
        found: dict[str, int] = {}
        for event in self.events.values():
            found[event.name] = found.get(event.name, 0) + event.value
        return found

    def accept(self, content_type: str, body: bytes) -> tuple[int, object]:
        """Returns the answer to a request, after storing its events."""
        return {"stripe": self._stripe, "lago": self._lago, "cloudevents": self._openmeter}[self.kind](
            content_type, body
        )

    def _stripe(self, content_type: str, body: bytes) -> tuple[int, object]:
        assert content_type == "application/x-www-form-urlencoded"
        fields = dict(parse_qsl(body.decode(), strict_parsing=True))
        identifier = fields["identifier"]
        assert len(identifier) <= 100
        if identifier in self.events:
            self.repeated += 1
            message = f"An event already exists with identifier {identifier}."
            return 400, {"error": {"type": "invalid_request_error", "message": message}}
        customer, value = fields["payload[stripe_customer_id]"], fields["payload[value]"]
        if customer.startswith("bad"):
            return 400, {"error": {"message": f"No such customer: '{customer}'"}}
        self.events[identifier] = Received(
            customer, fields["event_name"], int(value), fields["timestamp"], {}
        )
        return 200, {"object": "billing.meter_event", "identifier": identifier}

    def _lago(self, content_type: str, body: bytes) -> tuple[int, object]:
        assert content_type == "application/json"
        batch = json.loads(body)["events"]
        if len(batch) > BATCH_MAX:
            return self._unprocessable({"events": ["too_many_events"]})
        errors: dict[str, object] = {
            str(index): {"external_subscription_id": ["invalid"]}
            for index, event in enumerate(batch)
            if event["external_subscription_id"].startswith("bad")
        }
        known = [index for index, event in enumerate(batch) if event["transaction_id"] in self.events]
        self.repeated += len(known)
        errors |= {str(index): {"transaction_id": ["value_already_exist"]} for index in known}
        if errors:
            return self._unprocessable(errors)
        for event in batch:
            properties = event["properties"]
            self.events[event["transaction_id"]] = Received(
                event["external_subscription_id"],
                event["code"],
                properties["value"],
                event["timestamp"],
                properties,
            )
        return 200, {"events": batch}

    def _unprocessable(self, details: object) -> tuple[int, object]:
        return 422, {
            "status": 422,
            "error": "Unprocessable Entity",
            "code": "validation_errors",
            "error_details": details,
        }

    def _openmeter(self, content_type: str, body: bytes) -> tuple[int, object]:
        assert content_type == "application/cloudevents-batch+json"
        for event in json.loads(body):
            assert event["specversion"] == "1.0"
            assert event["source"]
            if event["subject"].startswith("bad"):
                return 400, {"title": "Bad Request", "detail": "subject: bad"}
            if event["id"] in self.events:
                self.repeated += 1
                continue
            data = event["data"]
            self.events[event["id"]] = Received(
                event["subject"], event["type"], data["value"], event["time"], data
            )
        return 204, None

    def read(self, path: str, parameters: dict[str, list[str]]) -> tuple[int, object]:
        """Returns the answer to a request for what it has."""
        return {"stripe": self._stripe_read, "lago": self._lago_read, "cloudevents": self._openmeter_read}[
            self.kind
        ](path, parameters)

    def _names(self) -> list[str]:
        return sorted({event.name for event in self.events.values()} | {"api_requests", "busy"})

    def _stripe_read(self, path: str, parameters: dict[str, list[str]]) -> tuple[int, object]:
        """Pages of one meter each."""
        names = self._names()
        if path == "/v1/billing/meters":
            [after] = parameters.get("starting_after", [""])
            left = [name for name in names if f"mtr_{name}" > after]
            page = [{"id": f"mtr_{name}", "event_name": name} for name in left[:1]]
            return 200, {"object": "list", "data": page, "has_more": len(left) > 1}
        *_, meter, last = path.split("/")
        assert last == "event_summaries"
        assert parameters.keys() == {"customer", "start_time", "end_time"}
        [customer], [start], [end] = parameters["customer"], parameters["start_time"], parameters["end_time"]
        assert int(start) % 60 == int(end) % 60 == 0
        if customer.startswith("gone"):
            message = f"No such customer: '{customer}'"
            return 400, {"error": {"code": "resource_missing", "param": "customer", "message": message}}
        values = [
            event.value
            for event in self.events.values()
            if event.customer == customer
            and f"mtr_{event.name}" == meter
            and int(start) <= int(str(event.at)) < int(end)
        ]
        summary = {"object": "billing.meter_event_summary", "aggregated_value": float(sum(values))}
        return 200, {"object": "list", "data": [summary] if values else [], "has_more": False}

    def _lago_read(self, path: str, parameters: dict[str, list[str]]) -> tuple[int, object]:
        assert path == "/api/v1/events"
        one = {name: values[0] for name, values in parameters.items()}
        begin, end = (datetime.fromisoformat(one[f"timestamp_{side}"]).timestamp() for side in ("from", "to"))
        found = [
            {
                "transaction_id": identifier,
                "external_subscription_id": event.customer,
                "code": event.name,
                "properties": event.more | {"value": str(event.value)},
            }
            for identifier, event in self.events.items()
            if event.name == one["code"] and begin <= int(str(event.at)) <= end
        ]
        page, per_page = int(one["page"]), int(one["per_page"])
        assert per_page <= BATCH_MAX
        more = page + 1 if page * per_page < len(found) else None
        return 200, {"events": found[(page - 1) * per_page : page * per_page], "meta": {"next_page": more}}

    def _openmeter_read(self, path: str, parameters: dict[str, list[str]]) -> tuple[int, object]:
        """The slug of a meter is another name than that of its events."""
        if path == "/api/v1/meters":
            return 200, [
                {"slug": f"sum-{name}", "eventType": name, "aggregation": "SUM"} for name in self._names()
            ]
        slug = path.removeprefix("/api/v1/meters/").removesuffix("/query")
        begin, end = (datetime.fromisoformat(parameters[side][0]) for side in ("from", "to"))
        subjects = parameters.get("subject")
        assert len(subjects or []) <= BATCH_MAX
        sums: dict[str | None, float] = {}
        for event in self.events.values():
            is_meant = f"sum-{event.name}" == slug and begin <= datetime.fromisoformat(str(event.at)) < end
            if is_meant and (subjects is None or event.customer in subjects):
                subject = event.customer if parameters.get("groupBy") == ["subject"] else None
                sums[subject] = sums.get(subject, 0.0) + event.value
        return 200, {"data": [{"subject": subject, "value": value} for subject, value in sums.items()]}


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: BillingServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self._answer(lambda _body: self.server.read(parts.path, parse_qs(parts.query)))

    def do_POST(self) -> None:
        self._answer(lambda body: self.server.accept(self.headers["content-type"], body))

    def _answer(self, answered: Callable[[bytes], tuple[int, object]]) -> None:
        with self.server.mutex:
            self.server.requests += 1
            fault = self.server.fault(self.server.requests)
            self.server.agents.append(self.headers["user-agent"])
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, answer = 0, None
            if fault in ("", "lose the answer", "refuse after"):
                if self.headers["authorization"] != f"Bearer {KEY}":
                    status, answer = 401, {"error": {"message": "Invalid API Key provided"}}
                else:
                    status, answer = answered(body)
        if fault.startswith("lose"):
            self.close_connection = True
            return
        if fault.startswith("refuse"):
            status, answer = 503, None
        if fault == "later":
            status, answer = 429, None
        if fault == "redirect":
            status, answer = 307, None
        content = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        if fault == "later":
            self.send_header("retry-after", "1")
        if fault == "redirect":
            self.send_header("location", "http://127.0.0.1:1/elsewhere")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Prints nothing."""


@contextmanager
def billing_server(kind: str, fault: Callable[[int], Fault] = lambda _: "") -> Iterator[BillingServer]:
    """Serves until the end of the block."""
    server = BillingServer(kind, fault)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
