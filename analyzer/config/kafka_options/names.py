"""What Kafka's clients call their options: one name of ours for each, whoever's words it comes in.

Java and librdkafka write `security.protocol` where kafka-python writes `security_protocol`; a name that only
differs so needs no line here. The first column is ours: a key of `[kafka]`, or of its `options`, which has
kafka-python's names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

OptionKind = Literal["whole", "yes-no", "text"]

KEYS = frozenset({
    "assign", "bootstrap_servers", "group_id", "options", "proxy_url", "proxy_url_file", "sasl_mechanism",
    "sasl_plain_in_clear", "sasl_plain_password", "sasl_plain_password_file", "sasl_plain_username",
    "security_protocol", "session_timeout", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password",
    "ssl_password_file",
})  # fmt: skip

# What may stand in `options`: the rest is ours to set: which records are read, from where, by whom, and that
# their checksums are looked at.
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

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")

# Ours: what else it is called, by Java's clients (J) and librdkafka's (L).
ALSO: dict[str, tuple[str, ...]] = {
    "bootstrap_servers": ("metadata.broker.list",),  # L
    "session_timeout": ("session.timeout.ms",),  # J L; kafka-python's session_timeout_ms, too
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
STORES = ("ssl.truststore.type", "ssl.keystore.type")  # J: PEM, and nothing else

NO_CHOICE = "is not a matter of choice: positions and checks are Gatelock's own"
OWN = (
    "auto.commit.interval.ms", "auto.offset.reset", "check.crcs", "enable.auto.commit", "isolation.level",
    "key.deserializer", "value.deserializer", "consumer.timeout.ms", "exclude.internal.topics",
    "allow.auto.create.topics", "partition.assignment.strategy", "enable.auto.offset.store",
)  # fmt: skip
# Options that other clients have and this one has not: what is wrong, and what to do.
REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(OWN, (NO_CHOICE, "leave it out")),
    "enable.ssl.certificate.verification": (
        "is not available: a broker's certificate is always looked at",
        "name the PEM file of its authority in ssl_cafile",
    ),
    "group.protocol": ("is not available: kafka-python joins groups in the classic way", "leave it out"),
    "sasl.login.callback.handler.class": ("is Java's own", "leave it out"),
    "sasl.oauthbearer.config": ("is not available: there is no OAUTHBEARER here", "use SCRAM-SHA-512"),
    "sasl.kerberos.keytab": ("is not available", "run kinit, and renew the ticket from outside"),
    "sasl.kerberos.principal": ("is not available", "run kinit, and renew the ticket from outside"),
    "ssl.ca.pem": ("is not available", "write the certificates to a file, and name it in ssl_cafile"),
    "ssl.certificate.pem": ("is not available", "write it to a file, and name it in ssl_certfile"),
    "ssl.key.pem": ("is not available", "write the key to a file, and name it in ssl_keyfile"),
    "ssl.keystore.certificate.chain": ("is not available", "write it to a file, and name it in ssl_certfile"),
    "ssl.keystore.key": ("is not available", "write the key to a file, and name it in ssl_keyfile"),
    "ssl.keystore.password": ("PEM files have none", "the password of the key itself is ssl_password"),
    "ssl.truststore.certificates": ("is not available", "write them to a file, and name it in ssl_cafile"),
    "ssl.truststore.password": ("PEM files of certificates have none", "leave it out"),
    "ssl.enabled.protocols": ("is not available: both sides take the newest that they know", "leave it out"),
    "ssl.protocol": ("is not available: both sides take the newest that they know", "leave it out"),
}  # fmt: skip


def plainly(path: Iterable[str]) -> str:
    """A name in one spelling: `sasl.mechanism`, `[kafka.sasl] mechanism` and `SASL_MECHANISM` are one."""
    return "_".join(path).replace(".", "_").replace("-", "_").lower()


KNOWN = {plainly([name]): name for name in (*KEYS, *OPTIONS)} | {
    plainly([also]): name for name, others in ALSO.items() for also in others
}
BY_PLAIN_NAME = {plainly([name]): name for name in (*REFUSED, JAAS, *STORES)}
# All that may be written, in every spelling: for whoever made a slip.
WRITTEN = frozenset({
    *KEYS, *OPTIONS, *(also for others in ALSO.values() for also in others), JAAS,
    *(name.replace("_", ".") for name in (*OPTIONS, "bootstrap_servers", "group_id", "security_protocol")),
    "sasl.mechanism",
})  # fmt: skip


def ours(path: Iterable[str]) -> str:
    """Our name for what is written at `path` below `[kafka]`; itself, plainly, when there is none."""
    parts = [*path]
    name = plainly(parts[1:] if len(parts) > 1 and parts[0] == "options" else parts)
    return KNOWN.get(name) or name
