"""`[[alerts]]` and `[alerting]`: where messages about locks, thresholds, signals and closed days are sent."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, get_args

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from analyzer.alerts.channels.cloud_events import ContentMode
from analyzer.alerts.channels.mail import MailSecurity
from analyzer.alerts.channels.webhook_signatures import parse_key
from analyzer.alerts.destinations import QuietTime
from analyzer.alerts.guarded_http import AlertUrl
from analyzer.config.tables import ConfigTable
from analyzer.config.values import DAY_S, Name, Names, Networks, Zone, alternatives, duration_between, several
from analyzer.kernel.outbox import EventKind, Severity
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.kernel.secrets import SecretFile

MAIL_ADDRESS = re.compile(r"[^\s@,;<>\"()\\]{1,64}@[A-Za-z0-9.-]{1,255}")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
KINDS = tuple(kind for kind in get_args(EventKind) if kind != "test")
TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
# The keys of `[[alerts]]` that name a receiver; a table has one of them.
CHANNELS = (
    *("webhook", "cloudevents", "kafka", "email", "slack", "slack_file", "teams", "teams_file"),
    *("pagerduty_key_file", "alertmanager"),
)
PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"


def _url(value: object) -> SecretStr:
    """Accepts a URL; whether http is allowed for its host is checked against `[alerting]`."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        raise_fault("must be a URL", 'write "https://host/path"')
    try:
        AlertUrl.parse(re.sub(r"^http:", "https:", text))
    except ValueError as error:
        raise_fault(str(error), 'write "https://host/path"')
    return SecretStr(text)


def _key(secret: SecretStr) -> SecretStr:
    try:
        parse_key(secret.get_secret_value())
    except ValueError as error:
        raise_fault(str(error), "make one: echo whsec_$(openssl rand -base64 32)")
    return secret


def _kinds(value: object) -> tuple[str, ...]:
    globs = several(value)
    if not isinstance(globs, (list, tuple)) or not globs:
        raise_fault(f"must be a list of kinds, not {quote(value)}", 'write ["signal.*", "lock.set"]')
    for glob in globs:
        if not isinstance(glob, str) or not any(fnmatchcase(kind, glob) for kind in KINDS):
            raise_fault(f"{quote(glob)} is not a kind of event", f"use {alternatives(KINDS)}, or lock.*")
    return tuple(dict.fromkeys(globs))


def mail_address(value: object) -> str:
    """Returns a mail address; reports a fault for any other text."""
    if not isinstance(value, str) or not MAIL_ADDRESS.fullmatch(value):
        raise_fault(f"{quote(value)} is not a mail address", 'write "ops@example.com"')
    return value


def _addresses(value: object) -> tuple[str, ...]:
    addresses = several(value)
    if not isinstance(addresses, (list, tuple)) or not addresses:
        raise_fault(f"must be mail addresses, not {quote(value)}", 'write "ops@example.com"')
    return tuple(dict.fromkeys(map(mail_address, addresses)))


def _topic(value: object) -> str:
    if not isinstance(value, str) or not TOPIC.fullmatch(value):
        raise_fault(f"{quote(value)} is not the name of a topic", 'write "gatelock-alerts"')
    return value


def _minutes(value: object) -> int:
    match = TIME_OF_DAY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise_fault(f"must be a time of day, not {quote(value)}", 'write hours and minutes: "22:00"')
    return int(match[1]) * 60 + int(match[2])


def _server(value: object) -> str:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if (
        not re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", host)
        or not port.isdecimal()
        or int(port) > 65_535
    ):
        raise_fault(f"must be host and port, not {quote(value)}", 'write "smtp.example.com:587"')
    return str(value)


def _pages(value: object) -> str:
    if value != "" and (not isinstance(value, str) or not re.fullmatch(r"https?://[!-~]{1,500}", value)):
        raise_fault(
            f"must be the address of the pages, not {quote(value)}", 'write "https://gatelock.example.com"'
        )
    return str(value).rstrip("/")


Url = Annotated[SecretStr, BeforeValidator(_url)]
UrlFile = Annotated[SecretFile, AfterValidator(_url)]
SecretKeyFile = Annotated[SecretFile, AfterValidator(_key)]
Minutes = Annotated[int, BeforeValidator(_minutes)]


class QuietTable(ConfigTable):
    """`quiet` of `[[alerts]]`: hours in which only critical messages are sent."""

    begin: Minutes = Field(alias="from")
    until: Minutes
    zone: Zone = "UTC"

    @property
    def value(self) -> QuietTime:
        return QuietTime(self.begin, self.until, self.zone)


class MailTable(ConfigTable):
    """`[alerting.mail]`: the server that takes mail."""

    server: Annotated[str, BeforeValidator(_server)]
    sender: Annotated[str, BeforeValidator(mail_address)]
    username: str = ""
    password_file: SecretFile | None = None
    security: MailSecurity = "starttls"


class AlertingTable(ConfigTable):
    """`[alerting]`: what all destinations share."""

    allow_networks: Networks = ()
    allow_http: Names | tuple[()] = ()
    pages: Annotated[str, BeforeValidator(_pages)] = ""
    mail: MailTable | None = None


class AlertTable(ConfigTable):
    """`[[alerts]]`: a destination."""

    name: Name
    webhook: Url | None = None
    cloudevents: Url | None = None
    kafka: Annotated[str, BeforeValidator(_topic)] | None = None
    email: Annotated[tuple[str, ...], BeforeValidator(_addresses)] | None = None
    slack: Url | None = None
    slack_file: UrlFile | None = None
    teams: Url | None = None
    teams_file: UrlFile | None = None
    pagerduty_key_file: SecretFile | None = None
    alertmanager: Url | None = None
    pagerduty: Url = SecretStr(PAGERDUTY)
    secret_file: SecretKeyFile | None = None
    earlier_secret_file: SecretKeyFile | None = None
    token_file: SecretFile | None = None
    mode: ContentMode = "structured"
    kinds: Annotated[tuple[str, ...], BeforeValidator(_kinds)] | None = None
    severity: Severity | None = None
    policies: Names | tuple[()] = ()
    tenants: Names | tuple[()] = ()
    about: Names | tuple[()] = ()
    ends: bool = True
    group_wait: Annotated[float, duration_between(0, DAY_S)] = 30.0
    group_every: Annotated[float, duration_between(0, 7 * DAY_S)] = 300.0
    quiet: QuietTable | None = None
    give_up: Annotated[float, duration_between(60, 30 * DAY_S)] = float(DAY_S)

    @property
    def channels(self) -> list[str]:
        """The keys that name a receiver; one, if the table is valid."""
        return [key for key in CHANNELS if getattr(self, key) is not None]

    @property
    def urls(self) -> dict[str, str]:
        """The URLs that requests go to, by their keys."""
        keys = ("webhook", "cloudevents", "slack", "slack_file", "teams", "teams_file", "alertmanager")
        urls = {key: getattr(self, key) for key in keys}
        if self.pagerduty_key_file is not None:
            urls["pagerduty"] = self.pagerduty
        return {key: url.get_secret_value() for key, url in urls.items() if url is not None}
