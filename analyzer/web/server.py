"""uvicorn in a thread beside the loop."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from analyzer.errors import AnalyzerError

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 2_500  # of which most are gates that wait; more are told 503
HEAD_BYTES_MAX = 16 << 10
RENEW_EVERY_S = 60.0
STOP_S = 2.0


class CannotListen(AnalyzerError):
    """The address of the web application cannot be had."""


class Identity(NamedTuple):
    """By what a server proves who it is: PEM files."""

    certificate: Path
    key: Path


@contextmanager
def serving(
    app: Any,
    listen: tuple[str, int] | None,
    identity: Identity | None = None,
    leave: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, int] | None]:
    """Answer requests inside, in a thread; the address that it listens on, None when it is off.

    Port 0 takes one that is free. With an `identity` over TLS. At the end `leave` is called, so that
    nobody is kept waiting. Raises CannotListen before anything is started.
    """
    if listen is None:
        yield None
        return
    with _bound(*listen) as bound:
        host, port = bound.getsockname()[:2]
        config = uvicorn.Config(
            app,
            ssl_certfile=identity and identity.certificate,
            ssl_keyfile=identity and identity.key,
            log_config=None,  # ours is set up already
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,  # who asks is who connects: others are believed to be here
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=1,
        )
        stopped = threading.Event()
        if identity is not None:
            _prove(config, identity, stopped)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True, name="web")
        thread.start()
        scheme = "http" if identity is None else "https"
        log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
        try:
            yield host, port
        finally:
            stopped.set()
            leave()
            server.should_exit = True
            thread.join(STOP_S)


def _prove(config: uvicorn.Config, identity: Identity, stopped: threading.Event) -> None:
    """Take the certificate, and the new one each time that it is renewed. Raises CannotListen."""
    try:
        config.load()
    except OSError as error:  # ssl's own errors among them
        raise CannotListen(
            f"{identity.certificate} and {identity.key} are no certificate and its key: {error}; "
            "[analyzer] http_cert and http_key name PEM files"
        ) from error
    context = config.ssl
    assert context is not None  # noqa: S101 - load() has just made it
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    renewing = threading.Thread(
        target=_renew, args=(context, identity, stopped), daemon=True, name="certificate"
    )
    renewing.start()


def _renew(context: ssl.SSLContext, identity: Identity, stopped: threading.Event) -> None:
    """Connections made from then on see the new certificate; those that there are go on."""
    taken = _stamp(identity)
    while not stopped.wait(RENEW_EVERY_S):
        now = _stamp(identity)
        if now not in (taken, None):
            try:
                context.load_cert_chain(*identity)
                taken = now
                log.info("the certificate was renewed")
            except OSError as error:  # one file may be there before the other: the next look finds both
                log.warning("the new certificate cannot be taken: %s", error)


def _stamp(identity: Identity) -> tuple[int, ...] | None:
    try:
        return tuple(path.stat().st_mtime_ns for path in identity)
    except OSError:
        return None


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
