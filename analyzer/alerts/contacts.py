"""Contacts: addresses of customers, for messages about their callers alone."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

import sqlalchemy as sa

from analyzer.alerts.alert_messages import AlertEvent
from analyzer.kernel.by import By
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.engine import Engine, NowMs, reading, writing
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.outbox_tables import alert_contacts
from analyzer.kernel.tables.schema import callers

ContactKind = Literal["caller", "tenant"]
Way = Literal["email", "webhook"]
CONTACTS_MAX = 10  # of one caller or tenant
KINDS = ("threshold.reached", "lock.set", "lock.cleared")  # that contacts get


class Contact(NamedTuple):
    """An address of a customer."""

    id: str
    subject_kind: ContactKind
    subject: str
    way: Way
    sent_to: str
    secret: str = ""  # signs what is sent to a webhook

    @property
    def receiver(self) -> str:
        """The name among receivers of messages."""
        return f"contact {self.id}"

    def takes(self, event: AlertEvent) -> bool:
        """Whether an event is about this customer alone."""
        if event.kind not in KINDS:
            return False
        scope = event.details.get("scope")
        if self.subject_kind == "caller":
            return scope == "caller" and event.about == self.subject
        return scope in ("caller", "tenant") and event.tenant == self.subject


COLUMNS = [alert_contacts.c[name] for name in Contact._fields]


def contacts_of(db: sa.Connection, events: Iterable[AlertEvent]) -> list[Contact]:
    """Returns the contacts that get any of these events."""
    names = {name for event in events if event.kind in KINDS for name in (event.about, event.tenant) if name}
    if not names:
        return []
    statement = sa.select(*COLUMNS).where(is_among(db.dialect.name, alert_contacts.c.subject, sorted(names)))
    return [Contact(*row) for row in db.execute(statement.order_by(alert_contacts.c.id))]


def contacts_named(db: sa.Connection, receivers: Collection[str]) -> dict[str, Contact]:
    """Returns the contacts among receivers of messages."""
    ids = sorted(name.removeprefix("contact ") for name in receivers if name.startswith("contact "))
    if not ids:
        return {}
    rows = db.execute(sa.select(*COLUMNS).where(is_among(db.dialect.name, alert_contacts.c.id, ids)))
    return {contact.receiver: contact for contact in (Contact(*row) for row in rows)}


def stored_contacts(engine: Engine) -> list[Contact]:
    """Returns all contacts, by their subjects. Raises StoreAway."""
    c = alert_contacts.c
    with reading(engine) as db:
        rows = db.execute(sa.select(*COLUMNS).order_by(c.subject_kind, c.subject, c.id))
        return [Contact(*row) for row in rows]


def add_contact(
    engine: Engine, subject: tuple[ContactKind, str], way: Way, sent_to: str, secret: str, by: By
) -> Contact | None:
    """Stores a contact; returns None if the subject has as many as it may. Raises StoreAway."""
    kind, name = subject
    contact = Contact(secrets.token_hex(4), kind, name, way, sent_to, secret)
    c = alert_contacts.c
    of_subject = c.subject_kind == kind, c.subject == name
    with writing(engine) as db:
        number = db.execute(sa.select(sa.func.count()).where(*of_subject)).scalar_one()
        if number >= CONTACTS_MAX:
            return None
        values = contact._asdict() | {"who": by.who, "reason": by.why, "at_ms": NowMs()}
        db.execute(sa.insert(alert_contacts).values(values))
        record(db, by.who, "alerts contact", f"{kind} {name}: {way}", by.why)
    return contact


def remove_contact(engine: Engine, contact_id: str, by: By) -> Contact | None:
    """Deletes a contact; returns it, None if there is none. Raises StoreAway."""
    with writing(engine) as db:
        deleted = sa.delete(alert_contacts).where(alert_contacts.c.id == contact_id).returning(*COLUMNS)
        row = db.execute(deleted).first()
        if row is None:
            return None
        contact = Contact(*row)
        about = f"{contact.subject_kind} {contact.subject}: {contact.way}"
        record(db, by.who, "alerts remove-contact", about, by.why)
    return contact


def with_tenants(db: sa.Connection, events: list[AlertEvent]) -> list[AlertEvent]:
    """Returns the events with the tenants of the callers that they are about."""
    names = sorted({event.about for event in events if _is_of_caller(event)})
    if not names:
        return events
    c = callers.c
    statement = sa.select(c.caller, c.tenant).where(
        is_among(db.dialect.name, c.caller, names), c.tenant != ""
    )
    tenants = dict(tuple(row) for row in db.execute(statement))
    return [
        event._replace(tenant=tenants[event.about])
        if _is_of_caller(event) and event.about in tenants
        else event
        for event in events
    ]


def _is_of_caller(event: AlertEvent) -> bool:
    return not event.tenant and event.details.get("scope") == "caller"
