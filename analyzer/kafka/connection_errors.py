"""Why no connection to Kafka comes about, in one sentence that names the option and what to do.

kafka-python tries again without a word, whatever is wrong: what a person hears after half a minute is
"Unable to bootstrap". Each connection knows why it failed, though, and here it is asked.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

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
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager

from analyzer.errors import AnalyzerError
from analyzer.kafka.internals.features import parameters
from analyzer.kafka.options import Options

FAILURES_MAX = 16
SENTENCES_MAX = 3
FILE_OPTIONS = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
TLS_ALERT = 0x15030000  # what a broker that speaks TLS answers to one who does not, read as a length


class FailureCause(NamedTuple):
    """What is wrong, for a person; and of which kind, for a program."""

    kind: str  # "away", "login", "tls", "right", "topic", "group", "hung"
    sentence: str


class ConnectionTrouble(AnalyzerError):
    """There is no connection, or it is of no use any more."""

    def __init__(self, cause: FailureCause) -> None:
        super().__init__(cause.sentence)
        self.cause = cause


class ConnectionFailures:
    """Why connections failed, the last ones, until one comes about. Written on the client's own thread, read
    on any."""

    def __init__(self) -> None:
        self._last: tuple[BaseException, ...] = ()
        self._watched: WeakSet[KafkaConnection] = WeakSet()

    def watch(self, connection: KafkaConnection) -> None:
        if connection not in self._watched:
            self._watched.add(connection)
            connection.init_future.add_callback(self._none)
            connection.init_future.add_errback(self._failed)
            connection.close_future.add_errback(self._failed)

    @property
    def last(self) -> tuple[BaseException, ...]:
        return self._last

    def _failed(self, error: BaseException) -> None:
        if error not in self._last:  # once for what a connection failed by, and was closed for
            self._last = (*self._last, error)[-FAILURES_MAX:]

    def _none(self, _: object) -> None:
        self._last = ()


class ReportingConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Makes connections as its parent does, and has each say how it went."""

    failures: ConnectionFailures

    def get_connection(self, *args: Any, **given: Any) -> KafkaConnection:
        connection = super().get_connection(*args, **given)
        self.failures.watch(connection)
        return connection


def failures_of(net: Any) -> ConnectionFailures:
    """Where connections of this client say from now on why they fail. Nothing comes there if this
    kafka-python is built otherwise than we know it."""
    failures = ConnectionFailures()
    manager: Any = getattr(net, "_manager", None)
    if type(manager) is KafkaConnectionManager and _is_known():
        manager.__class__, manager.failures = ReportingConnectionManager, failures
    return failures


def _is_known() -> bool:
    asked = parameters(KafkaConnectionManager, "get_connection")
    return asked[:2] == ["self", "node_id"] and all(
        hasattr(KafkaConnection, name) for name in ("init_future", "close_future")
    )


# ------------------------------------------------------------------------------------ from errors to causes


def cause_of(errors: Iterable[BaseException], options: Options) -> FailureCause:
    """What these errors, of one connection after another, come to.

    A broker that refuses a login says so and hangs up, and now and then only the second is heard: the error
    that says most stands for all of them.
    """
    each = list(errors)
    for explain in (_right, _login, _file, _tls, _tls_there):
        for error in reversed(each):
            if (cause := explain(error, options)) is not None:
                return cause
    # To hang up is what a broker does that goes down, too: only the last word counts.
    told = [error for error in each if not isinstance(error, (RequestTimedOutError, KafkaTimeoutError))]
    return (_hung_up(told[-1], options) if told else None) or _away(each)


def _right(error: BaseException, options: Options) -> FailureCause | None:
    """A right that is missing."""
    if isinstance(error, TopicAuthorizationFailedError):
        named = error.args[0] if error.args else ()
        return FailureCause(
            "right", missing_right([named] if isinstance(named, str) else sorted(named), options)
        )
    if isinstance(error, GroupAuthorizationFailedError):
        group = options.get("group_id")
        return FailureCause(
            "right",
            f"{_who(options)} may not use the group {group}: give it READ on that group, or change group_id",
        )
    return None


def missing_right(topics: Iterable[str], options: Options) -> str:
    return f"{_who(options)} may not read {', '.join(topics)}: give it READ on the topic"


def _login(error: BaseException, options: Options) -> FailureCause | None:
    mechanism, said = options.get("sasl_mechanism"), _words(error)
    if isinstance(error, SaslAuthenticationFailedError):
        return FailureCause(
            "login",
            f"the broker refuses the login of {options.get('sasl_plain_username')} by {mechanism}: {said}; "
            "check sasl_plain_username, sasl_plain_password and sasl_mechanism",
        )
    if isinstance(error, UnsupportedSaslMechanismError):
        return FailureCause(
            "login", f"the broker knows no {mechanism}: change sasl_mechanism; it says: {said}"
        )
    if isinstance(error, IllegalSaslStateError):
        return FailureCause("login", "this listener asks for no login: change security_protocol or the port")
    return None


