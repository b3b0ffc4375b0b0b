"""Signed webhooks, as the specification of Standard Webhooks describes them.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from analyzer.alerts.alert_messages import AlertMessage
from analyzer.alerts.channels.http_channel import HttpBody

PREFIX = "whsec_"
KEY_BYTES_MIN, KEY_BYTES_MAX = 24, 64


def parse_key(secret: str) -> bytes:
    """Returns the bytes of a secret. Raises ValueError with a sentence that does not repeat it.

    >>> len(parse_key("whsec_" + "A" * 32))
    24
    """
    try:
        key = base64.b64decode(secret.strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a secret is whsec_ and 24 to 64 bytes in base64") from None
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ValueError(f"a secret has 24 to 64 bytes behind whsec_, this one has {len(key)}")
    return key


def new_secret() -> str:
    """Returns a random secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature(key: bytes, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Returns the signature of a request by one key."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


@dataclass(frozen=True, slots=True)
class SignedWebhook:
    """Makes signed requests; with several keys a receiver may know any one of them, while they are changed.

    Attributes:
        keys: The present one, then earlier ones.
    """

    keys: Sequence[bytes]

    def __call__(self, message: AlertMessage, now_ms: int) -> HttpBody:
        body = json.dumps(message.fields(), ensure_ascii=False).encode()
        timestamp_s = now_ms // 1000
        signatures = (signature(key, message.id, timestamp_s, body) for key in self.keys)
        headers = {
            "content-type": "application/json",
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": " ".join(signatures),
        }
        return HttpBody(body, headers)
