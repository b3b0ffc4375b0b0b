"""uvicorn in a thread beside the loop."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import uvicorn

from analyzer.errors import AnalyzerError
from analyzer.web.connection_limits import (
    IDLE_S,
    BoundedConnection,
    BoundedServer,
    connections_max,
    set_socket_timeouts,
)
from analyzer.web.tls import TlsFiles, reloading_context

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16 << 10
STOP_S = 2.0


class CannotListen(AnalyzerError):
    """The address of the web application cannot be had."""


@contextmanager
def serving(
    app: Any,
    listen: tuple[str, int] | None,
    identity: TlsFiles | None = None,
    leave: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, int] | None]:
    """Answer requests inside, in a thread; the address that it listens on, None when it is off.

    Port 0 takes one that is free. With an `identity` over TLS. At the end `leave` is called, so that
    nobody is kept waiting. Raises CannotListen, NoIdentity before anything is started.
    """
    if listen is None:
        yield None
        return
    with (
        _bound(*listen) as bound,
        nullcontext() if identity is None else reloading_context(identity) as context,
    ):
        host, port = bound.getsockname()[:2]
        config = uvicorn.Config(
            app,
            log_config=None,  # ours is set up already
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,  # who asks is who connects: others are believed to be here
            http=BoundedConnection,
            limit_concurrency=connections_max(),
            timeout_keep_alive=int(IDLE_S),
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=1,
        )
        config.load()
        config.ssl = context
        server = BoundedServer(config)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True, name="web")
        thread.start()
        scheme = "http" if identity is None else "https"
        log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
        try:
            yield host, port
        finally:
            leave()
            server.should_exit = True
            thread.join(STOP_S)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, proto)
    except OSError as error:
        raise _cannot(host, port, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_socket_timeouts(bound)
        bound.bind(address)
        bound.listen()  # at once: who connects before the thread is there waits instead of being refused
    except OSError as error:
        bound.close()
        raise _cannot(host, port, error) from error
    return bound


def _cannot(host: str, port: int, error: OSError) -> CannotListen:
    return CannotListen(
        f"cannot listen on {host}:{port}: {error.strerror or error}; "
        'set [analyzer] http to another address, or to "off"'
    )
