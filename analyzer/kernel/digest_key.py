"""The key of digests, which is kept outside the database."""

from __future__ import annotations

import hmac
from hashlib import sha256

FINGERPRINT_CHARS = 16


class DigestKey:
    """The key of digests; an empty one makes digests that any program can compute.

    With a key that is not in the database, a user who can write every table cannot write a digest that fits
    other rows (HMAC, RFC 2104). Without a key a digest finds damage, and changes by a user who does not know
    about it.

    Args:
        secret: At least 16 bytes, or none.
    """

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret

    @property
    def fingerprint(self) -> str:
        """Tells keys apart; "" without one."""
        return self.of(b"fingerprint")[:FINGERPRINT_CHARS] if self._secret else ""

    def of(self, content: bytes) -> str:
        """Returns the digest of some bytes, in hexadecimal digits."""
        if not self._secret:
            return sha256(content).hexdigest()
        return hmac.digest(self._secret, content, "sha256").hex()

    def chained(self, content: str, previous: str) -> str:
        """Returns the digest of a day, from that of its rows and that of the day before."""
        return self.of(f"{content}\n{previous}".encode())
