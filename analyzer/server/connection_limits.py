"""Bounds of connections: how many there may be, and how long each step of one may take.

- At most `CONNECTIONS_MAX` from the moment a connection is accepted, TLS handshakes included. At the bound a
  connection that no request was admitted on gives its place to a new one: the oldest of the address that has
  most of them, so that no address takes the place of another. Kept by `BoundedListener`.
- Beyond the bound, when every connection was admitted: `REFUSED_MAX` get a 503, the others are closed.
- A TLS handshake: `HANDSHAKE_S`. Kept by `OpenConnections`.
- A request, from its first byte to its last: `REQUEST_S`. Kept by `uvicorn_internals`.
- A connection without a request: `IDLE_S`. Kept by uvicorn, as `timeout_keep_alive`.
- A client that takes nothing of its answer, or whose machine is gone: `SEND_S`. Kept by the kernel.

The HTTP server shares its process with the counting. `RESERVED_FILES` descriptors are left to Kafka, files
and databases, which otherwise could not reconnect or follow a file while many clients connect.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any

from starlette.responses import Response

from analyzer.server.problems import problem_response

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 2_500  # most of them gates that wait for changes
REFUSED_MAX = 50  # connections beyond the bound that get an answer, or are being ended
RESERVED_FILES = 400  # descriptors for the rest of the process; 100 rotated files may be open for each source
HANDSHAKE_S = 5.0
REQUEST_S = 10.0
SEND_S = 20.0
IDLE_S = 15.0  # longer than the slowest pace at which gates poll
RETRY_AFTER_S, RETRY_AFTER_SPREAD_S = 5, 10  # spread, so that refused clients do not return all at once
WARN_EVERY_S = 60.0
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
OUT_OF_FILES_PAUSE_S = 0.01  # without a descriptor to spare, before the next attempt to accept

Client = tuple[str, int]  # host and port, as in an ASGI scope


def refuse_connection(number: int) -> Response:
    """Returns the 503 for a connection above the bound; `number` spreads the times in `Retry-After`."""
    retry_after_s = RETRY_AFTER_S + number % RETRY_AFTER_SPREAD_S
    headers = {"retry-after": str(retry_after_s), "connection": "close"}
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "Too many clients are connected.", headers)


def connections_max() -> int:
    """Returns how many connections there may be, and raises the soft limit of open files towards that.

    Logs a warning when the hard limit (`ulimit -Hn`) leaves room for fewer.
    """
    beside = REFUSED_MAX + RESERVED_FILES
    needed = CONNECTIONS_MAX + beside
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            most = max(soft - beside, soft // 4)
            log.warning(
                "at most %d gates can connect: this process may open %d files; raise that limit (ulimit -Hn)",
                most,
                soft,
            )
            return most
    return CONNECTIONS_MAX


class AcceptedSocket(socket.socket):
    """A connection that a `BoundedListener` accepted. Leaves its `OpenConnections` when it is closed."""

    def __init__(self, connections: OpenConnections, accepted: socket.socket, client: Client) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self.client = client
        self.network = client_network(client[0])
        self.transport: asyncio.Transport | None = None  # None until the TLS handshake is complete
        self.handshake: asyncio.TimerHandle | None = None
        self.is_refused = self.is_ending = False
        self._connections = connections

    def close(self) -> None:
        """Closes the connection."""
        super().close()
        self._connections.remove(self)

    def end(self) -> None:
        """Ends the connection; its descriptor is closed by the event loop a moment later."""
        if self.transport is not None:
            self.transport.abort()
        else:
            with suppress(OSError):  # the client was faster
                self.shutdown(socket.SHUT_RDWR)  # ends the handshake


class OpenConnections:
    """The open connections of a server, and which of them a request was admitted on.

    All methods belong to the event loop of the server.
    """

    def __init__(self, most: int) -> None:
        """`most` is the number of connections that are served."""
        self.most = most
        self._all: dict[Client, AcceptedSocket] = {}
        # By the network of the client, each the oldest first.
        self._unadmitted: dict[str, dict[AcceptedSocket, None]] = {}
        self._ending = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        """Whether not even a refusal has room."""
        return len(self._all) >= self.most + REFUSED_MAX

    @property
    def is_ending_some(self) -> bool:
        """Whether connections are being ended, so that there is room in a moment."""
        return self._ending > 0

    def add(self, accepted: AcceptedSocket) -> None:
        """Adds a new connection, and makes room for it or marks it as refused."""
        if len(self._all) - self._ending >= self.most:
            accepted.is_refused = not self.end_an_unadmitted()
        self._all[accepted.client] = accepted
        if not accepted.is_refused:
            self._unadmitted.setdefault(accepted.network, {})[accepted] = None
        loop = asyncio.get_running_loop()
        accepted.handshake = loop.call_later(HANDSHAKE_S, self._end, accepted)

    def end_an_unadmitted(self) -> bool:
        """Ends a connection that no request was admitted on; returns whether there was one."""
        if not self._unadmitted:
            return False
        most = max(self._unadmitted.values(), key=len)
        self._end(next(iter(most)))
        return True

    def started(self, client: Client | None, transport: asyncio.Transport) -> bool:
        """Notes that the connection of `client` is ready for requests; returns whether they are served."""
        accepted = self._all.get(client) if client else None
        if accepted is None:
            return True
        self._cancel_handshake(accepted)
        accepted.transport = transport
        if accepted.is_ending:
            transport.abort()
        return not accepted.is_refused

    def admitted(self, client: Client | None) -> None:
        """Notes that a request of `client` was admitted: its connection is not ended for a new one."""
        if client is not None and (accepted := self._all.get(client)) is not None:
            self._forget_unadmitted(accepted)

    def remove(self, accepted: AcceptedSocket) -> None:
        """Removes a connection that was closed."""
        if self._all.get(accepted.client) is accepted:
            del self._all[accepted.client]
            self._forget_unadmitted(accepted)
            self._cancel_handshake(accepted)
            self._ending -= accepted.is_ending

    def _end(self, accepted: AcceptedSocket) -> None:
        if not accepted.is_ending:
            accepted.is_ending = True
            self._ending += 1
            self._forget_unadmitted(accepted)
            accepted.end()

    def _forget_unadmitted(self, accepted: AcceptedSocket) -> None:
        of_network = self._unadmitted.get(accepted.network, {})
        if accepted in of_network:
            del of_network[accepted]
            if not of_network:
                del self._unadmitted[accepted.network]

    def _cancel_handshake(self, accepted: AcceptedSocket) -> None:
        if accepted.handshake is not None:
            accepted.handshake.cancel()
            accepted.handshake = None


class BoundedListener(socket.socket):
    """A listening socket that accepts no more connections than its `OpenConnections` have room for.

    The event loop calls `accept` again and again until it raises BlockingIOError, and then as soon as another
    client waits.
    """

    def __init__(
        self, connections: OpenConnections, family: int, kind: int, proto: int,
        uptime_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(family, kind, proto)
        self._connections = connections
        self._uptime_s = uptime_s
        self._warned_s = float("-inf")
        # Closed for a moment when no descriptor is left, so that a waiting connection can be closed.
        self._spare: int | None = _spare()

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns a connection and its address. Raises BlockingIOError while there is none, or no room."""
        if self._connections.is_full:
            if not self._connections.is_ending_some:
                super().accept()[0].close()
            raise BlockingIOError
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno in OUT_OF_FILES:
                self._turn_one_away(error)
                raise BlockingIOError from error
            raise
        bounded = AcceptedSocket(self._connections, accepted, address[:2])
        self._connections.add(bounded)
        return bounded, address

    def close(self) -> None:
        """Stops listening."""
        super().close()
        self._close_spare()

    def _turn_one_away(self, error: OSError) -> None:
        """Closes a waiting connection, which has no descriptor, and ends one of an unknown client."""
        now_s = self._uptime_s()
        if now_s - self._warned_s >= WARN_EVERY_S:
            self._warned_s = now_s
            log.error("connections are turned away: %s; %d are open", error.strerror, len(self._connections))
        self._connections.end_an_unadmitted()
        if self._spare is None:
            time.sleep(OUT_OF_FILES_PAUSE_S)  # another thread took it
        self._close_spare()
        try:
            super().accept()[0].close()
        except OSError:
            return
        finally:
            self._spare = _spare()

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


def _spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


@lru_cache(maxsize=10_000)
def client_network(host: str) -> str:
    """Returns the network that one client has: its IPv4 address, or the /64 of its IPv6 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return address.exploded[:19]
    return str(address if not isinstance(address, IPv6Address) else address.ipv4_mapped)


def set_socket_timeouts(listening: socket.socket) -> None:
    """Makes the kernel end connections whose machine is gone or whose client takes nothing of an answer.

    Accepted connections inherit these options from the listening socket.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", max(1, SEND_S / 2)),
        ("TCP_KEEPINTVL", max(1, SEND_S / 4)),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", SEND_S * 1000),
        ("TCP_NODELAY", 1),
    ):
        if hasattr(socket, option):  # Linux has all of them
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), int(value))
