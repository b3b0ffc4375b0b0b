"""`[kafka]`: the brokers, how to log in to them, and the consumer's options."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr

from analyzer.config.kafka_options.names import MECHANISMS, OPTIONS, PROTOCOLS, WRITTEN
from analyzer.config.secrets import SecretFile
from analyzer.config.tables import ConfigTable
from analyzer.config.values import Text, meant, one_of, quoted, refuse, seconds

LOOPBACK = ("localhost", "127.0.0.1", "::1")

ELSEWHERE = {"session_timeout_ms": "session_timeout"}


def _servers(value: object) -> object:
    each = value.split(",") if isinstance(value, str) else value
    if not isinstance(each, (list, tuple)) or not each:
        refuse(f"{quoted(value)} names no broker", 'write "host:9092", several in a list')
    for server in each:
        host, _, port = str(server).strip().rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65_536:
            refuse(f"{quoted(server)} is no broker's address", 'write host and port: "localhost:9092"')
    return tuple(str(server).strip() for server in each)


def _options(value: object) -> object:
    if not isinstance(value, dict):
        refuse(f"{quoted(value)} is no table", "write options = { fetch_max_wait_ms = 100 }")
    for name, held in value.items():
        if name in ELSEWHERE or name in KafkaTable.model_fields:
            refuse(
                f"{quoted(name)} has a key of its own", f"write {ELSEWHERE.get(name, name)} = ... in [kafka]"
            )
        if name not in OPTIONS:
            slip = meant(name, WRITTEN)
            cure = f"did you mean {quoted(slip)}?" if slip else "docs/kafka.md has those that there are"
            refuse(f"{quoted(name)} is no option of the Kafka client that may be set here", cure)
        if not isinstance(held, (bool, int, float, str)):
            refuse(f"{quoted(name)} holds no plain value", "write text, a number, true or false")
    return value


class KafkaTable(ConfigTable):
    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(_servers)] = ("localhost:9092",)
    group_id: Text = "gatelock"
    assign: Annotated[Literal["group", "all"], one_of("group", "all")] = "group"
    # How long Kafka waits for an analyzer that was killed before another takes over its partitions.
    session_timeout: Annotated[float, seconds(1, 1800)] = 6.0
    security_protocol: Annotated[str, one_of(*PROTOCOLS)] = "PLAINTEXT"
    sasl_mechanism: Annotated[str, one_of(*MECHANISMS)] | None = None
    sasl_plain_username: Text | None = None
    sasl_plain_password: SecretStr | None = None
    sasl_plain_password_file: SecretFile | None = None
    # Sending a password that anybody on the way can read is something to ask for.
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
        """Where the brokers are and how to get in, in kafka-python's words. Holds secrets in the clear."""
        secret = {
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
        found = plain | {name: held.get_secret_value() for name, held in secret.items() if held is not None}
        said = {name: value for name, value in found.items() if value is not None}
        return {"bootstrap_servers": list(self.bootstrap_servers), **said, **self.options}

    @property
    def stays_here(self) -> bool:
        """Whether every broker is on this machine."""
        return all(server.rpartition(":")[0].strip("[]") in LOOPBACK for server in self.bootstrap_servers)
