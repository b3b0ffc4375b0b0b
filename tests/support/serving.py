"""A server of the lock feed inside this process, over any LockSource."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import FastAPI

from analyzer.store.operations.tokens import Known
from analyzer.web.authentication import Bearers
from analyzer.web.feed_cache import Feed
from analyzer.web.gates_endpoint import Told, hear_gates
from analyzer.web.locks_endpoint import answer_locks
from analyzer.web.server import serving
from analyzer.web.tls import Identity
from gatekeeper.model import LockSource

NOBODY = Known((), 0)
LINE_S = 20.0


@contextmanager
def feed_server(
    source: LockSource, known: Callable[[], Known] = lambda: NOBODY, identity: Identity | None = None,
    port: int = 0, told: Told | None = None,
) -> Iterator[str]:  # fmt: skip
    """The URL that it answers at, inside. With `told` it hears what gates tell of themselves."""
    feed, app = Feed(source, time.monotonic), FastAPI(openapi_url=None)
    bearers = Bearers(known, time.monotonic)
    answer_locks(app, feed, bearers)
    if told is not None:
        hear_gates(app, told, bearers)

    def leave() -> None:
        feed.closed = True

    with serving(app, ("127.0.0.1", port), identity, leave) as address:
        assert address is not None
        yield f"{'https' if identity else 'http'}://127.0.0.1:{address[1]}"


@contextmanager
def line_to(url: str, receive_bytes: int = 0) -> Iterator[socket.socket]:
    """A connection of one's own to that server, that takes in so little at once."""
    place = urlsplit(url)
    line = socket.socket()
    if receive_bytes:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    line.settimeout(LINE_S)
    line.connect((place.hostname, place.port))
    try:
        yield line
    finally:
        line.close()


def certificate(folder: Path, name: str = "127.0.0.1") -> Identity:
    """One that vouches for itself, for this address."""
    import subprocess

    found = Identity(folder / "cert.pem", folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "1", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{name}",
         "-keyout", found.key, "-out", found.certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return found
