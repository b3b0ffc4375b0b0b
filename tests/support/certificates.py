"""Certificates for tests of TLS: an authority, and certificates that it signs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SANS = x509.SubjectAlternativeName(
    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
)


class Pair(NamedTuple):
    """PEM files: a certificate, its key, and both in one file, as Java needs them."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority with all files in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = self._certificate(self._name, self._key.public_key(), authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: str = "") -> Pair:
        """Issues a certificate for 127.0.0.1 with this common name; a password encrypts its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._certificate(subject, key.public_key(), authority=False)
        public = certificate.public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption(),
        )
        pair = Pair(*(self._folder / f"{name}{ending}" for ending in (".crt", ".key", ".pem")))
        for file, content in zip(pair, (public, secret, secret + public), strict=True):
            file.write_bytes(content)
        return pair

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            builder = builder.add_extension(SANS, critical=False)
        return builder.sign(self._key, hashes.SHA256())
