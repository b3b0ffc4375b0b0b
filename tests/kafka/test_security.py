"""A broker with authentication: each way to log in with the least rights, and the report of each mistake."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from analyzer.config.settings import load
from analyzer.kernel.model import PartitionRevoked
from analyzer.sources.kafka import KafkaRecords
from tests.support.kafka_log import lines, open_source, produce, read_and_check
from tests.support.servers.secured import PASSWORD, USER, SecuredKafka
from tests.support.source_reader import MemoryPositionStore, SourceReader

REPORT_S_MAX = 10.0
Options = dict[str, Any]
Way = Callable[[SecuredKafka], Options]


def file(broker: SecuredKafka, name: str) -> str:
    return str(broker.folder / name)


def scram(broker: SecuredKafka, **more: str) -> Options:
    return {
        "bootstrap_servers": broker.listeners["SASLPLAIN"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        **more,
    }


def over_tls(broker: SecuredKafka, **more: str) -> Options:
    tls = {"security_protocol": "SASL_SSL", "ssl_cafile": str(broker.authority.file)}
    return scram(broker, **{"bootstrap_servers": broker.listeners["SASLTLS"], **tls, **more})


def by_certificate(broker: SecuredKafka, **more: str) -> Options:
    return {
        "bootstrap_servers": broker.listeners["TLS"],
        "security_protocol": "SSL",
        "ssl_cafile": str(broker.authority.file),
        "ssl_certfile": file(broker, "client.crt"),
        "ssl_keyfile": file(broker, "client.key"),
        **more,
    }


def without(options: Options, *names: str) -> Options:
    return {name: value for name, value in options.items() if name not in names}


def configured(broker: SecuredKafka, text: str) -> Options:
    """Returns the options of a configuration file."""
    config = broker.folder / "gatelock.toml"
    config.write_text(text)
    return load(config).kafka.client()


def of_a_file(broker: SecuredKafka) -> Options:
    return configured(
        broker,
        f"""
        [kafka]
        bootstrap_servers = ["{broker.listeners["SASLTLS"]}"]
        security_protocol = "SASL_SSL"
        sasl_mechanism = "SCRAM-SHA-512"
        sasl_plain_username = "{USER}"
        sasl_plain_password = "{PASSWORD}"
        ssl_cafile = "{broker.authority.file}"
        """,
    )


WAYS: dict[str, tuple[str, Way]] = {
    "SCRAM-SHA-256": (USER, scram),
    "SCRAM-SHA-512": (USER, lambda broker: scram(broker, sasl_mechanism="SCRAM-SHA-512")),
    "PLAIN": (
        "plain",
        lambda broker: scram(
            broker,
            sasl_mechanism="PLAIN",
            sasl_plain_username="plain",
            sasl_plain_password="plain-secret",
        ),
    ),
    "SASL_SSL": (USER, over_tls),
    "mTLS": ("CN=client", by_certificate),
    "SASL_SSL, of a file": (USER, of_a_file),
    "mTLS, a key with a password": (
        "CN=locked",
        lambda broker: by_certificate(
            broker,
            ssl_certfile=file(broker, "locked.crt"),
            ssl_keyfile=file(broker, "locked.key"),
            ssl_password="key-secret",
        ),
    ),
    "mTLS, key and certificate in one file": (
        "CN=client",
        lambda broker: without(
            by_certificate(broker, ssl_certfile=file(broker, "client.pem")), "ssl_keyfile"
        ),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_login_needs_only_read_on_topic_and_group(secured: SecuredKafka, way: str) -> None:
    user, options = WAYS[way]
    topic = secured.create_topic()
    produce(secured, topic, lines(40))
    secured.allow(user, topic=topic)
    secured.allow(user, group=topic)
    store = MemoryPositionStore()
    source = open_source(secured, store, topic, group_id=topic, options=options(secured))
    reader = SourceReader(source, store, {})
    read_and_check([reader], lines(40))
    assert source.problems() == {}
    source.close()


def problem_of(source: KafkaRecords) -> tuple[str, str]:
    """Returns the first problem that the source reports."""
    began_s = time.monotonic()
    while not (problems := source.problems()):
        assert time.monotonic() - began_s < REPORT_S_MAX
        assert all(isinstance(taken, PartitionRevoked) for taken in source.take(0.05))
    source.close()
    assert time.monotonic() - began_s < REPORT_S_MAX
    ((name, sentence),) = problems.items()
    for secret in (PASSWORD, "plain-secret", "key-secret", "wrong-secret"):
        assert secret not in sentence
    return name, sentence


# What is wrong: the options, the name of the problem, and words of its sentence.
MISTAKES: dict[str, tuple[Way, str, list[str]]] = {
    "wrong password": (
        lambda broker: scram(broker, sasl_plain_password="wrong-secret"),
        "kafka-login",
        ["analyzer", "sasl_plain_password"],
    ),
    "wrong password over TLS": (
        lambda broker: over_tls(broker, sasl_plain_password="wrong-secret"),
        "kafka-login",
        ["analyzer", "sasl_plain_password"],
    ),
    "wrong password of PLAIN": (
        lambda broker: scram(broker, sasl_mechanism="PLAIN", sasl_plain_username="plain"),
        "kafka-login",
        ["plain", "sasl_plain_password"],
    ),
    "no login where one is wanted": (
        lambda broker: {"bootstrap_servers": broker.listeners["SASLPLAIN"]},
        "kafka-login",
        ["security_protocol (PLAINTEXT)"],
    ),
    "a login where none is wanted": (
        lambda broker: scram(broker, bootstrap_servers=broker.bootstrap),
        "kafka-login",
        ["takes no login", "security_protocol"],
    ),
    "wrong CA": (
        lambda broker: over_tls(broker, ssl_cafile=file(broker, "other-authority.pem")),
        "kafka-tls",
        ["ssl_cafile", "other-authority.pem", "not signed by an authority in"],
    ),
    "no CA": (
        lambda broker: without(over_tls(broker), "ssl_cafile"),
        "kafka-tls",
        ["ssl_cafile", "not set"],
    ),
    "no such CA file": (
        lambda broker: over_tls(broker, ssl_cafile="/nowhere/ca.pem"),
        "kafka-tls",
        ["ssl_cafile: /nowhere/ca.pem cannot be read: No such file"],
    ),
    "a CA file of another format": (
        lambda broker: over_tls(broker, ssl_cafile=file(broker, "server.properties")),
        "kafka-tls",
        ["ssl_cafile: ", "must be a PEM file"],
    ),
    "no TLS where it is wanted": (
        lambda broker: {"bootstrap_servers": broker.listeners["TLS"]},
        "kafka-tls|kafka-login",  # the answer of the broker is sometimes lost
        ["TLS", "security_protocol"],
    ),
    "TLS where none is wanted": (
        lambda broker: by_certificate(broker, bootstrap_servers=broker.bootstrap),
        "kafka-tls",
        ["does not use TLS", "security_protocol (SSL)"],
    ),
    "no certificate": (
        lambda broker: without(by_certificate(broker), "ssl_certfile", "ssl_keyfile"),
        "kafka-tls",
        ["ssl_certfile is not set"],
    ),
    "a certificate of another authority": (
        lambda broker: by_certificate(
            broker, ssl_certfile=file(broker, "impostor.crt"), ssl_keyfile=file(broker, "impostor.key")
        ),
        "kafka-tls",
        ["ssl_certfile", "does not accept our certificate"],
    ),
    "a key of another certificate": (
        lambda broker: by_certificate(broker, ssl_keyfile=file(broker, "impostor.key")),
        "kafka-tls",
        ["ssl_keyfile", "ssl_certfile"],
    ),
    "wrong password of the key": (
        lambda broker: by_certificate(
            broker,
            ssl_certfile=file(broker, "locked.crt"),
            ssl_keyfile=file(broker, "locked.key"),
            ssl_password="wrong-secret",
        ),
        "kafka-tls",
        ["ssl_password"],
    ),
    "an unknown host name": (
        lambda broker: {"bootstrap_servers": "unknown.invalid:9092"},
        "kafka",
        ["bootstrap_servers"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_in_time_with_the_option_to_change(secured: SecuredKafka, mistake: str) -> None:
    options, name, words = MISTAKES[mistake]
    limits = {"bootstrap_timeout_ms": 1_200}
    source = open_source(secured, MemoryPositionStore(), "t", options=options(secured) | limits)
    found, sentence = problem_of(source)
    assert found in name.split("|"), sentence
    assert [word for word in words if word not in sentence] == [], sentence


@pytest.mark.parametrize("assign", ["all", "group"])
def test_a_missing_permission_is_reported_in_time(secured: SecuredKafka, assign: str) -> None:
    topic = secured.create_topic()
    produce(secured, topic, lines(4))
    for group, words in ((f"{topic}-a", f"the user guest may not read {topic}"), (f"{topic}-b", "group")):
        source = open_source(
            secured,
            MemoryPositionStore(),
            topic,
            group_id=group,
            assign=assign,
            options=scram(secured, sasl_plain_username="guest"),
        )
        name, sentence = problem_of(source)
        assert name == "kafka-permission"
        assert words in sentence
        if assign == "all":
            return  # it uses the group only to commit offsets for lag monitors
        secured.allow("guest", topic=topic)


def test_the_right_to_describe_a_topic_is_not_enough(secured: SecuredKafka) -> None:
    topic = secured.create_topic()
    produce(secured, topic, lines(4))
    secured.allow("guest", topic=topic, operation="DESCRIBE")
    options = scram(secured, sasl_plain_username="guest")
    name, sentence = problem_of(open_source(secured, MemoryPositionStore(), topic, options=options))
    assert (name, f"may not read {topic}" in sentence) == ("kafka-permission", True)
