"""Secrets: read from files, and masked wherever a person or a log could see them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, SecretStr

from analyzer.config.values import quoted, refuse

SECRET_BYTES_MAX = 64 * 1024
PASSWORD = re.compile(r"(://[^\s/@:]*:)[^\s@]+@")  # as SQLAlchemy reads it: up to the @, slashes included
PARAMETER = re.compile(
    r"""(?i)\b((?:ssl|sasl_plain_)?(?:password|passphrase|token|secret)\s*=\s*)('[^']*'|"[^"]*"|[^&\s;,'")]+)"""
)


def masked(text: str) -> str:
    """`text` without the passwords of any URL in it.

    >>> masked("postgresql+psycopg://ada:s3cret@db/gatelock?sslpassword=x&sslmode=require")
    'postgresql+psycopg://ada:***@db/gatelock?sslpassword=***&sslmode=require'
    """
    return PARAMETER.sub(r"\1***", PASSWORD.sub(r"\1***@", text))


def from_file(value: object) -> object:
    """What stands in the file, without the line's end that editors and `echo` leave."""
    if not isinstance(value, (str, Path)):
        refuse(f"{quoted(value)} is no path", 'write the path of a file: "/run/secrets/gatelock"')
    try:
        with Path(value).open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX).decode().rstrip("\r\n")
    except OSError as error:
        refuse(f"{quoted(str(value))} cannot be read: {error.strerror}", "check the path and who may read it")
    except UnicodeDecodeError:
        refuse(f"{quoted(str(value))} is not UTF-8", "write the secret as text")
    if not secret:
        refuse(f"{quoted(str(value))} is empty", "write the secret into it")
    return SecretStr(secret)


SecretFile = Annotated[SecretStr, BeforeValidator(from_file)]
