"""Requests to a billing service: each with a deadline, repeated while the service may take it later.

The connection is the gatekeeper's, whose deadline holds for the whole answer. Redirects are not followed
and proxies from the environment are not used, so the token goes to the named server alone.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

from analyzer.billing.hand_over.billing_services import SENTENCE_MAX, BillingService
from analyzer.billing.hand_over.service_sums import Sums
from analyzer.billing.hand_over.usage_events import UsageEvent
from analyzer.kernel.errors import DeliveryFailed, NotAtService
from analyzer.plan.windows import Window
from gatekeeper.sources.timed_connection import DeadlineSocket, ServerAddress

TIMEOUT_S = 20.0  # of a request, until its whole answer
BODY_BYTES_MAX = 1 << 20
LATER = {408, 409, 425, 429, *range(500, 600)}  # the same request may succeed later
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
GIVE_UP_S = 300.0  # of failures in a row
KEEP_EVERY_S = 5.0  # the lease, while a request is repeated
CURES: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "write its key, see --token-file",
    HTTPStatus.FORBIDDEN: "write a key that may read meters, events and usage, see --token-file",
}


class Sent(NamedTuple):
    """Some events of which each is acknowledged.

    Attributes:
        known: How many of them the service had already.
    """

    known: int


class Waits(NamedTuple):
    """The waiting of a sender between two tries.

    Attributes:
        sleep: Waits so many seconds; called every second at least.
        random: A number from 0 to 1.
        failed: Called with the first of several failures in a row.
        give_up_s: Seconds of failures in a row after which it gives up.
    """

    sleep: Callable[[float], None]
    random: Callable[[], float]
    failed: Callable[[str], None]
    give_up_s: float = GIVE_UP_S


def keeping_sleep(keep: Callable[[], None], sleep: Callable[[float], None]) -> Callable[[float], None]:
    """Returns a sleep for any thread, which keeps a lease by `keep`."""
    mutex, kept_s = threading.Lock(), [time.monotonic()]

    def sleep_and_keep(seconds: float) -> None:
        sleep(seconds)
        with mutex:
            if time.monotonic() - kept_s[0] > KEEP_EVERY_S:
                keep()
                kept_s[0] = time.monotonic()

    return sleep_and_keep


class _Request(NamedTuple):
    method: str
    path: str
    content: bytes | None = None
    content_type: str = ""


class _ServiceConnection:
    """Requests on one connection to a service; must not be shared between threads."""

    later = "ask again later"  # what to do when it does not answer

    def __init__(
        self,
        server: ServerAddress,
        service: BillingService,
        token: str,
        waits: Waits,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._server = server
        self._service = service
        self._waits = waits
        self._tls = tls
        self._headers = {"accept": "application/json", "user-agent": "gatelock"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._connection: http.client.HTTPConnection | None = None
        self._socket: DeadlineSocket | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Ends a request that another thread waits for, with DeliveryFailed; none can be sent any more."""
        self._is_stopped = True
        if self._socket is not None:
            self._socket.shut_down()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _answered(self, request: _Request) -> tuple[int, bytes]:
        """Returns an answer that is final, of status 2xx or 4xx. Raises DeliveryFailed."""
        waits, failing_s = self._wait_times(), 0.0
        while True:
            began_s = time.monotonic()
            retry_after_s: float | None = None
            try:
                answer, body = self._request(request)
                if 300 <= answer.status < 400:
                    location = answer.getheader("location", "")[:200]
                    raise DeliveryFailed(
                        f"{self._server.display_name} redirects to {location!r}; write that address"
                    )
                if answer.status not in LATER:
                    return answer.status, body
                reason = f"{answer.status} {answer.reason}".strip()
                retry_after_s = _retry_after_s(answer.getheader("retry-after", ""))
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = str(error) or type(error).__name__
            if not failing_s:
                self._waits.failed(f"{self._server.display_name}: {reason}; it is tried again")
            wait_s = max(next(waits), retry_after_s or 0.0)
            failing_s += time.monotonic() - began_s + wait_s
            if failing_s > self._waits.give_up_s or self._is_stopped:
                raise DeliveryFailed(
                    f"{self._server.display_name}: {reason}; {self.later}",
                    is_away=True,
                )
            self._wait(wait_s)

    def _wait_times(self) -> Iterator[float]:
        longest_s = FIRST_WAIT_S
        while True:
            yield longest_s * (0.5 + self._waits.random() / 2)
            longest_s = min(longest_s * 2, LONGEST_WAIT_S)

    def _wait(self, wait_s: float) -> None:
        while wait_s > 0 and not self._is_stopped:
            self._waits.sleep(min(1.0, wait_s))
            wait_s -= 1.0

    def _request(self, request: _Request) -> tuple[http.client.HTTPResponse, bytes]:
        end_s = time.monotonic() + TIMEOUT_S
        connection = self._connected(end_s)
        headers = self._headers | ({"content-type": request.content_type} if request.content_type else {})
        connection.request(request.method, request.path, request.content, headers)
        answer = connection.getresponse()
        body = answer.read(BODY_BYTES_MAX + 1)
        if len(body) > BODY_BYTES_MAX or answer.will_close:
            self.close()
        return answer, body[:BODY_BYTES_MAX]

    def _connected(self, end_s: float) -> http.client.HTTPConnection:
        connection, timed = self._connection, self._socket
        if connection is None or timed is None:
            sock = self._server.connect(end_s, self._tls)
            connection = http.client.HTTPConnection(self._server.host, self._server.port)
            connection.auto_open = 0
            # http.client uses the parts of a socket that DeadlineSocket has.
            connection.sock = timed = DeadlineSocket(sock)
            self._connection, self._socket = connection, timed
        timed.end_s = end_s
        return connection


