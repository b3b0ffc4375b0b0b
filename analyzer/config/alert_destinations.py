"""Destinations of alerts, made from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network
from typing import NamedTuple

from pydantic import SecretStr

from analyzer.alerts.alert_messages import AlertMessage
from analyzer.alerts.channels import Channel, SendResult
from analyzer.alerts.channels.chat import slack_body, teams_body
from analyzer.alerts.channels.cloud_events import CloudEventRequests, KafkaChannel
from analyzer.alerts.channels.http_channel import HttpChannel, MakeBody
from analyzer.alerts.channels.incidents import AlertmanagerAlerts, PagerDutyEvents, RemainingLocks
from analyzer.alerts.channels.mail import MailChannel, MailServer
from analyzer.alerts.channels.webhook_signatures import SignedWebhook, parse_key
from analyzer.alerts.contacts import Contact
from analyzer.alerts.destinations import Destination, Gathering, Route
from analyzer.alerts.guarded_http import AlertUrl, GuardedPost
from analyzer.config.settings import Settings
from analyzer.config.tables.alerts import AlertTable
from analyzer.judging.locks.lock_feed import enforced_by
from analyzer.kernel.database.engine import Engine, reading
from analyzer.kernel.outbox import Severity

ALERTMANAGER_PATH = "/api/v2/alerts"
PAGE = "/alerts"  # below the address of the pages


class UnusableChannel(NamedTuple):
    """A contact that nothing can be sent to by this configuration, so that its messages wait."""

    why: str
    lists_all: bool = False
    has_incidents: bool = False

    @property
    def shown(self) -> str:
        return self.why

    def send(self, message: AlertMessage, now_ms: int) -> SendResult:
        """See `Channel.send`."""
        return SendResult(False, self.why)

    def close(self) -> None:
        """Keeps nothing open."""


class HttpForm(NamedTuple):
    """The form of requests to one kind of receiver.

    Attributes:
        make: Returns what makes a request.
        path: Of an address that has none.
        lists_all: See `Channel`.
        has_incidents: See `Channel`.
    """

    make: Callable[[], MakeBody]
    path: str = ""
    lists_all: bool = False
    has_incidents: bool = False


class AlertDestinations(NamedTuple):
    """Makes the destinations of a configuration.

    Attributes:
        settings: The configuration.
        remaining: Returns how many locks of a policy are in force.
    """

    settings: Settings
    remaining: RemainingLocks

    @classmethod
    def of(cls, settings: Settings, engine: Engine) -> AlertDestinations:
        """Returns those of a configuration and a database."""

        def remaining(policy: str) -> int:
            with reading(engine) as db:
                return enforced_by(db, [policy])

        return cls(settings, remaining)

    @property
    def link(self) -> str:
        """The page of alerts; "": no address of pages is configured."""
        pages = self.settings.alerting.pages
        return f"{pages}{PAGE}" if pages else ""

    def configured(self) -> list[Destination]:
        """Returns those of `[[alerts]]`, in their order."""
        post = self._post()
        return [self._destination(alert, post) for alert in self.settings.alerts]

    def of_contact(self, contact: Contact) -> Destination:
        """Returns the destination of a customer's contact."""
        try:
            channel = self._contact_channel(contact)
        except ValueError as error:  # the configuration has changed since it was stored
            channel = UnusableChannel(str(error))
        return Destination(contact.receiver, channel)

    def _contact_channel(self, contact: Contact) -> Channel:
        """Returns the channel of a contact. Raises ValueError."""
        if contact.way == "email":
            return MailChannel(self._mail_server(), (contact.sent_to,))
        url = AlertUrl.parse(contact.sent_to, self.settings.alerting.allow_http)
        form = SignedWebhook([parse_key(contact.secret)])
        return HttpChannel("webhook", url, form, self._post(), lists_all=True)

    def _destination(self, alert: AlertTable, post: GuardedPost) -> Destination:
        severity: Severity = alert.severity or ("info" if alert.kinds else "warning")
        return Destination(
            alert.name,
            self._channel(alert, post),
            Route(
                alert.kinds or ("*",), severity, alert.policies, alert.tenants, alert.about, ends=alert.ends
            ),
            Gathering(alert.group_wait, alert.group_every),
            None if alert.quiet is None else alert.quiet.value,
            alert.give_up,
        )

    def _channel(self, alert: AlertTable, post: GuardedPost) -> Channel:
        [key] = alert.channels
        if alert.email is not None:
            return MailChannel(self._mail_server(), alert.email)
        if alert.kafka is not None:
            return KafkaChannel(alert.kafka, self._origin, alert.mode, self.settings.kafka.client())
        kind = key.removesuffix("_file").removesuffix("_key")
        url = AlertUrl.parse(next(iter(alert.urls.values())), self.settings.alerting.allow_http)
        form = self._forms(alert)[kind]
        if url.target == "/" and form.path:
            url = url._replace(target=form.path)
        return HttpChannel(
            kind, url, form.make(), post, lists_all=form.lists_all, has_incidents=form.has_incidents
        )

    def _forms(self, alert: AlertTable) -> dict[str, HttpForm]:
        token = _text(alert.token_file)
        keys = [_text(secret) for secret in (alert.secret_file, alert.earlier_secret_file) if secret]
        return {
            "webhook": HttpForm(lambda: SignedWebhook(list(map(parse_key, keys))), lists_all=True),
            "cloudevents": HttpForm(
                lambda: CloudEventRequests(self._origin, alert.mode, token), lists_all=True
            ),
            "slack": HttpForm(lambda: slack_body),
            "teams": HttpForm(lambda: teams_body),
            "pagerduty": HttpForm(
                lambda: PagerDutyEvents(_text(alert.pagerduty_key_file), self.remaining, self._origin),
                has_incidents=True,
            ),
            "alertmanager": HttpForm(
                lambda: AlertmanagerAlerts(self._origin, token), ALERTMANAGER_PATH, lists_all=True
            ),
        }

    @property
    def _origin(self) -> str:
        return self.settings.alerting.pages or "gatelock"

    def _post(self) -> GuardedPost:
        return GuardedPost([ip_network(text) for text in self.settings.alerting.allow_networks])

    def _mail_server(self) -> MailServer:
        mail = self.settings.alerting.mail
        if mail is None:
            raise ValueError("no server takes mail: write [alerting.mail]")
        host, _, port = mail.server.rpartition(":")
        return MailServer(
            *(host.strip("[]"), int(port), mail.sender, mail.username),
            _text(mail.password_file),
            mail.security,
        )


def _text(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()
