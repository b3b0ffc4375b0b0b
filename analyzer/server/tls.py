"""TLS of the HTTP server, with its certificate read again when the files change.

*Purpose.* A renewed certificate is in use within a minute (docs/configuration.md). Certificates are renewed
every few weeks; a restart for each of them would rebalance the consumer group, and a lock would reach the
gates later than promised.

*Why not uvicorn alone.* It reads `ssl_certfile` and `ssl_keyfile` once. Its documented
`ssl_context_factory` accepts any context, which is all that this module needs of it; the rest is public in
`ssl`. No internal name is used. A reverse proxy that ends TLS reloads certificates as well, and is the
better choice where there is one; an installation in a private network often has none.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from analyzer.kernel.errors import AnalyzerError

log = logging.getLogger(__name__)

RELOAD_EVERY_S = 60.0
STOP_S = 1.0


class TlsFiles(NamedTuple):
    """PEM files of a certificate (with its chain) and its private key."""

    certificate: Path
    key: Path


class TlsFilesInvalid(AnalyzerError):
    """The files are missing, or do not hold a certificate and its key."""


@contextmanager
def reloading_context(files: TlsFiles) -> Iterator[ssl.SSLContext]:
    """A context for the server. New connections get the certificate that is in `files` by then; open ones
    keep theirs. Raises TlsFilesInvalid when the files cannot be used at the beginning."""
    try:
        context = _load(files)
    except OSError as error:  # ssl.SSLError is one
        raise TlsFilesInvalid(
            f"cannot use {files.certificate} and {files.key} as a certificate and its key: {error}; "
            "name PEM files in [analyzer] http_cert and http_key"
        ) from error
    certificate, stopped = CurrentCertificate(context), threading.Event()
    context.sni_callback = certificate
    reloading = threading.Thread(
        target=_reload, args=(certificate, files, stopped), daemon=True, name="certificate"
    )
    reloading.start()
    try:
        yield context
    finally:
        stopped.set()
        reloading.join(STOP_S)


class CurrentCertificate:
    """Callback that gives each new connection the current context.

    A context is replaced as a whole. Loading files into a context in use would, for a moment, pair a new
    certificate with an old key; and for longer while only one of the two files has been renewed.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def __call__(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _first: ssl.SSLContext
    ) -> None:
        connection.context = self.context  # also called for clients that send no server name


def _load(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*files)
    return context


def _reload(current: CurrentCertificate, files: TlsFiles, stopped: threading.Event) -> None:
    loaded = _modified_ns(files)
    while not stopped.wait(RELOAD_EVERY_S):
        modified = _modified_ns(files)
        if modified not in (loaded, None):
            try:
                current.context = _load(files)
            except OSError as error:  # perhaps only one of the files has been renewed: try again next time
                log.warning("cannot use the renewed certificate, keeping the old one: %s", error)
            else:
                loaded = modified
                log.info("the renewed certificate is in use")


def _modified_ns(files: TlsFiles) -> tuple[int, ...] | None:
    try:
        return tuple(path.stat().st_mtime_ns for path in files)
    except OSError:
        return None
