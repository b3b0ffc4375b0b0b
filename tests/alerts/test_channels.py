"""Messages in the form of each kind of receiver, with names that would be markup, headers or mentions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from email import message_from_bytes
from email.policy import default
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from standardwebhooks import Webhook, WebhookVerificationError

from analyzer.alerts.alert_messages import AlertEvent, AlertMessage
from analyzer.alerts.channels.chat import slack_body, teams_body
from analyzer.alerts.channels.cloud_events import CloudEventRequests
from analyzer.alerts.channels.http_channel import HttpBody
from analyzer.alerts.channels.incidents import AlertmanagerAlerts, PagerDutyEvents, incident_key
from analyzer.alerts.channels.mail import MailChannel, MailServer
from analyzer.alerts.channels.webhook_signatures import SignedWebhook, new_secret, parse_key
from tests.support.servers.child import own_address

HOSTILE = (
    "api_key:<script>alert(1)</script>",
    "api_key:<!channel> <@U123> <https://evil.example|click>",
    "api_key:*bold* _it_ `code` ~no~ [a](https://evil.example) {{DATE(2017-02-14T06:00:00Z)}}",
    "api_key:x\r\nBcc: all@example.com\r\n\r\nbody",
    "api_key:\u202eevil\u2066\u200b",
    "api_key:" + "x" * 256,
    "api_key:\x00\x1b[2J&amp;\"'\\",
)
each_name = pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
NOW_MS = 1_763_640_843_250


def event(name: str = "api_key:acme", **values: Any) -> AlertEvent:
    details = {"scope": "caller", "key": name, "resource": None, "until": "2026-11-20T23:00:00Z"}
    fields = AlertEvent(
        "evt_1", "lock.set", NOW_MS, "warning", name, "daily", "acme", f"{name} is locked by daily",
        command="gatelock locks list", details=details,
    )  # fmt: skip
    return fields._replace(**values)


def message(*events: AlertEvent, number: int = 0) -> AlertMessage:
    return AlertMessage("msg_1", events, number or len(events), NOW_MS, "https://gatelock.example.com/alerts")


def texts(value: Any) -> Iterator[str]:
    """Yields the texts of a JSON document."""
    if isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)
    elif isinstance(value, str):
        yield value


def is_plain(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


@each_name
def test_another_implementation_verifies_a_webhook(name: str) -> None:
    secret = new_secret()
    body = SignedWebhook([parse_key(secret)])(message(event(name)), 0)
    now = {**body.headers}
    import time

    signed = SignedWebhook([parse_key(secret)])(message(event(name)), time.time_ns() // 1_000_000)
    read = Webhook(secret).verify(signed.content, dict(signed.headers))
    assert read["events"][0]["about"] == name
    assert body.content == signed.content, "equal at each try"
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(signed.content + b" ", dict(signed.headers))
    with pytest.raises(WebhookVerificationError):  # its time is too long ago
        Webhook(secret).verify(body.content, now)


def test_two_secrets_sign_while_one_replaces_the_other() -> None:
    import time

    present, earlier = new_secret(), new_secret()
    signed = SignedWebhook([parse_key(present), parse_key(earlier)])(
        message(event()), time.time_ns() // 1_000_000
    )
    for secret in (present, earlier):
        assert Webhook(secret).verify(signed.content, dict(signed.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(signed.content, dict(signed.headers))


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_%%%", "whsec_AAAA", "whsec_" + "A" * 200])
def test_a_secret_that_is_none_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match=r"24 to 64 bytes"):
        parse_key(secret)


@each_name
def test_slack_gets_names_without_markup_or_mentions(name: str) -> None:
    body = json.loads(slack_body(message(event(name)), 0).content)
    assert {block["text"]["type"] for block in body["blocks"]} == {"plain_text"}
    assert "<" not in body["text"]
    assert all(is_plain(text) for text in texts(body))
    assert len(body["blocks"][0]["text"]["text"]) <= 150
    many = json.loads(slack_body(message(*[event(name)] * 500), 0).content)
    assert all(len(text) <= 3_000 for text in texts(many))


@each_name
def test_teams_gets_names_in_runs_without_markdown(name: str) -> None:
    body = json.loads(teams_body(message(*[event(name)] * 500), 0).content)
    [attachment] = body["attachments"]
    assert {part["type"] for part in attachment["content"]["body"]} == {"RichTextBlock"}
    runs = [run for part in attachment["content"]["body"] for run in part["inlines"]]
    assert {run["type"] for run in runs} == {"TextRun"}
    assert not any("{{" in run["text"] for run in runs)
    assert all(is_plain(text) for text in texts(body))
    assert len(json.dumps(body)) < 28_000


@each_name
def test_a_binary_cloud_event_has_any_name_in_its_headers(name: str) -> None:
    request = CloudEventRequests("gatelock", "binary", "token")(message(event(name)), 0)
    for text in request.headers.values():
        assert text.isascii()
        assert text.isprintable()
    assert request.headers["ce-specversion"] == "1.0"
    assert request.headers["ce-id"] == "msg_1"
    assert request.headers["ce-type"] == "gatelock.lock.set"
    assert request.headers["authorization"] == "Bearer token"
    assert json.loads(request.content)["events"][0]["about"] == name


def test_a_structured_cloud_event_is_one_document() -> None:
    request = CloudEventRequests("https://gatelock.example.com")(message(event()), 0)
    assert request.headers["content-type"].startswith("application/cloudevents+json")
    document = json.loads(request.content)
    assert {name: document[name] for name in ("specversion", "id", "source", "type", "subject")} == {
        "specversion": "1.0",
        "id": "msg_1",
        "source": "https://gatelock.example.com",
        "type": "gatelock.lock.set",
        "subject": "api_key:acme",
    }
    assert document["data"]["count"] == 1


def pagerduty(about: AlertMessage, remaining: int = 0) -> dict[str, Any] | str:
    made = PagerDutyEvents("key", lambda _policy: remaining, "gatelock")(about, 0)
    return made if isinstance(made, str) else dict(json.loads(made.content))


def test_pagerduty_ends_a_signal_by_the_key_that_began_it() -> None:
    began = pagerduty(message(event("lag", kind="signal.began", severity="critical", policy="")))
    ended = pagerduty(message(event("lag", kind="signal.ended", severity="critical", policy="")))
    assert isinstance(began, dict)
    assert isinstance(ended, dict)
    assert (began["event_action"], ended["event_action"]) == ("trigger", "resolve")
    assert began["dedup_key"] == ended["dedup_key"]
    assert began["payload"]["severity"] == "critical"


def test_pagerduty_has_one_incident_for_the_locks_of_a_policy_until_the_last_has_ended() -> None:
    cleared = message(event(kind="lock.cleared"))
    began = pagerduty(message(*(event(f"user:{n}") for n in range(500))))
    assert isinstance(began, dict)
    assert began["payload"]["summary"] == "500 locks began by daily"
    assert pagerduty(cleared, 3) == "nothing to send: 3 locks by daily remain, and the incident stays open"
    ended = pagerduty(cleared)
    assert isinstance(ended, dict)
    assert (ended["event_action"], ended["dedup_key"]) == ("resolve", began["dedup_key"])


@each_name
def test_pagerduty_takes_any_name(name: str) -> None:
    made = pagerduty(message(event(name, kind="signal.began", policy="")))
    assert isinstance(made, dict)
    assert len(made["payload"]["summary"]) <= 1_024
    assert len(incident_key(message(event(name * 4, kind="signal.began")))) <= 255


def alertmanager(about: AlertMessage) -> list[dict[str, Any]]:
    made = AlertmanagerAlerts("gatelock")(about, 0)
    assert isinstance(made, HttpBody)
    return list(json.loads(made.content))


def test_alertmanager_gets_an_alert_for_each_lock_with_its_end() -> None:
    began = alertmanager(message(event("user:ann"), event("user:bob")))
    ended = alertmanager(message(event("user:ann", kind="lock.cleared", at_ms=NOW_MS + 1_000)))
    assert [alert["endsAt"] for alert in began] == ["2026-11-20T23:00:00Z"] * 2
    assert began[0]["labels"] == ended[0]["labels"] != began[1]["labels"]
    assert ended[0]["endsAt"] == "2025-11-20T12:14:04.250Z"
    assert "startsAt" not in ended[0]


class Inbox:
    """Keeps mails that a server has taken."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], Any]] = []
        self.answer = "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        if self.answer.startswith("250"):
            mail = message_from_bytes(envelope.content, policy=default)
            self.mails.append((envelope.rcpt_tos, mail))
        return self.answer


