"""`[billing]`: the days that are closed, the key of their digests, and what billing services call our
things."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.analyzer import long_enough
from analyzer.config.tables.named_values import GroupingName
from analyzer.config.values import DAY_S, duration_between, time_zone
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.kernel.secrets import SecretFile
from gatekeeper.sources.timed_connection import parse_server_url

WITNESS = re.compile(r"kafka:[A-Za-z0-9._-]{1,249}|/[^\0]{1,4000}")
EVENT_NAME = re.compile(r"[!-~]{1,100}")


def _zones(value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise_fault(f"must be a list of time zones, not {quote(value)}", 'write ["UTC", "Europe/Berlin"]')
    return tuple(dict.fromkeys(map(time_zone, names)))


def _witness(value: object) -> str:
    if not isinstance(value, str) or not WITNESS.fullmatch(value):
        raise_fault(
            f"must be the path of a file or a topic, not {quote(value)}",
            'write "/var/lib/gatelock/witness.json" or "kafka:gatelock-witness"',
        )
    return value


def _event_name(value: object) -> str:
    if not isinstance(value, str) or not EVENT_NAME.fullmatch(value):
        raise_fault(
            f"must be the name of an event, not {quote(value)}", "write 1 to 100 letters, digits or signs"
        )
    return value


def _service_url(value: object) -> str:
    try:
        server = parse_server_url(str(value))
    except ValueError as error:
        raise_fault(str(error), 'write to = "https://api.getlago.com"')
    if server.scheme == "http" and not server.is_local:
        raise_fault(f"{quote(value)} is not encrypted", "write https, so that the key and the usage are")
    return str(value)


EventName = Annotated[str, BeforeValidator(_event_name)]


class LiveTable(ConfigTable):
    """`[billing.live]`: the billing service that the usage of the open day is pushed to."""

    to: Annotated[str, BeforeValidator(_service_url)]
    format: Literal["stripe", "lago", "cloudevents"]
    token_file: SecretFile | None = None
    account: str = ""  # tells accounts with one URL apart
    every: Annotated[float, duration_between(60, DAY_S)] = 900.0  # between two pushes
    by: GroupingName = "caller"
    zone: Annotated[str, BeforeValidator(time_zone)] | None = (
        None  # of the days; that of billing, if it is one
    )


class BillingTable(ConfigTable):
    zones: Annotated[tuple[str, ...], BeforeValidator(_zones)] = ("UTC",)  # none: no day is closed
    grace: Annotated[float, duration_between(0, 7 * DAY_S)] = 1_800.0  # after the end of a day
    groupings: tuple[GroupingName, ...] = ("caller",)
    events: dict[str, EventName] = Field(default_factory=dict)  # the names of the events of meters
    customers_file: Path | None = None
    digest_key: Annotated[SecretStr, AfterValidator(long_enough)] | None = None
    digest_key_file: Annotated[SecretFile, AfterValidator(long_enough)] | None = None
    earlier_digest_key_files: tuple[Annotated[SecretFile, AfterValidator(long_enough)], ...] = ()
    recount: Literal["closing", "never"] = "closing"
    witness: Annotated[str, BeforeValidator(_witness)] | None = None
    live: LiveTable | None = None

    @property
    def key(self) -> DigestKey:
        """The key of digests and entries; an empty one if none is configured."""
        key = self.digest_key_file or self.digest_key
        return DigestKey() if key is None else DigestKey(key.get_secret_value().encode())

    @property
    def earlier_keys(self) -> tuple[DigestKey, ...]:
        """The keys that it has replaced."""
        return tuple(DigestKey(key.get_secret_value().encode()) for key in self.earlier_digest_key_files)
