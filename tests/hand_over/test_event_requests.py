"""Requests to a billing service: repeated while it may answer later, and no longer."""

from __future__ import annotations

import pytest

from analyzer.billing.hand_over.billing_services import SERVICES
from analyzer.billing.hand_over.event_requests import EventSender, Waits
from analyzer.kernel.errors import DeliveryFailed
from gatekeeper.sources.timed_connection import parse_server_url
from tests.support.billing_server import KEY, BillingServer, Fault, billing_server
from tests.support.usage_events import amount, event


class Sleeps:
    """Collects how long a sender sleeps, in place of sleeping."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.longest_s = 0.0
        self.failures: list[str] = []

    def __call__(self, seconds: float) -> None:
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)


def sender_to(server: BillingServer, sleeps: Sleeps, give_up_s: float = 300.0) -> EventSender:
    waits = Waits(sleeps, lambda: 1.0, sleeps.failures.append, give_up_s)
    return EventSender(parse_server_url(server.url), SERVICES[server.kind], KEY, waits, None)


@pytest.mark.parametrize("fault", ["lose the request", "lose the answer", "refuse", "refuse after"])
def test_a_request_without_an_answer_is_repeated_with_growing_pauses(fault: Fault) -> None:
    sleeps = Sleeps()
    with billing_server("lago", lambda number: fault if number < 4 else "") as server:
        sender = sender_to(server, sleeps)
        sent = sender.send([event(), event(amount(reference="0f3d"))])
        sender.close()
        assert (server.requests, len(server.events)) == (4, 2)
        assert sent.known == (2 if fault in ("lose the answer", "refuse after") else 0)
    assert sleeps.total_s == pytest.approx(0.5 + 1 + 2)
    assert sleeps.longest_s <= 1, "so that the lease can be kept"
    assert len(sleeps.failures) == 1, "one message for several failures in a row"


def test_retry_after_is_waited_for() -> None:
    sleeps = Sleeps()
    with billing_server("stripe", lambda number: "later" if number == 1 else "") as server:
        sender_to(server, sleeps).send([event()])
        assert server.requests == 2
    assert sleeps.total_s == pytest.approx(1.0), "of the header, not the half second of the first pause"


def test_after_failing_for_too_long_it_gives_up_and_says_that_it_may_be_tried_again() -> None:
    sleeps = Sleeps()
    with billing_server("cloudevents", lambda _: "refuse") as server:
        with pytest.raises(DeliveryFailed, match="503 Service Unavailable; send again later") as failed:
            sender_to(server, sleeps).send([event()])
        assert failed.value.is_away
    assert 200 < sleeps.total_s < 300


def test_a_batch_of_which_the_service_has_some_is_sent_without_them() -> None:
    events = [event(amount(reference=f"{number:04}")) for number in range(5)]
    with billing_server("lago") as server:
        sender = sender_to(server, Sleeps())
        assert sender.send(events[1:3]).known == 0
        assert sender.send(events).known == 2
        assert (len(server.events), server.requests) == (5, 3)


def test_a_sender_that_was_stopped_ends() -> None:
    with billing_server("lago", lambda _: "refuse") as server:
        sender = sender_to(server, Sleeps())
        sender.stop()
        with pytest.raises(DeliveryFailed):
            sender.send([event()])
        assert server.requests == 1
