"""Messages over HTTP: one POST, whose body and headers a format makes."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from analyzer.alerts.alert_messages import AlertMessage
from analyzer.alerts.channels import SendResult
from analyzer.alerts.guarded_http import AlertUrl, HttpAnswer

GONE = 410


class HttpBody(NamedTuple):
    """The content of a request."""

    content: bytes
    headers: Mapping[str, str]


Post = Callable[[AlertUrl, bytes, Mapping[str, str]], HttpAnswer]
# Returns the request of a message at a time in milliseconds; a text instead of it: there is nothing to send.
MakeBody = Callable[[AlertMessage, int], HttpBody | str]


@dataclass(frozen=True, slots=True)
class HttpChannel:
    """A receiver over HTTP.

    Attributes:
        kind: The key of the configuration that names it, for lists.
        url: Its address.
        make_body: Makes the request.
        post: Sends it.
        lists_all: Whether a message must have all of its events.
        has_incidents: Whether each signal needs a separate message.
    """

    kind: str
    url: AlertUrl
    make_body: MakeBody
    post: Post
    lists_all: bool = False
    has_incidents: bool = False

    @property
    def shown(self) -> str:
        return f"{self.kind} {self.url.shown}"

    def send(self, message: AlertMessage, now_ms: int) -> SendResult:
        """See `Channel.send`."""
        body = self.make_body(message, now_ms)
        if isinstance(body, str):
            return SendResult(True, body)
        try:
            answer = self.post(self.url, body.content, body.headers)
        except (OSError, http.client.HTTPException) as error:
            return SendResult(False, _reason(error))
        if 200 <= answer.status < 300:
            return SendResult(True, answer.text, answer.status)
        if 300 <= answer.status < 400:
            return SendResult(
                False,
                f"{answer.status}: it redirects, which is not followed: write the address itself",
                answer.status,
            )
        text = f"{answer.status} {answer.text}".strip()
        return SendResult(
            False, text, answer.status, answer.status == GONE, retry_after_s=answer.retry_after_s
        )

    def close(self) -> None:
        """Keeps nothing open."""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    text = " ".join(str(error).split())
    return text[:200] if text else type(error).__name__
