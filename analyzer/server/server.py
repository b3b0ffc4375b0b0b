"""uvicorn in a thread of the analyzer's process."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import uvicorn

from analyzer.kernel.errors import AnalyzerError
from analyzer.server.connection_limits import (
    IDLE_S,
    BoundedListener,
    OpenConnections,
    connections_max,
    set_socket_timeouts,
)
from analyzer.server.long_poll_answers import LongPollAnswers
from analyzer.server.problems import HEAD_BYTES_MAX, strict_framing
from analyzer.server.tls import TlsFiles, reloading_context

log = logging.getLogger(__name__)

GRACEFUL_STOP_S = 1
STOP_S = 2.0


class CannotListen(AnalyzerError):
    """The HTTP server cannot be started: its address cannot be used, or its bounds cannot be kept."""


@contextmanager
def serving(
    app: Any,
    listen: tuple[str, int] | None,
    tls: TlsFiles | None = None,
    before_stop: Callable[[], None] = lambda: None,
    long_polls: LongPollAnswers | None = None,
    connections: OpenConnections | None = None,
) -> Iterator[tuple[str, int] | None]:
    """Serves `app` in a thread and yields the host and port it listens on; None when `listen` is None.

    Port 0 takes a free port. `before_stop` is called before the server stops, to answer waiting requests.
    `long_polls` answers long polls instead of `app`. `connections` bounds the connections; by default nothing
    marks one as admitted. Raises CannotListen or TlsFilesInvalid before anything
    is started.
    """
    if listen is None:
        yield None
        return
    _require_internals()
    from analyzer.server.uvicorn_internals import BoundedConnection, BoundedServer

    connections = OpenConnections(connections_max()) if connections is None else connections
    with (
        _bound(connections, *listen) as bound,
        nullcontext() if tls is None else reloading_context(tls) as context,
    ):
        host, port = bound.getsockname()[:2]
        config = uvicorn.Config(
            strict_framing(app),
            log_config=None,  # the analyzer has configured logging
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,  # a client could claim to be this machine
            ssl_context_factory=None if context is None else lambda _config, _default: context,
            loop="asyncio",  # another one would not accept connections through `BoundedListener`
            http=partial(BoundedConnection, connections=connections, long_polls=long_polls),  # type: ignore[arg-type]  # is called as a class
            timeout_keep_alive=int(IDLE_S),
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=GRACEFUL_STOP_S,
        )
        server = BoundedServer(config)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True, name="web")
        thread.start()
        scheme = "http" if tls is None else "https"
        log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
        try:
            yield host, port
        finally:
            before_stop()
            server.should_exit = True
            thread.join(STOP_S)


def _require_internals() -> None:
    """Raises CannotListen if connections of the installed uvicorn cannot be bounded."""
    try:
        from analyzer.server.uvicorn_internals import missing_internals

        missing = missing_internals()
    except ImportError as error:
        missing = [str(error)]
    if missing:
        raise CannotListen(
            f"cannot bound connections of uvicorn {uvicorn.__version__}, which lacks {', '.join(missing)}: "
            'install the version in constraints.txt, or set [analyzer] http to "off"'
        )


def _bound(connections: OpenConnections, host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = BoundedListener(connections, family, kind, proto)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_socket_timeouts(bound)
        bound.bind(address)
        # Listen at once: a client that connects before the thread runs waits instead of being refused.
        bound.listen()
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    return CannotListen(
        f"cannot listen on {host}:{port}: {error.strerror or error}; "
        'set [analyzer] http to another address, or to "off"'
    )
