"""Faults of `[[alerts]]` that one key cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from analyzer.alerts.guarded_http import AlertUrl
from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.parsed_tables import ParsedTables
from analyzer.config.tables.alerts import CHANNELS, AlertTable
from analyzer.config.values import alternatives
from analyzer.kernel.refused_values import quote

# Keys that only some receivers use.
USED_BY = {
    "secret_file": ("webhook",),
    "earlier_secret_file": ("webhook",),
    "token_file": ("cloudevents", "alertmanager"),
    "mode": ("cloudevents", "kafka"),
    "pagerduty": ("pagerduty_key_file",),
}


def alert_faults(tables: ParsedTables) -> Iterator[KeyFault]:
    """Yields the faults of all destinations."""
    for index, alert in tables.alerts.items():
        yield from _faults(("alerts", index), alert, tables)


def _faults(path: tuple[str | int, ...], alert: AlertTable, tables: ParsedTables) -> Iterator[KeyFault]:
    channels, alerting = alert.channels, tables.alerting
    if len(channels) != 1:
        fault = f"names {' and '.join(channels)}" if channels else "names no receiver"
        yield KeyFault(path, fault, f"write one of {alternatives(CHANNELS)}")
    for key, users in USED_BY.items():
        if key in alert.model_fields_set and not set(users) & set(channels):
            yield KeyFault(
                (*path, key), "is not used by this receiver", f"it belongs to {alternatives(users)}"
            )
    if alert.webhook is not None and alert.secret_file is None:
        cure = 'make one by "openssl rand -base64 32", write whsec_ before it, and name its file'
        yield KeyFault((*path, "secret_file"), "a webhook is signed, and has no secret", cure)
    if alert.email is not None and alerting.mail is None:
        cure = (
            'write [alerting.mail] with server = "smtp.example.com:587" and sender = "gatelock@example.com"'
        )
        yield KeyFault((*path, "email"), "no server takes mail", cure)
    for key, url in alert.urls.items():
        try:
            AlertUrl.parse(url, alerting.allow_http)
        except ValueError as error:
            yield KeyFault((*path, key), str(error), "then this destination is sent to")
    names = [policy.name for table in tables.policies.values() for policy in table.of_periods]
    for glob in alert.policies if names else ():
        if not any(fnmatchcase(name, glob) for name in (*names, ":manual")):
            yield KeyFault(
                (*path, "policies"), f"{quote(glob)} matches no policy", f"use {alternatives(names)}"
            )
