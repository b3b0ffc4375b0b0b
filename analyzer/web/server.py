"""uvicorn in a thread beside the loop."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from analyzer.errors import AnalyzerError

log = logging.getLogger(__name__)

REQUESTS_MAX = 32  # at once; more are told 503
STOP_S = 2.0


class CannotListen(AnalyzerError):
    """The address of the web application cannot be had."""


@contextmanager
def serving(app: Any, listen: tuple[str, int] | None) -> Iterator[tuple[str, int] | None]:
    """Answer requests inside, in a thread; the address that it listens on, None when it is off.

    Port 0 takes one that is free. Raises CannotListen before anything is started.
    """
    if listen is None:
        yield None
        return
    with _bound(*listen) as bound:
        host, port = bound.getsockname()[:2]
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,  # ours is set up already
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                limit_concurrency=REQUESTS_MAX,
                timeout_graceful_shutdown=1,
            )
        )
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True, name="web")
        thread.start()
        log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        try:
            yield host, port
        finally:
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
