"""`[kafka]`: the brokers, how to log in to them, and options of the consumer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr

from analyzer.config.kafka_options import (
    OPTIONS,
    SaslMechanism,
    SecurityProtocol,
    checked_option,
    cure_of_name,
)
from analyzer.config.tables import ConfigTable
from analyzer.config.values import Text, duration_between, known_words
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.kernel.secrets import SecretFile

LOOPBACK = ("localhost", "127.0.0.1", "::1")
Assignment = Literal["group", "all"]

# Options of kafka-python that are keys of [kafka] under another name.
KEY_OF_OPTION = {"session_timeout_ms": "session_timeout"}


def _servers(value: object) -> object:
    servers = value.split(",") if isinstance(value, str) else value
    if not isinstance(servers, (list, tuple)) or not servers:
        raise_fault(
            f"must name at least one broker, not {quote(value)}",
            'write "host:9092", or several in a list: ["host1:9092", "host2:9092"]',
        )
    for server in servers:
        host, _, port = str(server).strip().rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise_fault(
                f"{quote(server)} is not the address of a broker", 'write host and port: "localhost:9092"'
            )
    return tuple(str(server).strip() for server in servers)


def _options(value: object) -> object:
    if not isinstance(value, dict):
        raise_fault(f"must be a table, not {quote(value)}", "write options = { fetch_max_wait_ms = 100 }")
    for name in value:
        if name in KEY_OF_OPTION or name in KafkaTable.model_fields:
            raise_fault(
                f"{quote(name)} is a key of [kafka], not an option",
                f"write {KEY_OF_OPTION.get(name, name)} = ... in [kafka]",
            )
        if name not in OPTIONS:
            raise_fault(
                f"{quote(name)} is not an option of the Kafka client that can be set here",
                cure_of_name(name, sorted(KafkaTable.model_fields)),
            )
    return {name: checked_option(name, setting) for name, setting in value.items()}


class KafkaTable(ConfigTable):
    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(_servers)] = ("localhost:9092",)
    group_id: Text = "gatelock"
    assign: Annotated[Assignment, known_words(Assignment)] = "group"
    # Kafka gives the partitions of a killed analyzer to others after this long.
    session_timeout: Annotated[float, duration_between(1, 1800)] = 6.0
    security_protocol: Annotated[SecurityProtocol, known_words(SecurityProtocol)] = "PLAINTEXT"
    sasl_mechanism: Annotated[SaslMechanism, known_words(SaslMechanism)] | None = None
    sasl_plain_username: Text | None = None
    sasl_plain_password: SecretStr | None = None
    sasl_plain_password_file: SecretFile | None = None
    # A password leaves this machine unencrypted only where the operator asks for it.
    sasl_plain_in_clear: bool = False
    ssl_cafile: Text | None = None
    ssl_certfile: Text | None = None
    ssl_keyfile: Text | None = None
    ssl_password: SecretStr | None = None
    ssl_password_file: SecretFile | None = None
    proxy_url: SecretStr | None = None
    proxy_url_file: SecretFile | None = None
    options: Annotated[dict[str, Any], BeforeValidator(_options)] = Field(default_factory=dict)

    def client(self) -> dict[str, Any]:
        """Arguments of kafka-python's clients: brokers, login and options. Holds secrets unmasked."""
        secrets = {
            "sasl_plain_password": self.sasl_plain_password_file or self.sasl_plain_password,
            "ssl_password": self.ssl_password_file or self.ssl_password,
            "proxy_url": self.proxy_url_file or self.proxy_url,
        }
        plain = {
            name: getattr(self, name)
            for name in (
                "security_protocol", "sasl_mechanism", "sasl_plain_username",
                "ssl_cafile", "ssl_certfile", "ssl_keyfile",
            )
        }  # fmt: skip
        revealed = {name: secret.get_secret_value() for name, secret in secrets.items() if secret is not None}
        login = {name: value for name, value in (plain | revealed).items() if value is not None}
        return {"bootstrap_servers": list(self.bootstrap_servers), **login, **self.options}

    @property
    def is_local(self) -> bool:
        """Whether every broker is on this machine."""
        return all(server.rpartition(":")[0].strip("[]") in LOOPBACK for server in self.bootstrap_servers)
