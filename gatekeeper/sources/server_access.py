"""Access to a server: its token, its certificate, and the reasons for which it cannot be asked."""

from __future__ import annotations

import http.client
import os
import re
import ssl
from pathlib import Path

TOKEN_BYTES_MAX = 4 << 10


def tls_context(ca: Path | None) -> ssl.SSLContext:
    """Returns the settings of TLS, with the certificates of `ca`. Raises ValueError."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ValueError(f"ca: {ca} holds no certificates in PEM: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def token_from_environment(name: str, file_name: str) -> str | Path | None:
    """Returns the token in the variable `name`, or the file that the variable `file_name` names."""
    if token := os.environ.get(name):
        return token
    file = os.environ.get(file_name)
    return Path(file) if file else None


def read_token(file: Path) -> str:
    """Returns the token in a file. Raises ValueError with a sentence that does not repeat it."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(TOKEN_BYTES_MAX)
    except OSError as error:
        raise ValueError(f"the token file {file}: {error.strerror}") from error
    return checked_token(raw.decode("latin-1").strip(), str(file))


def checked_token(token: str, where: str) -> str:
    """Returns a token that may be sent. Raises ValueError with a sentence that does not repeat it."""
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError(f"{where}: expected a token, one word in ASCII")
    return token


def failure_in_words(error: Exception) -> str:
    """Returns why a request has failed."""
    if isinstance(error, TimeoutError):
        return "no complete answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the server closed the connection without an answer"
    if isinstance(error, http.client.HTTPException):
        return f"not an HTTP answer: {error!r:.100}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