@pytest.fixture
def inbox() -> Iterator[tuple[Inbox, MailServer]]:
    inbox = Inbox()
    controller = Controller(inbox, hostname=own_address(), port=0)
    controller.port = _free_port(controller.hostname)
    controller.start()
    server = MailServer(controller.hostname, controller.port, "gatelock@example.com", security="none")
    yield inbox, server
    controller.stop()


def _free_port(host: str) -> int:
    import socket

    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_mail_with_any_name_has_no_header_but_ours_and_no_html(inbox: tuple[Inbox, MailServer]) -> None:
    box, server = inbox
    channel = MailChannel(server, ("ops@example.com", "lead@example.com"))
    for name in HOSTILE:
        result = channel.send(message(event(name)), NOW_MS)
        assert result.is_accepted, result.text
    for (receivers, mail), name in zip(box.mails, HOSTILE, strict=True):
        assert receivers == ["ops@example.com", "lead@example.com"]
        assert mail["bcc"] is None
        assert mail.get_content_type() == "text/plain"
        assert mail["subject"].isprintable()
        assert mail["message-id"] == "<msg_1@example.com>"
        assert is_plain(mail.get_content().replace("\r\n", "\n"))
        assert name.encode("unicode_escape").decode()[:12] in mail.get_content(), "it is shown"


def test_a_mail_that_is_refused_is_a_result_with_the_answer(inbox: tuple[Inbox, MailServer]) -> None:
    box, server = inbox
    box.answer = "451 try\x1b later"
    result = MailChannel(server, ("ops@example.com",)).send(message(event()), NOW_MS)
    assert (result.is_accepted, result.text) == (False, "451 try\\x1b later")


def test_a_mail_server_without_tls_gets_nothing_unless_it_may(inbox: tuple[Inbox, MailServer]) -> None:
    box, server = inbox
    strict = MailServer(server.host, server.port, server.sender)
    result = MailChannel(strict, ("ops@example.com",)).send(message(event()), NOW_MS)
    assert not result.is_accepted
    assert "STARTTLS" in result.text
    assert box.mails == []


def test_a_mail_server_that_is_away_is_a_result() -> None:
    server = MailServer("127.0.0.1", 9, "gatelock@example.com")
    assert not MailChannel(server, ("ops@example.com",)).send(message(event()), NOW_MS).is_accepted
