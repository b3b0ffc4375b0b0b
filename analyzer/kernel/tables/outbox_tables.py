"""The tables of alerts: events that wait to be routed, the messages made of them, contacts of customers.

See docs/decisions/0082.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from analyzer.kernel.tables.table_columns import key, metadata, number, text

# Events, written in the transaction of what happened, and deleted in the one that makes messages of them. The
# key rises with time, and is random behind it: no transaction waits for such a row.
outbox = Table(
    "outbox",
    metadata,
    key("id"),  # "evt_...", the same in each message about it
    number("at_ms"),
    *map(text, ("kind", "severity")),
    text("about"),  # the name of what it is about: a caller, a signal, a day
    text("policy"),
    text("tenant"),
    text("body"),  # JSON: see kernel/outbox.py
)

# Messages to one destination each: gathered until `due_ms`, then tried until acknowledged, or dead.
alert_messages = Table(
    "alert_messages",
    metadata,
    key("id"),  # "msg_...", by which a receiver knows a message that is sent again
    text("receiver"),  # the name of a destination, or of a contact
    text("topic"),  # what is gathered in one message: kind, policy and severity
    text("state"),  # "gathering", "sending", "sent" or "dead"
    text("severity"),
    number("events"),  # of which `listed` has the first ones
    text("listed"),  # JSON, a list of events
    number("made_ms"),
    number("due_ms"),  # when it is sent, or tried again
    Column("begun_ms", BigInteger),  # of the first try; null: before it
    Column("ended_ms", BigInteger),  # acknowledged, or given up; null: neither
    number("tries"),
    number("status"),  # of the last answer over HTTP; 0: none
    text("error"),  # of the last try
    Index(None, "receiver", "topic", "made_ms"),
    Index(None, "made_ms", "id"),
)
Index(
    "ix_alert_messages_waiting",
    alert_messages.c.due_ms,
    postgresql_where=alert_messages.c.ended_ms.is_(None),
    sqlite_where=alert_messages.c.ended_ms.is_(None),
)

# Addresses of customers for messages about their callers alone.
alert_contacts = Table(
    "alert_contacts",
    metadata,
    key("id"),
    text("subject_kind"),  # "caller" or "tenant"
    text("subject"),
    text("way"),  # "email" or "webhook"
    text("sent_to"),  # the address
    text("secret"),  # signs what is sent to a webhook
    *map(text, ("who", "reason")),
    number("at_ms"),
    Index(None, "subject_kind", "subject"),
)