class EventSender(_ServiceConnection):
    """Sends events to one service, on one connection; must not be shared between threads.

    Args:
        server: Where the service is.
        service: How it takes events.
        token: Sent as a bearer token; "" for none.
        waits: Between two tries.
        tls: For https; None without.
    """

    later = "send again later, it continues here"

    def send(self, events: Sequence[UsageEvent]) -> Sent:
        """Sends the events in one request, or again those that the service did not have, until it has all.

        Raises DeliveryFailed when it refuses some, or does not answer for too long: then none, or some of
        them, are acknowledged.
        """
        remaining, duplicates = list(events), 0
        path = self._server.prefix or self._service.path
        while remaining:
            content = self._service.content(remaining)
            status, body = self._answered(_Request("POST", path, content, self._service.content_type))
            answer = self._service.answer(status, body, remaining)
            if answer.refusal:
                raise DeliveryFailed(
                    f"{self._server.display_name} refuses {self._named(remaining)}: {answer.refusal}"
                )
            duplicates += len(answer.known)
            if answer.is_whole:
                break
            remaining = [event for index, event in enumerate(remaining) if index not in answer.known]
        return Sent(duplicates)

    def _named(self, events: Sequence[UsageEvent]) -> str:
        first = events[0]
        about = f"the event of {first.customer}" if len(events) == 1 else f"{len(events)} events"
        return f"{about} ({first.name}, {first.amount.day})"


class ServiceReader(_ServiceConnection):
    """Asks a service for what it has, on one connection; must not be shared between threads.

    Args:
        server: Where the service is. Its path is that of events, or "".
        service: Of which kind it is.
        token: Sent as a bearer token; "" for none.
        waits: Between two tries.
        tls: For https; None without.
    """

    def sums(self, event: str, customers: Sequence[str], period: Window) -> Sums:
        """Returns the sums of an event that the service has, by customer; see `BillingService.sums`.

        Raises DeliveryFailed when it refuses, answers in another form, or does not answer for too long.
        """
        try:
            return self._service.sums(self._get, event, customers, period)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DeliveryFailed(
                f"{self._server.display_name} answers in another form than this service: write its --format"
            ) from error

    def _get(self, path: str, parameters: Mapping[str, object]) -> Any:
        query = urlencode(parameters, doseq=True)
        base = self._server.prefix.removesuffix(self._service.path)
        status, body = self._answered(_Request("GET", f"{base}{path}?{query}"))
        if status < HTTPStatus.BAD_REQUEST:
            return json.loads(body, parse_float=Decimal)
        text = " ".join(body.decode(errors="replace").split())[:SENTENCE_MAX]
        is_missing = status == HTTPStatus.NOT_FOUND or "resource_missing" in text
        cure = CURES.get(status, "compare the URL and --format with those of the hand-over")
        sentence = f"{self._server.display_name} refuses {path}: {status} {text}: {cure}"
        raise NotAtService(sentence) if is_missing else DeliveryFailed(sentence)


def _retry_after_s(header: str) -> float | None:
    if re.fullmatch(r"\d{1,9}", header):
        return float(header)
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    return None
