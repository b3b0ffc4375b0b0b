"""POST requests to addresses that operators and customers have named.

A name is resolved once, each address must be permitted, and the connection goes to that address: a name that
changes behind a check, or a redirect, leads nowhere else. Redirects are not followed, proxies from the
environment are not used, and an answer is read up to a bound and a deadline.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from analyzer.alerts.permitted_networks import is_permitted
from gatekeeper.sources.timed_connection import DeadlineSocket, ServerAddress

TIMEOUT_S = 10.0  # of a request, until its whole answer
BODY_BYTES_MAX = 16 << 10
SHOWN_MAX = 200  # characters of an answer, in errors
WAIT_MAX_S = 3_600.0  # that an answer may ask for


class AlertUrl(NamedTuple):
    """An address of HTTP. Path and query may be secrets: `shown` has neither."""

    server: ServerAddress
    target: str

    @property
    def shown(self) -> str:
        """The address, for messages and lists."""
        server = self.server._replace(prefix="")
        return f"{server.display_name}/..." if len(self.target) > 1 else server.display_name

    @classmethod
    def parse(cls, text: str, plain_hosts: Sequence[str] = ()) -> AlertUrl:
        """Returns the address of a text. Raises ValueError with a sentence that does not repeat it.

        Args:
            text: An https URL.
            plain_hosts: Names of hosts whose URLs may begin with http.
        """
        if not re.fullmatch(r"[!-~]+", text):
            raise ValueError("a URL has no spaces and no letters beyond ASCII")
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            raise ValueError("the port of the URL is not a number up to 65535") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be a URL, https://host/path")
        if parts.username is not None or parts.fragment:
            raise ValueError("must be a URL without a user, a password and a fragment")
        if parts.scheme == "http" and parts.hostname not in plain_hosts:
            raise ValueError(
                f"http is not encrypted: write https, or add {parts.hostname} to allow_http in [alerting]"
            )
        default = 443 if parts.scheme == "https" else 80
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(ServerAddress(parts.scheme, parts.hostname, port or default, ""), target)


class HttpAnswer(NamedTuple):
    """An answer.

    Attributes:
        status: Its status.
        text: The begin of its body, on one line, printable.
        retry_after_s: For which the server asks to wait; None: it does not.
        location: Where it redirects to.
    """

    status: int
    text: str
    retry_after_s: float | None = None
    location: str = ""


class AddressRefused(OSError):
    """A name has no address that may be connected to."""


@dataclass(frozen=True, slots=True)
class GuardedPost:
    """Makes POST requests, each on a separate connection. Threads may share it.

    Attributes:
        permitted: Networks that are permitted although they are not public.
        tls: For https.
        timeout_s: Of a request, until its whole answer.
    """

    permitted: Sequence[IPv4Network | IPv6Network] = ()
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    timeout_s: float = TIMEOUT_S
    uptime_s: Callable[[], float] = time.monotonic

    def __call__(self, url: AlertUrl, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Returns the answer of any status. Raises OSError, http.client.HTTPException."""
        end_s = self.uptime_s() + self.timeout_s
        server = url.server
        tls = self.tls if server.scheme == "https" else None
        timed = DeadlineSocket(server.connect(end_s, tls, lambda addresses: self._permit(server, addresses)))
        timed.end_s = end_s
        connection = http.client.HTTPConnection(server.host, server.port)
        connection.auto_open = 0
        connection.sock = timed  # http.client uses the parts of a socket that it has
        try:
            sent = {"user-agent": "gatelock", "accept": "*/*", "connection": "close", **headers}
            connection.request("POST", url.target, body, sent)
            answer = connection.getresponse()
            content = b"" if answer.status in (204, 304) else answer.read1(BODY_BYTES_MAX)
            return HttpAnswer(
                answer.status,
                _one_line(content),
                _retry_after_s(answer.getheader("retry-after", "")),
                _one_line(answer.getheader("location", "").encode("latin-1", "replace")),
            )
        finally:
            connection.close()

    def _permit(self, server: ServerAddress, addresses: list[Any]) -> list[Any]:
        permitted = [found for found in addresses if is_permitted(str(found[4][0]), self.permitted)]
        if not permitted:
            listed = ", ".join(sorted({str(found[4][0]) for found in addresses})[:3]) or "no address"
            raise AddressRefused(
                f"{server.host} has {listed}, which is not public: name its network in allow_networks of "
                "[alerting] if it is yours"
            )
        return permitted


def _one_line(content: bytes) -> str:
    text = " ".join(content[: 4 * SHOWN_MAX].decode(errors="replace").split())
    return "".join(char if char.isprintable() else "?" for char in text)[:SHOWN_MAX]


def _retry_after_s(header: str) -> float | None:
    return min(float(header), WAIT_MAX_S) if re.fullmatch(r"\d{1,9}", header) else None
