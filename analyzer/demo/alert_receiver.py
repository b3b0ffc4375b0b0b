"""A receiver of the demo's alerts: verifies the signature of each webhook, and shows them on a page."""

from __future__ import annotations

import argparse
import hmac
import json
import os
from collections import deque
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple

import uvicorn

from analyzer.alerts.channels.webhook_signatures import parse_key, signature
from analyzer.demo.tied_module import when_parent_ends
from gatekeeper.adapters.asgi import Receive, Scope, Send

SECRET = "GATELOCK_DEMO_WEBHOOK_SECRET"  # noqa: S105 - the name of an environment variable
SHOWN = 50
BODY_MAX = 1 << 20
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<meta name="viewport" content="width=device-width">
<title>Alerts · Gatelock demo</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 54em; margin: 2em auto; padding: 0 1em }}
li {{ margin: .7em 0 }} small {{ color: #667 }} .critical {{ color: #b42318 }} .warning {{ color: #854d0e }}
</style></head><body><h1>Alerts that were delivered</h1>
<p>The demo's analyzer sends these as signed webhooks. This page stands for yours.</p>
<ul>{entries}</ul></body></html>
"""
NONE = "<li>None yet: the first comes with the first lock.</li>"


class ReceivedAlert(NamedTuple):
    """A message, and when it arrived."""

    at: datetime
    id: str
    severity: str
    title: str

    @property
    def entry(self) -> str:
        """The message as an entry of a list."""
        about = f"{self.at:%H:%M:%S} UTC, {escape(self.severity)}, {escape(self.id)}"
        return f'<li class="{escape(self.severity)}">{escape(self.title)}<br><small>{about}</small></li>'


class AlertReceiver:
    """Takes messages at POST, each once, and shows them at GET."""

    def __init__(self, secret: str) -> None:
        self._key = parse_key(secret)
        self._alerts: deque[ReceivedAlert] = deque(maxlen=SHOWN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            status, content = self._take(dict(scope["headers"]), await body_of(receive)), b""
        else:
            entries = "".join(alert.entry for alert in reversed(self._alerts))
            status, content = 200, PAGE.format(entries=entries or NONE).encode()
        headers = [(b"content-type", b"text/html; charset=utf-8")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _take(self, headers: dict[bytes, bytes], body: bytes) -> int:
        """Returns the status of the answer: 401 for a message whose signature is not the analyzer's."""
        name, timestamp = (headers.get(b"webhook-" + part, b"").decode() for part in (b"id", b"timestamp"))
        signatures = headers.get(b"webhook-signature", b"").decode().split()
        expected = signature(self._key, name, int(timestamp), body) if timestamp.isdecimal() else ""
        if not any(hmac.compare_digest(expected, given) for given in signatures):
            return 401
        fields: dict[str, Any] = json.loads(body)
        if all(alert.id != name for alert in self._alerts):
            self._alerts.append(ReceivedAlert(datetime.now(UTC), name, fields["severity"], fields["title"]))
        return 204


async def body_of(receive: Receive) -> bytes:
    """Returns the body of a request, BODY_MAX bytes of it at most."""
    body, has_more = b"", True
    while has_more and len(body) < BODY_MAX:
        message = await receive()
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return body[:BODY_MAX]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    app = AlertReceiver(os.environ[SECRET])
    options: dict[str, Any] = {"log_level": "error", "access_log": False, "lifespan": "off"}
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=parser.parse_args().port, **options))
    when_parent_ends(lambda: setattr(server, "should_exit", True))
    server.run()


if __name__ == "__main__":
    main()
