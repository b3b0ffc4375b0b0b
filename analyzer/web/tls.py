"""How a server proves who it is: its certificate, and the new one each time that it is renewed."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from analyzer.errors import AnalyzerError

log = logging.getLogger(__name__)

RENEW_EVERY_S = 60.0
STOP_S = 1.0


class TlsFiles(NamedTuple):
    """By what a server proves who it is: PEM files."""

    certificate: Path
    key: Path


class TlsFilesInvalid(AnalyzerError):
    """The files are no certificate and its key."""


@contextmanager
def reloading_context(identity: TlsFiles) -> Iterator[ssl.SSLContext]:
    """What connections are greeted with inside. Those made after the files were renewed see the new
    certificate; those that there are go on. Raises NoIdentity."""
    try:
        current = _context(identity)
    except OSError as error:  # ssl's own errors among them
        raise TlsFilesInvalid(
            f"{identity.certificate} and {identity.key} are no certificate and its key: {error}; "
            "[analyzer] http_cert and http_key name PEM files"
        ) from error
    shown, stopped = CurrentCertificate(current), threading.Event()
    current.sni_callback = shown
    renewing = threading.Thread(
        target=_renew, args=(shown, identity, stopped), daemon=True, name="certificate"
    )
    renewing.start()
    try:
        yield current
    finally:
        stopped.set()
        renewing.join(STOP_S)


class CurrentCertificate:
    """The certificate that is shown just now. Swapped whole: in one that is changed while it is in use, key
    and certificate do not fit together for a moment, or, of half a renewal, for as long as it takes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def __call__(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _first: ssl.SSLContext
    ) -> None:
        connection.context = self.context  # also where the client names nobody


def _context(identity: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*identity)
    return context


def _renew(shown: CurrentCertificate, identity: TlsFiles, stopped: threading.Event) -> None:
    taken = _stamp(identity)
    while not stopped.wait(RENEW_EVERY_S):
        now = _stamp(identity)
        if now not in (taken, None):
            try:
                shown.context = _context(identity)
                taken = now
                log.info("the certificate was renewed")
            except OSError as error:  # one file may be there before the other: the next look finds both
                log.warning("the new certificate cannot be taken: %s", error)


def _stamp(identity: TlsFiles) -> tuple[int, ...] | None:
    try:
        return tuple(path.stat().st_mtime_ns for path in identity)
    except OSError:
        return None
