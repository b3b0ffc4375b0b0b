"""Explains why a connection to Kafka fails, in one sentence: what is wrong, where, and what to change.

kafka-python retries every failure and reports "Unable to bootstrap" after half a minute. The errors of the
single connections (`ConnectionFailures`) say more, and here the one that says most is put into words.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kafka.errors import (
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    InvalidReceiveError,
    KafkaTimeoutError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from analyzer.kernel.errors import AnalyzerError
from analyzer.sources.kafka.options import Options

SENTENCES_MAX = 3
FAILURES_MAX = 16
FILE_OPTIONS = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
TLS_ALERT = 0x15030000  # a TLS alert, read as the length of a Kafka response


class FailureCause(NamedTuple):
    """The cause of a failure: a kind for programs, and a sentence for operators.

    Kinds are "away", "login", "tls", "permission", "topic", "group" and "hung".
    """

    kind: str
    sentence: str


class ConnectionTrouble(AnalyzerError):
    """No connection can be established, or the present one cannot be used any more."""

    def __init__(self, cause: FailureCause) -> None:
        super().__init__(cause.sentence)
        self.cause = cause


class ConnectionFailures:
    """The errors by which the last connections failed; empty once one is established.

    Written on the consumer's own thread, read on any.
    """

    def __init__(self) -> None:
        self._last: tuple[BaseException, ...] = ()

    @property
    def last(self) -> tuple[BaseException, ...]:
        return self._last

    def note(self, error: BaseException) -> None:
        if error not in self._last:  # a connection may report its error twice: failed, and closed for it
            self._last = (*self._last, error)[-FAILURES_MAX:]

    def clear(self) -> None:
        self._last = ()


def failure_cause(errors: Iterable[BaseException], options: Options) -> FailureCause:
    """Returns the cause of these errors of consecutive connections.

    A broker that refuses a login says so and closes the connection, and sometimes only the close is noticed:
    so the error that says most counts for all of them.
    """
    collected = list(errors)
    for explain in (_permission, _login, _file, _tls, _unexpected_tls):
        for error in reversed(collected):
            if (cause := explain(error, options)) is not None:
                return cause
    # A broker that shuts down closes connections as well: only the last error counts.
    answered = [
        error for error in collected if not isinstance(error, (RequestTimedOutError, KafkaTimeoutError))
    ]
    return (_closed(answered[-1], options) if answered else None) or _away(collected)


def _permission(error: BaseException, options: Options) -> FailureCause | None:
    """Explains a missing permission."""
    if isinstance(error, TopicAuthorizationFailedError):
        topics = error.args[0] if error.args else ()
        return FailureCause(
            "permission", missing_permission([topics] if isinstance(topics, str) else sorted(topics), options)
        )
    if isinstance(error, GroupAuthorizationFailedError):
        group = options.get("group_id")
        return FailureCause(
            "permission",
            f"{_user(options)} may not use the group {group}: grant READ on that group, or change group_id",
        )
    return None


def missing_permission(topics: Iterable[str], options: Options) -> str:
    return f"{_user(options)} may not read {', '.join(topics)}: grant READ on the topic"


def _login(error: BaseException, options: Options) -> FailureCause | None:
    mechanism, text = options.get("sasl_mechanism"), _text(error)
    if isinstance(error, SaslAuthenticationFailedError):
        return FailureCause(
            "login",
            f"the broker refuses the login of {options.get('sasl_plain_username')} with {mechanism}: {text}; "
            "check sasl_plain_username, sasl_plain_password and sasl_mechanism",
        )
    if isinstance(error, UnsupportedSaslMechanismError):
        return FailureCause(
            "login", f"the broker does not support {mechanism}: change sasl_mechanism; it answers: {text}"
        )
    if isinstance(error, IllegalSaslStateError):
        return FailureCause("login", "the listener takes no login: change security_protocol or the port")
    return None


def _file(error: BaseException, options: Options) -> FailureCause | None:
    """Explains a certificate or key file of ours that cannot be used."""
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    if not isinstance(error, OSError) or (reason or "").endswith(("VERIFY_FAILED", "READING")):
        return None
    for option in FILE_OPTIONS:
        if name := options.get(option):
            try:
                content = Path(name).read_bytes()
            except OSError as unreadable:
                return FailureCause(
                    "tls",
                    f"{option}: {name} cannot be read: {unreadable.strerror}; check path and permissions",
                )
            if b"-----BEGIN " not in content:
                return FailureCause(
                    "tls", f"{option}: {name} must be a PEM file; convert it with keytool or openssl"
                )
    if reason == "KEY_VALUES_MISMATCH":
        return FailureCause(
            "tls",
            "the key in ssl_keyfile does not belong to the certificate in ssl_certfile: change one of them",
        )
    if isinstance(error, ssl.SSLError) and "PEM lib" in str(error):
        return FailureCause(
            "tls",
            "the key in ssl_keyfile cannot be read: check ssl_password, and that the file has a private key",
        )
    return None


# A pattern of the error's text, and its explanation.
TLS_ERRORS = (
    (
        r"CERTIFICATE_VERIFY_FAILED.*(?:mismatch|not valid for)",
        "the broker's certificate is not valid for the host name in bootstrap_servers, or for the one that "
        "the broker advertises: {text}; use a name in the certificate, or set ssl_check_hostname = false in "
        "options",
    ),
    (r"CERTIFICATE_VERIFY_FAILED.*expired", "the broker's certificate has expired: renew it"),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "the broker's certificate is not signed by an authority in ssl_cafile ({cafile}): {text}; set "
        "ssl_cafile to the PEM file of the authority that signed it",
    ),
    (
        r"ALERT_(?:BAD_CERTIFICATE|CERTIFICATE_\w+|UNKNOWN_CA|HANDSHAKE_FAILURE)|CERTIFICATE_REQUIRED",
        "the broker does not accept our certificate ({certfile}): {text}; set ssl_certfile and ssl_keyfile "
        "to a certificate signed by an authority that the broker trusts",
    ),
    (
        r"UNEXPECTED_EOF_WHILE_READING|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE",
        "the listener does not use TLS: change security_protocol ({protocol}) or the port",
    ),
)


def _tls(error: BaseException, options: Options) -> FailureCause | None:
    text = str(error)
    for pattern, sentence in TLS_ERRORS:
        if re.search(pattern, text):
            return FailureCause(
                "tls",
                sentence.format(
                    text=_text(error),
                    cafile=options.get("ssl_cafile") or "not set, so the system's authorities count",
                    certfile=options.get("ssl_certfile") or "ssl_certfile is not set",
                    protocol=options.get("security_protocol"),
                ),
            )
    return None


def _unexpected_tls(error: BaseException, options: Options) -> FailureCause | None:
    """Explains a response that is a TLS alert."""
    protocol = options.get("security_protocol", "PLAINTEXT")
    digits = re.search(r"\d+", str(error)) if isinstance(error, InvalidReceiveError) else None
    if digits is None or int(digits[0]) & 0xFFFF0000 != TLS_ALERT:
        return None
    tls = "SSL" if protocol == "PLAINTEXT" else "SASL_SSL"
    return FailureCause(
        "tls", f"the listener uses TLS: set security_protocol = {tls} (now {protocol}), or change the port"
    )


def _closed(error: BaseException, options: Options) -> FailureCause | None:
    """Explains a connection that the broker closes without an error message."""
    protocol = options.get("security_protocol", "PLAINTEXT")
    if "disconnected" not in str(error):
        return None
    if protocol.startswith("SASL"):
        return FailureCause(
            "login",
            f"the broker closes the connection during the login of {options.get('sasl_plain_username')}: "
            "check sasl_plain_username, sasl_plain_password and sasl_mechanism, and whether the listener "
            f"uses security_protocol ({protocol})",
        )
    return FailureCause(
        "login",
        "the broker closes the connection at once: it may expect a login, or TLS; check security_protocol "
        f"({protocol}) and the port",
    )


def _away(errors: list[BaseException]) -> FailureCause:
    texts = list(dict.fromkeys(_text(error) for error in reversed(errors)))[:SENTENCES_MAX]
    sentence = "; ".join(texts) or "no broker answers"
    if "DNS" in sentence:
        sentence += "; check the host names in bootstrap_servers"
    elif "refused" in sentence:
        sentence += "; check that the broker runs, and the addresses in bootstrap_servers"
    return FailureCause("away", sentence)


def _user(options: Options) -> str:
    if user := options.get("sasl_plain_username"):
        return f"the user {user}"
    if certificate := options.get("ssl_certfile"):
        return f"the user of {certificate}"
    return "the anonymous user"


def _text(error: BaseException) -> str:
    """Returns the error's text without kafka-python's numbers and repeated names."""
    text = str(error) or type(error).__name__
    text = re.sub(r"^(?:\[Error \d+\] )?(?:\w+Error: )*", "", text)
    text = re.sub(r"^\d+ ECONNREFUSED$", "connection refused", text)
    return re.sub(r"^Handshake failed: |\[(?:SSL|X509): (\w+)\] | \(_ssl\.c:\d+\)$", "", text)
