"""Secrets: read from files, and masked in every text that an operator or a log could see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, SecretStr

from analyzer.kernel.refused_values import quote, raise_fault

SECRET_BYTES_MAX = 64 * 1024
PASSWORD = re.compile(r"(://[^\s/@:]*:)[^\s@]+@")  # up to the @, slashes included, as SQLAlchemy parses it
PARAMETER = re.compile(
    r"""(?i)\b((?:ssl|sasl_plain_)?(?:password|passphrase|token|secret)\s*=\s*)('[^']*'|"[^"]*"|[^&\s;,'")]+)"""
)


def masked(text: str) -> str:
    """`text` without the passwords of any URL in it.

    >>> masked("postgresql+psycopg://ada:s3cret@db/gatelock?sslpassword=x&sslmode=require")
    'postgresql+psycopg://ada:***@db/gatelock?sslpassword=***&sslmode=require'
    """
    return PARAMETER.sub(r"\1***", PASSWORD.sub(r"\1***@", text))


def read_secret_file(value: object) -> object:
    """The content of the file at this path, without the line end that editors and `echo` append."""
    if not isinstance(value, (str, Path)):
        raise_fault(
            f"must be the path of a file, not {quote(value)}", 'write it as text: "/run/secrets/gatelock"'
        )
    try:
        with Path(value).open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX).decode().rstrip("\r\n")
    except OSError as error:
        raise_fault(
            f"{quote(str(value))} cannot be read: {error.strerror}", "check the path and its permissions"
        )
    except UnicodeDecodeError:
        raise_fault(f"{quote(str(value))} is not UTF-8", "save the secret as text in UTF-8")
    if not secret:
        raise_fault(f"{quote(str(value))} is empty", "write the secret into it")
    return SecretStr(secret)


SecretFile = Annotated[SecretStr, BeforeValidator(read_secret_file)]
