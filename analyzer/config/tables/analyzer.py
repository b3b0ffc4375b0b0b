"""`[analyzer]`: the process: its name, the time between flushes, its HTTP server; `[privacy]`."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from analyzer.config.tables import ConfigTable
from analyzer.config.values import Listen, Name, Text, duration_between, known_words
from analyzer.kernel.refused_values import raise_fault
from analyzer.kernel.secrets import SecretFile
from gatekeeper.identity import SECRET_BYTES_MIN, NameDigest

LogLines = Literal["json", "console"]


def long_enough(secret: SecretStr) -> SecretStr:
    """Returns a secret that is long enough for a digest; anything else is a fault."""
    if len(secret.get_secret_value().encode()) < SECRET_BYTES_MIN:
        raise_fault(
            f"is shorter than {SECRET_BYTES_MIN} bytes", "write a random secret: openssl rand -hex 32 > FILE"
        )
    return secret


class PrivacyTable(ConfigTable):
    pseudonyms: bool = False  # every text field that names callers is counted by its digest


class AnalyzerTable(ConfigTable):
    name: Name = Field(default_factory=socket.gethostname)  # shown to operators as a partition's owner
    flush_every: Annotated[float, duration_between(0.01, 60)] = 0.1
    http: Listen = "127.0.0.1:8321"
    http_cert: Text | None = None  # PEM files; with both, the web application uses TLS
    http_key: Text | None = None
    log: Annotated[LogLines, known_words(LogLines)] | None = None  # None: console on a terminal, else JSON

    # Key of the digests by which fields with `digest` are counted; gates use the same one.
    digest_secret: Annotated[SecretStr, AfterValidator(long_enough)] | None = None
    digest_secret_file: Annotated[SecretFile, AfterValidator(long_enough)] | None = None

    @property
    def digest(self) -> NameDigest | None:
        """The digest of names; None without a secret."""
        secret = self.digest_secret_file or self.digest_secret
        return None if secret is None else NameDigest(secret.get_secret_value())

    @property
    def listen(self) -> tuple[str, int] | None:
        """Host and port of the web application; None when it is off."""
        if self.http == "off":
            return None
        host, _, port = self.http.rpartition(":")
        return host.strip("[]"), int(port)
