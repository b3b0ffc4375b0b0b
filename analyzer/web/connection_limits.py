"""Bounds of connections: how many there may be, and how long each step of one may take.

- At most `CONNECTIONS_MAX`; requests on further ones get a 503. Kept by `uvicorn_internals`.
- A request, from its first byte to its last: `REQUEST_S`. Kept by `uvicorn_internals`.
- A connection without a request: `IDLE_S`. Kept by uvicorn, as `timeout_keep_alive`.
- A client that takes nothing of its answer, or whose machine is gone: `SEND_S`. Kept by the kernel.
"""

from __future__ import annotations

import logging
import resource
import socket
from http import HTTPStatus

from starlette.responses import Response

from analyzer.web.problems import problem_response

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 2_500  # most of them gates that wait for changes
OTHER_FILES = 100  # descriptors that the process needs besides: databases, brokers, logs
REQUEST_S = 10.0
SEND_S = 20.0
IDLE_S = 15.0  # longer than the slowest pace at which gates poll
RETRY_AFTER_S, RETRY_AFTER_SPREAD_S = 5, 10  # spread, so that refused clients do not return all at once


def refuse_connection(number: int) -> Response:
    """Returns the 503 for a connection above the bound; `number` spreads the times in `Retry-After`."""
    retry_after_s = RETRY_AFTER_S + number % RETRY_AFTER_SPREAD_S
    headers = {"retry-after": str(retry_after_s), "connection": "close"}
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "Too many clients are connected.", headers)


def connections_max() -> int:
    """Returns how many connections there may be, and raises the soft limit of open files towards that.

    Logs a warning when the hard limit (`ulimit -Hn`) leaves room for fewer.
    """
    wanted = CONNECTIONS_MAX + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            log.warning(
                "at most %d gates can connect: this process may open %d files; raise that limit (ulimit -Hn)",
                soft - OTHER_FILES,
                soft,
            )
            return max(1, soft - OTHER_FILES)
    return CONNECTIONS_MAX


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
