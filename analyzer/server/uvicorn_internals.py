"""Bounded connections, long polls and a bounded shutdown, by subclassing internal classes of uvicorn.

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

*Long polls.* A connection whose next request is one that `long_polls` knows gives it to that. h11 and the
application do not see it, unless they have to answer it after all.

*Internal names.* `REQUIRED` lists all of them. They are checked before the server starts. If one is
missing, the server refuses to start and names it: it never runs without its bounds. Everything else in this
package uses what uvicorn documents.

*Not bounded here.* The number of connections and the time for a TLS handshake, which comes before
`connection_made`: see `connection_limits`, which replaces the listening socket.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from analyzer.server import connection_limits
from analyzer.server.connection_limits import OpenConnections
from analyzer.server.long_poll_answers import LongPollAnswers

ABORT_S = 0.01  # for the transports to see that they were aborted, while there is still an event loop

# Internal names in use, by the object that has them. Beyond these the subclasses extend `uvicorn.Server` and
# the methods of `asyncio.Protocol`.
REQUIRED: Mapping[str, Sequence[str]] = {
    "H11Protocol": (
        "handle_events",  # called after each piece of a request: cancels the deadline
        "conn",  # the state of the request
        "loop",  # the timer of the deadline
        "transport",  # aborted at the deadline and at shutdown
        "app",  # of a connection above the bound: answers 503 instead
        "server_state",
        "client", "flow", "shutdown",  # of a connection whose long poll is answered without uvicorn
        "on_response_complete", "_unset_keepalive_if_required",  # the timer between two requests
    ),
    "H11Protocol.conn": ("our_state", "their_state", "trailing_data"),
    "Server": ("server_state", "shutdown"),
    "ServerState": ("connections", "total_requests", "default_headers"),
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
    after the connection was made. Its requests are refused when `connections` have no room for it.

    `long_polls` answers the requests that it can, without h11 and without the application.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *args: Any,
        connections: OpenConnections,
        long_polls: LongPollAnswers | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, *args, **kwargs)
        self._open_connections = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._long_polls = long_polls
        self._poll_fields: Any = None  # of the last long poll
        self._polling: asyncio.Task[None] | None = None
        self._polled = b""  # the request that is being answered by `_polling`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP alone
        super().connection_made(transport)
        if not self._open_connections.started(self.client, transport):
            self.app = connection_limits.refuse_connection(self.server_state.total_requests)
            self._long_polls = None
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        if self._polling is not None:
            data = self._stop_polling() + data  # more than one request at a time is left to uvicorn
        elif self._long_polls is not None and self._is_between_requests:
            poll = self._long_polls.parse(data, self.client, self._poll_fields)
            if poll is not None:
                self._poll_fields, self._polled = poll.fields, data
                self._cancel_deadline()
                self._unset_keepalive_if_required()
                self._polling = self.loop.create_task(self._answer(self._long_polls, poll))
                return
        self._pass_on(data)

    @property
    def _is_between_requests(self) -> bool:
        conn = self.conn
        return conn.our_state is h11.IDLE and conn.their_state is h11.IDLE and not conn.trailing_data[0]

    async def _answer(self, long_polls: LongPollAnswers, poll: Any) -> None:
        response = None
        try:
            response = await long_polls.answer(poll, self.server_state.default_headers)
        finally:
            # Also after an unexpected error: the application then answers, or logs the error again.
            if self._polling is asyncio.current_task():
                data = self._stop_polling()
                if response is None or self.flow.write_paused:
                    self._pass_on(data)
                elif not self.transport.is_closing():
                    self.transport.write(response)
                    self.on_response_complete()

    def _stop_polling(self) -> bytes:
        """Returns the request that is not answered yet, and stops answering it."""
        polling, self._polling = self._polling, None
        data, self._polled = self._polled, b""
        if polling is not None and polling is not asyncio.current_task(self.loop):
            polling.cancel()
        return data

    def shutdown(self) -> None:
        if self._polling is not None:
            self._pass_on(self._stop_polling())  # uvicorn then waits for the answer
        super().shutdown()

    def _pass_on(self, data: bytes) -> None:
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._start_deadline()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):  # the request is complete
            self._cancel_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_polling()
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
