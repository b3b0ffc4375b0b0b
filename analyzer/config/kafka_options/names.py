"""Names of options in Kafka's clients, each with the one name that this configuration uses for it.

Java and librdkafka write `security.protocol` where kafka-python writes `security_protocol`; a name that only
differs in this way needs no entry here. "Our" names are the keys of `[kafka]`, and in its `options` those of
kafka-python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

OptionKind = Literal["whole", "yes-no", "text"]
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"]
UPPER_CASE_WORDS = (*get_args(SecurityProtocol), *get_args(SaslMechanism))

KEYS = frozenset({
    "assign", "bootstrap_servers", "group_id", "options", "proxy_url", "proxy_url_file", "sasl_mechanism",
    "sasl_plain_in_clear", "sasl_plain_password", "sasl_plain_password_file", "sasl_plain_username",
    "security_protocol", "session_timeout", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password",
    "ssl_password_file",
})  # fmt: skip

# What `options` accepts. Gatelock sets the other options of the consumer itself: which records are read, from
# which offset, by which group, and that their checksums are verified.
OPTIONS: dict[str, OptionKind] = {
    "api_version": "text",
    "bootstrap_timeout_ms": "whole",
    "client_dns_lookup": "text",
    "client_id": "text",
    "client_rack": "text",
    "connections_max_idle_ms": "whole",
    "enable_incremental_fetch_sessions": "yes-no",
    "fetch_max_bytes": "whole",
    "fetch_max_wait_ms": "whole",
    "fetch_min_bytes": "whole",
    "group_instance_id": "text",
    "heartbeat_interval_ms": "whole",
    "max_in_flight_requests_per_connection": "whole",
    "max_partition_fetch_bytes": "whole",
    "max_poll_interval_ms": "whole",
    "max_poll_records": "whole",
    "metadata_max_age_ms": "whole",
    "receive_buffer_bytes": "whole",
    "receive_message_max_bytes": "whole",
    "reconnect_backoff_max_ms": "whole",
    "reconnect_backoff_ms": "whole",
    "request_timeout_ms": "whole",
    "retry_backoff_ms": "whole",
    "sasl_kerberos_domain_name": "text",
    "sasl_kerberos_name": "text",
    "sasl_kerberos_service_name": "text",
    "send_buffer_bytes": "whole",
    "ssl_check_hostname": "yes-no",
    "ssl_ciphers": "text",
    "ssl_crlfile": "text",
}

# Our name: its names in Java's clients (J) and librdkafka (L).
ALIASES: dict[str, tuple[str, ...]] = {
    "bootstrap_servers": ("metadata.broker.list",),  # L
    "session_timeout": ("session.timeout.ms",),  # J L, and as session_timeout_ms kafka-python
    "sasl_mechanism": ("sasl.mechanisms",),  # L
    "sasl_plain_username": ("sasl.username",),  # L
    "sasl_plain_password": ("sasl.password",),  # L
    "ssl_cafile": ("ssl.truststore.location", "ssl.ca.location"),  # J, L
    "ssl_certfile": ("ssl.keystore.location", "ssl.certificate.location"),  # J: key and certificate in one; L
    "ssl_keyfile": ("ssl.key.location",),  # L
    "ssl_password": ("ssl.key.password",),  # J L
    "ssl_crlfile": ("ssl.crl.location",),  # L
    "ssl_ciphers": ("ssl.cipher.suites",),  # J L
    "ssl_check_hostname": ("ssl.endpoint.identification.algorithm",),  # J L
    "fetch_max_wait_ms": ("fetch.wait.max.ms",),  # L
    "max_partition_fetch_bytes": ("fetch.message.max.bytes",),  # L
    "metadata_max_age_ms": ("topic.metadata.refresh.interval.ms",),  # L
    "max_in_flight_requests_per_connection": ("max.in.flight",),  # L
    "receive_buffer_bytes": ("socket.receive.buffer.bytes",),  # L
    "send_buffer_bytes": ("socket.send.buffer.bytes",),  # L
    "request_timeout_ms": ("socket.timeout.ms",),  # L
}

JAAS = "sasl.jaas.config"  # J: user and password in one
STORE_TYPES = ("ssl.truststore.type", "ssl.keystore.type")  # J: only PEM is accepted

FIXED = "cannot be changed: Gatelock manages positions and checks itself"
FIXED_OPTIONS = (
    "auto.commit.interval.ms", "auto.offset.reset", "check.crcs", "enable.auto.commit", "isolation.level",
    "key.deserializer", "value.deserializer", "consumer.timeout.ms", "exclude.internal.topics",
    "allow.auto.create.topics", "partition.assignment.strategy", "enable.auto.offset.store",
)  # fmt: skip
# Options of other clients that have no counterpart here: what is wrong, and the cure.
UNSUPPORTED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(FIXED_OPTIONS, (FIXED, "remove it")),
    "enable.ssl.certificate.verification": (
        "is not available: the broker's certificate is always verified",
        "name the PEM file of its authority in ssl_cafile",
    ),
    "group.protocol": ("is not available: kafka-python only has the classic group protocol", "remove it"),
    "sasl.login.callback.handler.class": ("is only for Java's clients", "remove it"),
    "sasl.oauthbearer.config": ("is not available: OAUTHBEARER is not supported", "use SCRAM-SHA-512"),
    "sasl.kerberos.keytab": ("is not available", "run kinit, and renew the ticket by a timer"),
    "sasl.kerberos.principal": ("is not available", "run kinit, and renew the ticket by a timer"),
    "ssl.ca.pem": ("is not available", "write the certificates to a file, and name it in ssl_cafile"),
    "ssl.certificate.pem": ("is not available", "write it to a file, and name it in ssl_certfile"),
    "ssl.key.pem": ("is not available", "write the key to a file, and name it in ssl_keyfile"),
    "ssl.keystore.certificate.chain": ("is not available", "write it to a file, and name it in ssl_certfile"),
    "ssl.keystore.key": ("is not available", "write the key to a file, and name it in ssl_keyfile"),
    "ssl.keystore.password": (
        "is not available: a PEM file has no password",
        "remove it; write the key's password as ssl_password",
    ),
    "ssl.truststore.certificates": ("is not available", "write them to a file, and name it in ssl_cafile"),
    "ssl.truststore.password": ("is not available: a PEM file of certificates has no password", "remove it"),
    "ssl.enabled.protocols": ("is not available: client and broker agree on the newest version", "remove it"),
    "ssl.protocol": ("is not available: client and broker agree on the newest version", "remove it"),
}  # fmt: skip


def normalized(path: Iterable[str]) -> str:
    """The name in one spelling: `sasl.mechanism`, `SASL_MECHANISM` and ("sasl", "mechanism") become one.

    >>> normalized(["sasl", "Mechanism"]), normalized(["sasl.mechanism"])
    ('sasl_mechanism', 'sasl_mechanism')
    """
    return "_".join(path).replace(".", "_").replace("-", "_").lower()


# By normalized name: our name, and the option of another client that is handled separately.
OUR_NAMES = {normalized([name]): name for name in (*KEYS, *OPTIONS)} | {
    normalized([alias]): name for name, aliases in ALIASES.items() for alias in aliases
}
SPECIAL = {normalized([name]): name for name in (*UNSUPPORTED, JAAS, *STORE_TYPES)}
# Every name that may be written, in every spelling: suggestions for misspelt ones come from here.
SPELLINGS = frozenset({
    *KEYS, *OPTIONS, *(alias for aliases in ALIASES.values() for alias in aliases), JAAS,
    *(name.replace("_", ".") for name in (*OPTIONS, "bootstrap_servers", "group_id", "security_protocol")),
    "sasl.mechanism",
})  # fmt: skip


def without_options(path: Iterable[str]) -> list[str]:
    """The path of an option without the table `options` that it may be in."""
    parts = [*path]
    return parts[1:] if len(parts) > 1 and parts[0] == "options" else parts


def our_name(path: Iterable[str]) -> str:
    """Our name for what is written at `path` below `[kafka]`; the normalized path if it is unknown."""
    name = normalized(without_options(path))
    return OUR_NAMES.get(name) or name
