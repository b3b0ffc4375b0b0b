"""The outbox: events that leave the house, written in the transaction of what happened.

Both commit or neither, so no event is lost in a crash and none is about what was rolled back. A job makes
messages of the events and sends them; see `analyzer/alerts`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import sqlalchemy as sa

from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.database.row_parameters import in_parts, rows_given
from analyzer.kernel.tables.outbox_tables import outbox

Severity = Literal["critical", "warning", "info"]
EventKind = Literal[
    "signal.began", "signal.ended", "lock.set", "lock.cleared", "threshold.reached", "day.closed", "test"
]
GIVEN = [outbox.c[name] for name in ("id", "kind", "severity", "about", "policy", "tenant", "body")]


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event.

    Attributes:
        kind: See `EventKind`.
        about: The name of what it is about: a caller, the name of a signal, a day.
        what: A sentence about it.
        severity: How urgent it is. An end has the severity of what has ended.
        policy: The policy that caused it; "": none.
        tenant: The tenant that it is about, if it is about one alone.
        cure: What to do; "": nothing.
        command: The command that shows more, or that helps; "": none.
        details: Fields of its kind, for programs: a lock as the feed writes it, used and limit.
        customer_what: The sentence for the customer that it is about, where `what` may name others.
    """

    kind: EventKind
    about: str
    what: str
    severity: Severity = "warning"
    policy: str = ""
    tenant: str = ""
    cure: str = ""
    command: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    customer_what: str = ""


def put(db: sa.Connection, events: Sequence[OutboxEvent]) -> None:
    """Adds events, in their order; one statement for ten thousand."""
    if not events:
        return
    # This machine's clock, for the order of the rows alone.
    now = f"{time.time_ns() // 1_000_000:012x}"
    rows = [
        _row(f"evt_{now}{number:06x}{secrets.token_hex(6)}", event) for number, event in enumerate(events)
    ]
    for parameters in in_parts(db.dialect.name, GIVEN, rows):
        db.execute(_insert(db.dialect.name), parameters)


def _row(event_id: str, event: OutboxEvent) -> tuple[str, ...]:
    body = {"what": event.what, "cure": event.cure, "command": event.command, "details": event.details}
    if event.customer_what:
        body["customer_what"] = event.customer_what
    return (
        *(event_id, event.kind, event.severity, event.about, event.policy, event.tenant),
        json.dumps(body, ensure_ascii=False, separators=(",", ":")),
    )


@lru_cache
def _insert(dialect: str) -> sa.Insert:
    rows = rows_given(dialect, GIVEN)
    selected = sa.select(*rows.c, NowMs().label("at_ms"))
    return sa.insert(outbox).from_select([*(column.name for column in GIVEN), "at_ms"], selected)
