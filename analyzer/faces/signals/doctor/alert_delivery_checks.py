"""Checks of alerts: destinations that do not take messages."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.alerts.message_rows import undelivered
from analyzer.faces.signals.doctor.observations import Installation
from analyzer.faces.signals.signal_kinds import Observation, fine, raised
from analyzer.kernel.sentences import plural
from analyzer.kernel.time_texts import format_span

UNDELIVERED = "alerts-undelivered"


def undelivered_alerts(installation: Installation) -> Iterator[Observation]:
    """Yields the destinations and contacts that take no message, and those with dead messages."""
    failing = undelivered(installation.engine)
    for messages in failing:
        name = messages.receiver
        if messages.waiting_s is not None:
            what = f"{name} has taken no alert for {format_span(messages.waiting_s)}: {messages.error}"
            cure = f"remove the cause: `gatelock alerts test {name}` shows the answer; they are tried again"
        else:
            what = f"{plural(messages.dead, 'alert')} to {name} had no answer in time: {messages.error}"
            cure = f"`gatelock alerts resend --to {name} --reason TEXT` sends them again"
        yield raised(UNDELIVERED, name, what, cure)
    if installation.settings.alerts and not failing:
        yield fine(f"{plural(len(installation.settings.alerts), 'destination')}, each takes its messages")
