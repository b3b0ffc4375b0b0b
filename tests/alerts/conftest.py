"""A migrated database with events, and destinations that note what they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa

from analyzer.alerts.alert_messages import AlertMessage
from analyzer.alerts.channels import SendResult
from analyzer.alerts.contacts import Contact
from analyzer.alerts.deliverer import Deliverer
from analyzer.alerts.destinations import Destination, Gathering
from analyzer.kernel import outbox
from analyzer.kernel.database.engine import open_engine, writing
from analyzer.kernel.outbox import OutboxEvent
from analyzer.kernel.tables.outbox_tables import alert_messages

AT_ONCE = Gathering(wait_s=0.001, every_s=0.0)
ACCEPTED = SendResult(True, "ok", 200)
REFUSED = SendResult(False, "503 later", 503)


@dataclass
class Recorder:
    """A channel that keeps what it is given; `results` are given in turn, the last one from then on."""

    results: list[SendResult] = field(default_factory=lambda: [ACCEPTED])
    messages: list[AlertMessage] = field(default_factory=list)
    lists_all: bool = False
    has_incidents: bool = False
    shown: str = "recorder"
    on_send: Callable[[AlertMessage], object] = lambda _message: None

    def send(self, message: AlertMessage, now_ms: int) -> SendResult:
        self.messages.append(message)
        self.on_send(message)
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]

    def close(self) -> None: ...

    @property
    def titles(self) -> list[str]:
        return [message.title for message in self.messages]


@pytest.fixture
def engine(migrated_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(migrated_url)
    yield engine
    engine.dispose()


def put(engine: sa.Engine, *events: OutboxEvent) -> None:
    with writing(engine) as db:
        outbox.put(db, events)


def lock_event(number: int = 0, **values: object) -> OutboxEvent:
    name = f"api_key:acct-{number}"
    details = {"op": "set", "scope": "caller", "key": name, "kind": "quota", "detail": "100 counted"}
    fields = {"about": name, "what": f"{name} is locked by daily: 100 counted", "policy": "daily"}
    return OutboxEvent(**{"kind": "lock.set", "details": details, **fields, **values})  # type: ignore[arg-type]


def deliverer(
    engine: sa.Engine, *destinations: Destination, of_contact: Callable[[Contact], Destination] | None = None
) -> Deliverer:
    def unknown(contact: Contact) -> Destination:
        raise AssertionError(contact)

    return Deliverer(engine, destinations, of_contact or unknown, "", lambda: 0.5)


def deliver(engine: sa.Engine, *destinations: Destination) -> None:
    """Sends all that can be sent now."""
    sender = deliverer(engine, *destinations)
    while sender.step():
        pass
    make_due(engine, "gathering")
    while sender.step():
        pass


def make_due(engine: sa.Engine, state: str = "sending", ago_ms: int = 1) -> None:
    """Lets the time pass until messages are due."""
    due = sa.update(alert_messages).where(
        alert_messages.c.ended_ms.is_(None), alert_messages.c.state == state
    )
    with writing(engine) as db:
        db.execute(due.values(due_ms=alert_messages.c.made_ms - ago_ms))
