"""Messages for services that hold incidents open until their end: PagerDuty and Alertmanager."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from analyzer.alerts.alert_messages import AlertEvent, AlertMessage, time_text
from analyzer.alerts.channels.http_channel import HttpBody
from analyzer.alerts.channels.plain_texts import plain

SUMMARY_MAX = 1_000  # characters; PagerDuty takes 1,024
KEY_MAX = 255
JSON_HEADERS = {"content-type": "application/json"}
HOUR_MS = 3_600_000
STANDING_MS = 30 * 24 * HOUR_MS  # a signal without an end ends at Alertmanager, unless it says so before

RemainingLocks = Callable[[str], int]  # of a policy, at this time


@dataclass(frozen=True, slots=True)
class PagerDutyEvents:
    """Makes events for version 2 of PagerDuty's events API.

    A signal is an incident, and so are all locks of a policy: it is resolved when the last of them has ended.

    Attributes:
        routing_key: Of the integration.
        remaining: Returns how many locks of a policy are in force.
        source: Names the installation.
    """

    routing_key: str = field(repr=False)
    remaining: RemainingLocks
    source: str

    def __call__(self, message: AlertMessage, now_ms: int) -> HttpBody | str:
        first = message.first
        content: dict[str, Any] = {
            "routing_key": self.routing_key,
            "dedup_key": incident_key(message),
            "event_action": "resolve" if first.is_end else "trigger",
        }
        if first.kind == "lock.cleared" and (left := self.remaining(first.policy)):
            return f"nothing to send: {left:,} locks by {first.policy} remain, and the incident stays open"
        if not first.is_end:
            content["payload"] = {
                "summary": plain(message.title, SUMMARY_MAX),
                "severity": first.severity,
                "source": self.source,
                "timestamp": time_text(first.at_ms),
                "component": first.policy or first.about[:SUMMARY_MAX],
                "class": first.kind,
                "custom_details": {
                    "count": message.number,
                    "lines": [plain(line, SUMMARY_MAX) for line in message.lines()],
                },
            }
            content["client"] = "Gatelock"
            if message.link:
                content["client_url"] = message.link
        return HttpBody(json.dumps(content).encode(), JSON_HEADERS)


def incident_key(message: AlertMessage) -> str:
    """Returns the key of the incident that a message opens, continues or ends."""
    first = message.first
    kind = first.kind.partition(".")[0]
    if kind == "signal":
        key = f"gatelock/{first.signal}"
    elif kind == "lock":
        key = f"gatelock/locks/{first.policy}"
    else:
        key = f"gatelock/{message.id}"
    return key if len(key) <= KEY_MAX else f"gatelock/{hashlib.sha256(key.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class AlertmanagerAlerts:
    """Makes alerts for version 2 of Alertmanager's API: one for each lock, signal or other event.

    Attributes:
        source: Names the installation.
        token: Sent as a bearer token; "": none.
    """

    source: str
    token: str = field(default="", repr=False)

    def __call__(self, message: AlertMessage, now_ms: int) -> HttpBody:
        alerts = [self._alert(event, message.link) for event in message.events]
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        return HttpBody(json.dumps(alerts).encode(), JSON_HEADERS | headers)

    def _alert(self, event: AlertEvent, link: str) -> dict[str, Any]:
        kind = event.kind.partition(".")[0]
        details = event.details
        labels = {
            "alertname": f"Gatelock{kind.capitalize()}",
            "severity": event.severity,
            "gatelock": self.source,
            "about": event.about,
            "policy": event.policy,
            "scope": str(details.get("scope") or ""),
            "resource": str(details.get("resource") or ""),
            "subject": str(details.get("subject") or ""),
        }
        annotations = {"summary": event.what, "cure": event.cure, "command": event.command}
        alert = {
            "labels": {name: value for name, value in labels.items() if value},
            "annotations": {name: value for name, value in annotations.items() if value},
            "endsAt": _ends_at(event),
            **({"generatorURL": link} if link else {}),
        }
        # The begin of what has ended is Alertmanager's.
        return alert if event.is_end else alert | {"startsAt": time_text(event.at_ms)}


def _ends_at(event: AlertEvent) -> str:
    if event.is_end:
        return time_text(event.at_ms)
    if event.kind == "lock.set" and event.details.get("until"):
        return str(event.details["until"])
    return time_text(event.at_ms + (STANDING_MS if event.kind == "signal.began" else HOUR_MS))
