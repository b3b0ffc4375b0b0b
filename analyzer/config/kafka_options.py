"""Options of Kafka's client: the names that `[kafka]` and its `options` take, and other clients' for cures.

Names are kafka-python's. Java's clients and librdkafka write `security.protocol` where it writes
`security_protocol`; a name that only differs in this way needs no entry here.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from analyzer.config.values import suggestion
from analyzer.kernel.refused_values import quote, raise_fault

OptionKind = Literal["whole", "yes-no", "text"]
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"]

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

# By a name in Java's clients or librdkafka: the key to write, for the cure of a fault.
ELSEWHERE = {
    "session.timeout.ms": "session_timeout",
    "metadata.broker.list": "bootstrap_servers",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.jaas.config": "sasl_plain_username and sasl_plain_password",
    "ssl.truststore.location": "ssl_cafile, a PEM file",
    "ssl.ca.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile, a PEM file",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.cipher.suites": "ssl_ciphers",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
    "fetch.wait.max.ms": "fetch_max_wait_ms",
    "fetch.message.max.bytes": "max_partition_fetch_bytes",
    "topic.metadata.refresh.interval.ms": "metadata_max_age_ms",
    "max.in.flight": "max_in_flight_requests_per_connection",
    "socket.receive.buffer.bytes": "receive_buffer_bytes",
    "socket.send.buffer.bytes": "send_buffer_bytes",
    "socket.timeout.ms": "request_timeout_ms",
}
BY_SPELLING = {name.replace(".", "_"): key for name, key in ELSEWHERE.items()}


def cure_of_name(name: str, keys: list[str]) -> str:
    """Returns what to write instead of a name that `[kafka]`, whose keys are `keys`, does not have.

    >>> cure_of_name("security.protocol", ["security_protocol"])
    'write security_protocol'
    >>> cure_of_name("fetch.wait.max.ms", [])
    'write options = { fetch_max_wait_ms = ... }'
    """
    spelling = name.replace(".", "_").replace("-", "_").lower()
    key = BY_SPELLING.get(spelling, spelling)
    if key in OPTIONS:
        return f"write options = {{ {key} = ... }}"
    if key in keys or spelling in BY_SPELLING:
        return f"write {key}"
    return suggestion(name, [*keys, *OPTIONS], f"use one of {', '.join(keys)}, or an option of kafka-python")


def checked_option(name: str, value: Any) -> Any:
    """Returns the value of an option; a text of the environment as what it stands for. Raises a fault."""
    kind = OPTIONS[name]
    if not isinstance(value, bool | int | float | str):
        raise_fault(f"{quote(name)} must be a single value", "write text, a number, true or false")
    if kind == "text" or not isinstance(value, str):
        return value
    text = value.strip().lower()
    if kind == "whole":
        if not re.fullmatch(r"-?\d+", text):
            raise_fault(f"{quote(name)} must be a whole number, not {quote(value)}", "write digits")
        return int(text)
    if text not in ("true", "false"):
        raise_fault(f"{quote(name)} must be true or false, not {quote(value)}", "write true or false")
    return text == "true"
