"""The page of the demo's alerts takes what the analyzer has signed, once, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from analyzer.alerts.channels.webhook_signatures import new_secret, parse_key, signature
from analyzer.demo.alert_receiver import AlertReceiver

SECRET = new_secret()
BODY = b'{"severity": "warning", "title": "user:<b>ann is locked"}'


def ask(app: AlertReceiver, method: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, str]:
    """Returns status and body of the answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(app({"type": "http", "method": method, "headers": encoded}, receive, send))
    return sent[0]["status"], sent[1]["body"].decode()


def signed(secret: str, name: str = "msg_1") -> dict[str, str]:
    given = signature(parse_key(secret), name, 1_000, BODY)
    return {"webhook-id": name, "webhook-timestamp": "1000", "webhook-signature": f"v1,other {given}"}


def test_a_signed_alert_is_shown_once_and_without_markup() -> None:
    app = AlertReceiver(SECRET)
    assert [ask(app, "POST", signed(SECRET), BODY)[0] for _ in range(2)] == [204, 204]
    page = ask(app, "GET", {})[1]
    assert page.count("user:&lt;b&gt;ann is locked") == 1
    assert "None yet" not in page


@pytest.mark.parametrize("headers", [{}, signed(new_secret()), signed(SECRET) | {"webhook-timestamp": "now"}])
def test_an_alert_that_the_analyzer_has_not_signed_is_refused(headers: dict[str, str]) -> None:
    app = AlertReceiver(SECRET)
    assert ask(app, "POST", headers, BODY)[0] == 401
    assert "None yet" in ask(app, "GET", {})[1]
