"""Bounded connections and a bounded shutdown, by subclassing internal classes of uvicorn.

*Purpose.* Bounds hold from the moment a connection is accepted. The HTTP server shares a process with the
counting: a client must not be able to take its descriptors and memory by
connecting, or by sending a request byte by byte.

*Why not uvicorn alone.* It has `limit_concurrency`, whose 503 has no `Retry-After`, so that a
refused fleet returns all at once, and `timeout_keep_alive`, which only ends a connection between two
requests. It has no time-out for the head or the body of a request, nor for a connection that sends nothing
at all. A shutdown leaves connections open whose client has stopped reading. Middleware comes too late: it
is called when the head of a request is complete. A reverse proxy in front can keep these bounds, but the
server has to hold without one: `gatelock run` alone is the common installation. docs/decisions/0016 has
what was tried.

*Internal names.* `REQUIRED` lists all of them. They are checked before the server starts. If one is
missing, the server refuses to start and names it: it never runs without its bounds. Everything else in this
package uses what uvicorn documents.

*Not bounded here.* A connection above the bound is accepted, and keeps its descriptor until its first
request, at most `REQUEST_S`. A TLS handshake comes before `connection_made`: a client that never begins one
is not counted, and is disconnected by asyncio after 60 seconds.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from analyzer.web import connection_limits

ABORT_S = 0.01  # for the transports to see that they were aborted, while there is still an event loop

# Internal names in use, by the object that has them. Beyond these the subclasses extend `uvicorn.Server` and
# the methods of `asyncio.Protocol`.
REQUIRED: Mapping[str, Sequence[str]] = {
    "H11Protocol": (
        "handle_events",  # called after each piece of a request: cancels the deadline
        "conn",  # the state of the request
        "loop",  # the timer of the deadline
        "transport",  # aborted at the deadline and at shutdown
        "connections", "limit_concurrency", "app",  # bound the number: the app answers 503 instead
        "server_state",
    ),
    "H11Protocol.conn": ("their_state",),
    "Server": ("server_state", "shutdown"),
    "ServerState": ("connections", "total_requests"),
}  # fmt: skip


def missing_internals() -> list[str]:
    """Returns the names of `REQUIRED` that the installed uvicorn does not have."""
    config = uvicorn.Config(lambda _scope: None, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    state: Any = getattr(server, "server_state", None)
    loop = asyncio.new_event_loop()
    try:
        connection: Any = H11Protocol(config, state, {}, loop)
    except (AttributeError, TypeError) as error:
        return [f"H11Protocol(config, server_state, app_state, loop): {error}"]
    finally:
        loop.close()
    objects = {
        "H11Protocol": connection,
        "H11Protocol.conn": getattr(connection, "conn", None),
        "Server": server,
        "ServerState": state,
    }
    return [
        f"{owner}.{name}"
        for owner, names in REQUIRED.items()
        for name in names
        if not hasattr(objects[owner], name)
    ]


class BoundedConnection(H11Protocol):
    """Connection that is aborted when a request is not complete in time, `REQUEST_S` after its first byte or
    after the connection was made. Beyond `limit_concurrency` connections its requests are refused."""

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._connections_max = config.limit_concurrency
        self.limit_concurrency = None  # switches off uvicorn's own refusal
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP alone
        super().connection_made(transport)
        if self._connections_max is not None and len(self.connections) > self._connections_max:
            self.app = connection_limits.refuse_connection(self.server_state.total_requests)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._start_deadline()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):  # the request is complete
            self._cancel_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(connection_limits.REQUEST_S, self._abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        self.transport.abort()


class BoundedServer(uvicorn.Server):
    """A server whose shutdown ends every connection, also one whose client has stopped reading."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(ABORT_S)
