"""Events become messages: each is added to one message per destination and contact that takes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa

from analyzer.alerts import message_rows
from analyzer.alerts.alert_messages import LISTED_MAX, AlertEvent
from analyzer.alerts.contacts import Contact, contacts_of, with_tenants
from analyzer.alerts.destinations import Destination
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.outbox_tables import outbox

EVENTS_MAX = 1_000  # in one transaction
FIELDS = [outbox.c[name] for name in ("id", "kind", "at_ms", "severity", "about", "policy", "tenant", "body")]

DestinationOf = Callable[[Contact], Destination]


def route(db: sa.Connection, destinations: Sequence[Destination], destination_of: DestinationOf) -> int:
    """Makes messages of the first events of the outbox, and deletes these; returns their number.

    Args:
        db: A transaction, which does both or neither.
        destinations: Those of the configuration.
        destination_of: Returns the destination of a contact.
    """
    statement = sa.select(*FIELDS).order_by(outbox.c.id).limit(EVENTS_MAX)
    rows = db.execute(statement.with_for_update(skip_locked=True)).all()
    if not rows:
        return 0
    events = with_tenants(db, [AlertEvent.parse(row[:-1], row.body) for row in rows])
    now_ms = clock_ms(db)
    for destination in destinations:
        _gather(db, destination, filter(destination.route.takes, events), now_ms)
    for contact in contacts_of(db, events):
        taken = (event.for_customer for event in events if contact.takes(event))
        _gather(db, destination_of(contact), taken, now_ms)
    db.execute(sa.delete(outbox).where(is_among(db.dialect.name, outbox.c.id, [row.id for row in rows])))
    return len(rows)


def _gather(db: sa.Connection, destination: Destination, events: Iterable[AlertEvent], now_ms: int) -> None:
    by_topic: defaultdict[str, list[AlertEvent]] = defaultdict(list)
    for event in events:
        by_topic[destination.topic(event)].append(event)
    for topic, of_topic in by_topic.items():
        if not destination.gathering.wait_s:
            for event in of_topic:
                _add(db, destination, topic, [event], now_ms)
            continue
        open_message = message_rows.gathering(db, destination.name, topic)
        if open_message is None:
            _add_all(db, destination, topic, of_topic, now_ms)
            continue
        room = max(0, LISTED_MAX - open_message.number)
        if not destination.channel.lists_all or len(of_topic) <= room:
            message_rows.extend(db, open_message, of_topic[:room], len(of_topic))
            continue
        message_rows.extend(db, open_message, of_topic[:room], room)
        _add_all(db, destination, topic, of_topic[room:], now_ms)


def _add_all(
    db: sa.Connection, destination: Destination, topic: str, events: Sequence[AlertEvent], now_ms: int
) -> None:
    if not destination.channel.lists_all:
        _add(db, destination, topic, events, now_ms)
        return
    for first in range(0, len(events), LISTED_MAX):
        _add(db, destination, topic, events[first : first + LISTED_MAX], now_ms)


def _add(
    db: sa.Connection, destination: Destination, topic: str, events: Sequence[AlertEvent], now_ms: int
) -> None:
    last_ms = message_rows.last_due_ms(db, destination.name, topic)
    last_s = None if last_ms is None else last_ms / 1000
    due_s = destination.due_s(now_ms / 1000, events[0].severity, last_s)
    message_rows.add_message(
        db,
        destination.name,
        topic,
        events[0].severity,
        now_ms,
        round(due_s * 1000),
        events[:LISTED_MAX],
        len(events),
    )
