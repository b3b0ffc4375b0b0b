"""Acts on alerts: destinations and their messages, a test, sending again, contacts of customers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from analyzer.acting.act import ActContext, Done, Listing, ListRow, NothingFound
from analyzer.acting.parameters import CallerName, Fault, OfText, OneOf, Param, Switch
from analyzer.alerts import message_rows
from analyzer.alerts.alert_messages import AlertEvent, AlertMessage, time_text
from analyzer.alerts.channels.webhook_signatures import new_secret
from analyzer.alerts.contacts import (
    CONTACTS_MAX,
    Contact,
    ContactKind,
    Way,
    add_contact,
    remove_contact,
    stored_contacts,
)
from analyzer.alerts.destinations import Destination
from analyzer.alerts.guarded_http import AlertUrl
from analyzer.alerts.message_rows import StoredMessage, stored_messages
from analyzer.config.alert_destinations import AlertDestinations
from analyzer.config.tables.alerts import MAIL_ADDRESS
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.logs import printable
from analyzer.kernel.sentences import plural

RESENT_MAX = 1_000  # messages, by one act

MessageId = Annotated[str, Param(OfText(r"^msg_[0-9a-f]{26}$", "the id of a message", "ID"), "The message.",
                                 "msg_0193f2a1b7c04f2e9d1ab27c4e")]  # fmt: skip
Receiver = Annotated[str, Param(OfText(metavar="NAME"), "A destination, or `contact ID`.", "ops")]
MessageState = Annotated[
    str, Param(OneOf(("waiting", "sent", "dead")), "Only messages in this state.", "dead")
]


def list_destinations(context: ActContext) -> Listing:
    """Show the destinations of alerts and the contacts of customers, with their messages.

    Exit code 1 if one has dead messages, or none was acknowledged since its last failure.
    """
    made = AlertDestinations.of(context.settings, context.engine)
    counts = message_rows.count_by_receiver(context.engine)
    for destination in made.configured():
        fields = _listed(destination.name, destination.channel.shown, counts)
        yield ListRow((0, destination.name), fields, is_wrong=bool(fields["dead"] or fields["error"]))
    for contact in stored_contacts(context.engine):
        shown = f"{contact.way} {_shown_address(contact)}"
        fields = _listed(contact.receiver, shown, counts)
        fields |= {"for": f"{contact.subject_kind} {contact.subject}"}
        yield ListRow((1, contact.receiver), fields, is_wrong=bool(fields["dead"]))


def list_messages(
    context: ActContext, *, to: Receiver | None = None, state: MessageState | None = None
) -> Listing:
    """Show the messages, the newest first: what was sent, what waits, and what was given up.

    Messages are kept for `[retention] alerts` after their end.
    """
    until = None if context.after is None else (-int(context.after[0]), str(context.after[1]))
    for message in stored_messages(context.engine, state or "", to or "", until):
        yield ListRow(
            (-message.made_ms, message.id), message_fields(message), is_wrong=message.state == "dead"
        )


def test(
    context: ActContext,
    to: Annotated[str, Param(OfText(metavar="NAME"), "The destination, or `contact ID`.", "ops")],
) -> Done:
    """Send a test message to a destination now, and say what it answers.

    It is sent once, is not stored, and does not wait for quiet times. Exit code 1 if it is not acknowledged.
    """
    destination = _destination(context, to)
    with reading(context.engine) as db:
        now_ms = clock_ms(db)
    what = f"This is a test of alerts to {destination.name}"
    event = AlertEvent(
        message_rows.new_message_id().replace("msg_", "evt_"),
        *("test", now_ms, "info", destination.name, "", "", what),
    )
    message = AlertMessage(
        message_rows.new_message_id(),
        [event],
        1,
        now_ms,
        AlertDestinations.of(context.settings, context.engine).link,
    )
    try:
        result = destination.channel.send(message, now_ms)
    finally:
        destination.channel.close()
    outcome = "accepted" if result.is_accepted else "not accepted"
    with writing(context.engine) as db:
        record(db, context.by.who, "alerts test", f"{destination.name}: {outcome}", context.by.why)
    fields = {
        "to": destination.name,
        "id": message.id,
        "accepted": result.is_accepted,
        "status": result.status or None,
        "answer": result.text,
    }
    answer = f": {printable(result.text)}" if result.text else ""
    sentence = f"{destination.channel.shown}: {outcome}{answer}"
    return Done([fields], [sentence], is_found=not result.is_accepted)


def resend(
    context: ActContext,
    message: MessageId | None = None,
    *,
    to: Receiver | None = None,
    dead: Annotated[bool, Param(Switch(), "All dead messages, of all destinations.", True)] = False,
) -> Done:
    """Send messages again: one by its id, or the dead ones of a destination or of all.

    Each has the id that it had, so that a receiver can tell that it has it. At most 1,000 at a time. They are
    sent by the analyzer, within seconds, and given up after the time of their destination.
    """
    if [message is not None, to is not None, dead].count(True) != 1:
        raise Fault("", "give <message>, <to> or <dead>")
    ids = [message] if message is not None else message_rows.dead_ids(context.engine, to, RESENT_MAX)
    if not ids:
        raise NothingFound(f"{to} has no dead message" if to else "no message is dead")
    with writing(context.engine) as db:
        again = message_rows.send_again(db, ids)
        about = again[0] if len(again) == 1 else f"{len(again)} messages"
        if again:
            record(db, context.by.who, "alerts resend", about, context.by.why)
    if not again:
        raise NothingFound(f"{message} is not a message that has ended")
    return Done([{"messages": again}], [f"{plural(len(again), 'message')} will be sent again"])


def contact(
    context: ActContext,
    caller: CallerName | None = None,
    *,
    tenant: Annotated[str, Param(OfText(metavar="NAME"), "Instead: all callers of a tenant.", "acme")]
    | None = None,
    email: Annotated[str, Param(OfText(metavar="ADDRESS"), "Where mail is sent to.", "it@acme.example")]
    | None = None,
    webhook: Annotated[
        str,
        Param(OfText(metavar="URL"), "Or where signed requests are sent to.", "https://acme.example/hook"),
    ]
    | None = None,
) -> Done:
    """Give a customer messages about its own thresholds and locks, by mail or to a webhook.

    A message never names other callers, and no command of this installation. The secret that signs requests
    to a webhook is shown once. At most 10 contacts for each caller or tenant.
    """
    if (caller is None) == (tenant is None) or (email is None) == (webhook is None):
        raise Fault("", "give <caller> or <tenant>, and <email> or <webhook>")
    subject: tuple[ContactKind, str] = (
        ("tenant", tenant) if tenant is not None else ("caller", context.counted(caller or ""))
    )
    way: Way = "email" if email is not None else "webhook"
    _require_address(context, email, webhook)
    secret = new_secret() if way == "webhook" else ""
    stored = add_contact(context.engine, subject, way, email or webhook or "", secret, context.by)
    if stored is None:
        raise Fault("", f"{subject[1]} has {CONTACTS_MAX} contacts, which are all that it may have")
    fields: dict[str, Any] = _contact_fields(stored)
    sentences = [f"contact {stored.id} of {stored.subject_kind} {stored.subject}: {_shown_address(stored)}"]
    if secret:
        fields["secret"] = secret
        sentences.append(f"its secret, shown only once: {secret}")
    return Done([fields], sentences)


def remove(
    context: ActContext,
    contact_id: Annotated[
        str, Param(OfText(r"^[0-9a-f]{8}$", "the id of a contact", "ID"), "The contact.", "5f0c9a2e")
    ],
) -> Done:
    """Remove a contact of a customer: it gets no message any more."""
    removed = remove_contact(context.engine, contact_id, context.by)
    if removed is None:
        raise NothingFound(f"there is no contact {contact_id}")
    return Done([_contact_fields(removed)], [f"contact {removed.id} of {removed.subject} is removed"])


def message_fields(message: StoredMessage) -> dict[str, Any]:
    """Returns a message as lists and pages show it."""
    state = "waiting" if message.ended_ms is None else message.state
    return {
        "id": message.id,
        "made": time_text(message.made_ms),
        "to": message.receiver,
        "state": state,
        "severity": message.severity,
        "events": message.events,
        "title": message.title,
        "tries": message.tries,
        "next": time_text(message.due_ms) if state == "waiting" else None,
        "ended": None if message.ended_ms is None else time_text(message.ended_ms),
        "status": message.status or None,
        "answer": message.error,
    }


def _destination(context: ActContext, name: str) -> Destination:
    """Returns the destination of a name. Raises Fault."""
    made = AlertDestinations.of(context.settings, context.engine)
    configured = {destination.name: destination for destination in made.configured()}
    contacts = {one.receiver: one for one in stored_contacts(context.engine)}
    if name in contacts:
        return made.of_contact(contacts[name])
    context.require_name("to", name, [*configured, *contacts])
    return configured[name]


def _listed(name: str, shown: str, counts: Mapping[str, message_rows.ReceiverCounts]) -> dict[str, Any]:
    count = counts.get(name, message_rows.NO_MESSAGES)
    return {
        "name": name,
        "to": shown,
        "for": "",
        "waiting": count.waiting,
        "sent": count.sent,
        "dead": count.dead,
        "error": count.error,
    }


def _require_address(context: ActContext, email: str | None, webhook: str | None) -> None:
    """Raises Fault for an address that nothing can be sent to."""
    if email is not None:
        if not MAIL_ADDRESS.fullmatch(email):
            raise Fault("email", f"{email} is not a mail address", is_permitted=True)
        if context.settings.alerting.mail is None:
            raise Fault("email", "no server takes mail: write [alerting.mail]", is_permitted=True)
    if webhook is not None:
        try:
            AlertUrl.parse(webhook, context.settings.alerting.allow_http)
        except ValueError as error:
            raise Fault("webhook", str(error), is_permitted=True) from error


def _shown_address(contact: Contact) -> str:
    if contact.way == "email":
        return contact.sent_to
    return AlertUrl.parse(contact.sent_to.replace("http:", "https:", 1)).shown


def _contact_fields(contact: Contact) -> dict[str, Any]:
    return {
        "id": contact.id,
        "for": contact.subject_kind,
        "name": contact.subject,
        "way": contact.way,
        "to": _shown_address(contact),
    }
