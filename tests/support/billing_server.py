"""A billing service over HTTP that accepts each identifier once, as Stripe, Lago and OpenMeter do.

Before and after it stores events, a test's function may break the connection, refuse, or kill the sender.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

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
        super().__init__(("127.0.0.1", 0), Handler)
        self.kind = kind
        self.fault = fault
        self.events: dict[str, Received] = {}
        self.requests = 0
        self.repeated = 0  # events that it had already
        self.agents: list[str] = []
        self.mutex = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

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


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: BillingServer

    def do_POST(self) -> None:
        with self.server.mutex:
            self.server.requests += 1
            fault = self.server.fault(self.server.requests)
            self.server.agents.append(self.headers["user-agent"])
            body = self.rfile.read(int(self.headers["content-length"]))
            status, answer = 0, None
            if fault in ("", "lose the answer", "refuse after"):
                if self.headers["authorization"] != f"Bearer {KEY}":
                    status, answer = 401, {"error": {"message": "Invalid API Key provided"}}
                else:
                    status, answer = self.server.accept(self.headers["content-type"], body)
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