def _file(error: BaseException, options: Options) -> FailureCause | None:
    """A file of ours that cannot be used."""
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    if not isinstance(error, OSError) or (reason or "").endswith(("VERIFY_FAILED", "READING")):
        return None
    for option in FILE_OPTIONS:
        if name := options.get(option):
            try:
                content = Path(name).read_bytes()
            except OSError as cannot:
                return FailureCause("tls", f"{option}: {name} cannot be read: {cannot.strerror}")
            if b"-----BEGIN " not in content:
                return FailureCause(
                    "tls", f"{option}: {name} is no PEM file; keytool and openssl can turn it into one"
                )
    if reason == "KEY_VALUES_MISMATCH":
        return FailureCause("tls", "the key in ssl_keyfile is not that of the certificate in ssl_certfile")
    if isinstance(error, ssl.SSLError) and "PEM lib" in str(error):
        return FailureCause(
            "tls", "the key in ssl_keyfile cannot be read: check ssl_password, or that there is a key"
        )
    return None


TLS_ERRORS = (
    # What the words say, and what they mean.
    (
        r"CERTIFICATE_VERIFY_FAILED.*(?:mismatch|not valid for)",
        "the broker's certificate is for other names than those by which we come (in bootstrap_servers, or "
        "as it advertises itself): {said}; use a name in it, or set ssl_check_hostname = false in options",
    ),
    (r"CERTIFICATE_VERIFY_FAILED.*expired", "the broker's certificate has expired: it needs a new one"),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "the broker's certificate is signed by nobody whom ssl_cafile ({cafile}) names: {said}; name the PEM "
        "file of the authority that signed it",
    ),
    (
        r"ALERT_(?:BAD_CERTIFICATE|CERTIFICATE_\w+|UNKNOWN_CA|HANDSHAKE_FAILURE)|CERTIFICATE_REQUIRED",
        "the broker does not take our certificate ({certfile}): {said}; it wants one in ssl_certfile and "
        "ssl_keyfile, signed by an authority that it trusts",
    ),
    (
        r"UNEXPECTED_EOF_WHILE_READING|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE",
        "no TLS is spoken there: change security_protocol ({protocol}) or the port",
    ),
)


def _tls(error: BaseException, options: Options) -> FailureCause | None:
    text = str(error)
    for words, sentence in TLS_ERRORS:
        if re.search(words, text):
            return FailureCause(
                "tls",
                sentence.format(
                    said=_words(error),
                    cafile=options.get("ssl_cafile") or "not set: the system's own authorities",
                    certfile=options.get("ssl_certfile") or "ssl_certfile is not set",
                    protocol=options.get("security_protocol"),
                ),
            )
    return None


def _tls_there(error: BaseException, options: Options) -> FailureCause | None:
    protocol = options.get("security_protocol", "PLAINTEXT")
    found = re.search(r"\d+", str(error)) if isinstance(error, InvalidReceiveError) else None
    if found is None or int(found[0]) & 0xFFFF0000 != TLS_ALERT:
        return None
    tls = "SSL" if protocol == "PLAINTEXT" else "SASL_SSL"
    return FailureCause("tls", f"TLS is spoken there: set security_protocol = {tls}, or change the port")


def _hung_up(error: BaseException, options: Options) -> FailureCause | None:
    protocol = options.get("security_protocol", "PLAINTEXT")
    if "disconnected" not in str(error):
        return None
    if protocol.startswith("SASL"):
        return FailureCause(
            "login",
            f"the broker hangs up while {options.get('sasl_plain_username')} logs in: check "
            "sasl_plain_username, sasl_plain_password and sasl_mechanism, and whether security_protocol "
            f"({protocol}) is what is spoken at this port",
        )
    return FailureCause(
        "login",
        "the broker hangs up at once: it may want a login, or TLS; check security_protocol "
        f"({protocol}) and the port",
    )


def _away(errors: list[BaseException]) -> FailureCause:
    different = list(dict.fromkeys(_words(error) for error in reversed(errors)))[:SENTENCES_MAX]
    told = "; ".join(different) or "no broker answers"
    if "DNS" in told:
        told += "; check the host names in bootstrap_servers"
    return FailureCause("away", told)


def _who(options: Options) -> str:
    if user := options.get("sasl_plain_username"):
        return f"the user {user}"
    if certificate := options.get("ssl_certfile"):
        return f"the holder of {certificate}"
    return "our user"


def _words(error: BaseException) -> str:
    """What an error says, without kafka-python's numbers and repeated names."""
    text = str(error) or type(error).__name__
    text = re.sub(r"^(?:\[Error \d+\] )?(?:\w+Error: )*", "", text)
    text = re.sub(r"^\d+ ECONNREFUSED$", "connection refused", text)
    return re.sub(r"^Handshake failed: |\[(?:SSL|X509): (\w+)\] | \(_ssl\.c:\d+\)$", "", text)
