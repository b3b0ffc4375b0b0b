"""A server of the lock feed inside this process, over any LockSource."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI

from analyzer.faces.api.callers_endpoint import add_callers_endpoint
from analyzer.faces.authentication import Authenticator
from analyzer.faces.feed.feed_cache import FeedCache
from analyzer.faces.feed.gates_endpoint import PendingStatuses, add_gates_endpoint
from analyzer.faces.feed.locks_endpoint import add_locks_endpoint
from analyzer.faces.feed.long_polls import LongPolls
from analyzer.kernel.tokens import TokenList
from analyzer.server.connection_limits import OpenConnections, connections_max
from analyzer.server.server import serving
from analyzer.server.tls import TlsFiles
from gatekeeper.model import LockSource

NO_TOKENS = TokenList((), 0)
LINE_S = 20.0


@contextmanager
def feed_server(
    source: LockSource, load_tokens: Callable[[], TokenList] = lambda: NO_TOKENS,
    identity: TlsFiles | None = None, port: int = 0, pending: PendingStatuses | None = None,
    views: Callable[[str], Mapping[str, Any]] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Serves the feed of `source` and yields the URL.

    With `pending` also the status reports of gates, with `views` the documents of callers.
    """
    feed, app = FeedCache(source, time.monotonic), FastAPI(openapi_url=None)
    connections = OpenConnections(connections_max())
    authenticator = Authenticator(load_tokens, time.monotonic, connections.admitted)
    add_locks_endpoint(app, feed, authenticator)
    if pending is not None:
        add_gates_endpoint(app, pending, authenticator)
    if views is not None:
        add_callers_endpoint(app, views, authenticator)
    long_polls = LongPolls(feed, authenticator)
    with serving(app, ("127.0.0.1", port), identity, feed.close, long_polls, connections) as address:
        assert address is not None
        yield f"{'https' if identity else 'http'}://127.0.0.1:{address[1]}"


@contextmanager
def line_to(url: str, receive_bytes: int = 0) -> Iterator[socket.socket]:
    """A plain connection to that server, with a receive buffer of `receive_bytes` if given."""
    address = urlsplit(url)
    line = socket.socket()
    if receive_bytes:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    line.settimeout(LINE_S)
    line.connect((address.hostname, address.port))
    try:
        yield line
    finally:
        line.close()


def certificate(folder: Path, name: str = "127.0.0.1") -> TlsFiles:
    """Makes a self-signed certificate for this address."""
    import subprocess

    found = TlsFiles(folder / "cert.pem", folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "1", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{name}",
         "-keyout", found.key, "-out", found.certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return found
