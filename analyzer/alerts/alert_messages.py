"""Events and messages as channels get them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from analyzer.kernel.outbox import Severity

LISTED_MAX = 500  # events of a message that it has, of all that it counts
ENDS = ("signal.ended", "lock.cleared")  # kinds
SHOWN_MAX = 20  # of these, in texts for people


class AlertEvent(NamedTuple):
    """An event of the outbox.

    Attributes:
        id: Of the event: "evt_...".
        kind: See `kernel.outbox.EventKind`.
        at_ms: When it happened, by the database's clock.
        severity: How urgent it is.
        about: The name of what it is about.
        policy: That has caused it; "": none.
        tenant: Of the caller that it is about; "": none.
        what: A sentence.
        cure: What to do; "": nothing.
        command: That shows more; "": none.
        details: Fields of its kind.
        customer_what: The sentence for a customer, if it is another one.
    """

    id: str
    kind: str
    at_ms: int
    severity: Severity
    about: str
    policy: str
    tenant: str
    what: str
    cure: str = ""
    command: str = ""
    details: Mapping[str, Any] = {}
    customer_what: str = ""

    @property
    def is_end(self) -> bool:
        return self.kind in ENDS

    @property
    def signal(self) -> str:
        """The name of the lock or signal that begins or ends, the same for both; "" for other kinds.

        >>> details = {"subject": "access-log[1]"}
        >>> AlertEvent("evt_1", "signal.ended", 0, "critical", "lag", "", "", "", details=details).signal
        'signal/lag/access-log[1]'
        """
        kind = self.kind.partition(".")[0]
        if kind == "lock":
            scope, resource = self.details.get("scope", ""), self.details.get("resource") or ""
            return f"lock/{scope}/{self.about}/{resource}/{self.policy}"
        return f"signal/{self.about}/{self.details.get('subject', '')}" if kind == "signal" else ""

    @classmethod
    def parse(cls, fields: Sequence[Any], body: str) -> AlertEvent:
        """Returns the event of the columns of an outbox row."""
        more = json.loads(body)
        names = ("id", "kind", "at_ms", "severity", "about", "policy", "tenant")
        return cls(**dict(zip(names, fields, strict=True)), **more)

    @property
    def for_customer(self) -> AlertEvent:
        """The event as a customer gets it: without commands, and without what may name other callers."""
        details = {name: value for name, value in self.details.items() if name != "detail"}
        what = self.customer_what or self.what
        return self._replace(what=what, cure="", command="", details=details, customer_what="")

    def fields(self) -> dict[str, Any]:
        """Returns the event as JSON."""
        return {
            "id": self.id,
            "kind": self.kind,
            "at": time_text(self.at_ms),
            "severity": self.severity,
            "about": self.about,
            "policy": self.policy or None,
            "tenant": self.tenant or None,
            "what": self.what,
            "cure": self.cure or None,
            "command": self.command or None,
            "details": self.details,
        }


class AlertMessage(NamedTuple):
    """A message to one destination.

    Attributes:
        id: "msg_...", the same at each try.
        events: Those that it lists, the first ones.
        number: Of all.
        made_ms: When it began to gather.
        link: The page of alerts; "": no address of pages is configured.
    """

    id: str
    events: Sequence[AlertEvent]
    number: int
    made_ms: int
    link: str = ""

    @property
    def first(self) -> AlertEvent:
        return self.events[0]

    @property
    def title(self) -> str:
        """One line about all of it."""
        first = self.first
        if self.number == 1:
            return f"Over: {first.what}" if first.kind == "signal.ended" else first.what
        by = f" by {first.policy}" if first.policy else ""
        return f"{self.number:,} {PLURALS.get(first.kind, first.kind)}{by}"

    def lines(self) -> list[str]:
        """Returns the lines below the title, for people."""
        first = self.first
        lines = [] if self.number == 1 else [event.what for event in self.events[:SHOWN_MAX]]
        if self.number > SHOWN_MAX:
            lines.append(f"and {self.number - SHOWN_MAX:,} more")
        return [*lines, *filter(None, (first.cure, first.command, self.link))]

    def fields(self) -> dict[str, Any]:
        """Returns the message as JSON, equal at each try."""
        first = self.first
        return {
            "id": self.id,
            "type": f"gatelock.{first.kind}",
            "timestamp": time_text(self.made_ms),
            "severity": first.severity,
            "policy": first.policy or None,
            "title": self.title,
            "count": self.number,
            "link": self.link or None,
            "events": [event.fields() for event in self.events],
        }


PLURALS = {
    "lock.set": "locks began",
    "lock.cleared": "locks ended",
    "threshold.reached": "thresholds were reached",
    "signal.began": "things are wrong",
    "signal.ended": "things are fine again",
    "day.closed": "days were closed",
}


def time_text(at_ms: int) -> str:
    """Returns a time as RFC 3339 writes it.

    >>> time_text(1_763_640_843_250)
    '2025-11-20T12:14:03.250Z'
    """
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
