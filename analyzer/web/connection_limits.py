"""One connection of the web application: bounded in time, and one of a bounded number."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from analyzer.web.problems import problem_response

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 2_500  # of which most are gates that wait; who comes then is told when to come again
OTHER_FILES = 100  # that the process has open besides: databases, brokers, logs
REQUEST_S = 10.0  # for a whole question, however small the pieces it comes in
SEND_S = 20.0  # for a client to take the next piece of its answer, or to say that its machine lives
IDLE_S = 15.0  # between two questions on one connection: longer than the slowest pace
GOODBYE_S = 0.01
RETRY_AFTER_S, RETRY_AFTER_SPREAD_S = 5, 10  # spread, so that they do not come back at once


class BoundedConnection(H11Protocol):
    """uvicorn's, which by itself waits for ever for a question that has begun, or never begins, and says
    nothing to those who are too many of when it wants to see them again."""

    def __init__(self, config: Config, *rest: Any, **others: Any) -> None:
        super().__init__(config, *rest, **others)
        self._most = config.limit_concurrency
        self.limit_concurrency = None  # ours is told apart
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP alone comes here
        super().connection_made(transport)
        if self._most is not None and len(self.connections) > self._most:
            self.app = refuse_connection(self.server_state.total_requests)
        self._be_patient()

    def data_received(self, data: bytes) -> None:
        if self._patience is None and self.conn.their_state is h11.IDLE:
            self._be_patient()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._lose_patience()  # the question is whole

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose_patience()
        super().connection_lost(exc)

    def _be_patient(self) -> None:
        self._patience = self.loop.call_later(REQUEST_S, self._hang_up)

    def _lose_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _hang_up(self) -> None:
        self.transport.abort()


class BoundedServer(uvicorn.Server):
    """uvicorn's, which by itself leaves connections open whose client has stopped reading."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(GOODBYE_S)  # they are to hear of it while there is a loop


def refuse_connection(number: int) -> Response:
    """What is told to who came as the `number`th: to come again, at another time than the next one."""
    later = {"retry-after": str(RETRY_AFTER_S + number % RETRY_AFTER_SPREAD_S), "connection": "close"}
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "Too many are connected just now.", later)


def connections_max() -> int:
    """How many connections there may be. Raises the process's own limit of open files towards it."""
    wanted = CONNECTIONS_MAX + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            log.warning(
                "at most %d gates can be connected: this process may open %d files (ulimit -Hn)",
                soft - OTHER_FILES,
                soft,
            )
            return max(1, soft - OTHER_FILES)
    return CONNECTIONS_MAX


def set_socket_timeouts(listening: socket.socket) -> None:
    """Have the kernel end connections to machines that are gone, and to clients that take nothing of their
    answer: those that are accepted here inherit it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", max(1, SEND_S / 2)),
        ("TCP_KEEPINTVL", max(1, SEND_S / 4)),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", SEND_S * 1000),
        ("TCP_NODELAY", 1),
    ):
        if hasattr(socket, option):  # Linux has them all
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), int(value))
