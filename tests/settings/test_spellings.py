"""Kafka's options in Java's words, librdkafka's and kafka-python's: each means the same here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaConsumer

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.kafka_options.jaas import login
from analyzer.config.kafka_options.names import ALSO, KEYS, KNOWN, OPTIONS, REFUSED, WRITTEN, plainly
from analyzer.config.settings import Settings
from analyzer.config.tables.kafka import KafkaTable

Read = Callable[[str], Settings]

SECRET = "pa55; w\u00f6rd \"'\\"
JAAS = r"""org.apache.kafka.common.security.scram.ScramLoginModule required
    username="ada"
    password="pa55; wörd \"'\\" ;"""

IN_JAVAS_WORDS = f"""
    [kafka]
    bootstrap.servers = "a:9093,b:9093"
    security.protocol = "SASL_SSL"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.jaas.config = '''{JAAS}'''
    ssl.truststore.location = "/etc/ca.pem"
    ssl.truststore.type = "PEM"
    ssl.keystore.location = "/etc/us.pem"
    ssl.keystore.type = "PEM"
    ssl.key.password = "of the key"
    ssl.endpoint.identification.algorithm = ""
    group.id = "g"
    session.timeout.ms = 10000
    fetch.max.wait.ms = "250"
    max.partition.fetch.bytes = "2000000"
"""
IN_LIBRDKAFKAS = f"""
    [kafka]
    "metadata.broker.list" = "a:9093,b:9093"
    "security.protocol" = "sasl_ssl"
    "sasl.mechanisms" = "SCRAM-SHA-512"
    "sasl.username" = "ada"
    "sasl.password" = '''{SECRET}'''
    "ssl.ca.location" = "/etc/ca.pem"
    "ssl.certificate.location" = "/etc/us.pem"
    "ssl.key.password" = "of the key"
    "ssl.endpoint.identification.algorithm" = "none"
    "group.id" = "g"
    "session.timeout.ms" = "10000"
    "fetch.wait.max.ms" = 250
    "fetch.message.max.bytes" = 2000000
"""
IN_KAFKA_PYTHONS = f"""
    [kafka.options]
    bootstrap_servers = ["a:9093", "b:9093"]
    security_protocol = "SASL_SSL"
    sasl_mechanism = "SCRAM-SHA-512"
    sasl_plain_username = "ada"
    sasl_plain_password = '''{SECRET}'''
    ssl_cafile = "/etc/ca.pem"
    ssl_certfile = "/etc/us.pem"
    ssl_password = "of the key"
    ssl_check_hostname = false
    group_id = "g"
    session_timeout_ms = 10000
    fetch_max_wait_ms = 250
    max_partition_fetch_bytes = 2000000
"""
MEANT = {
    "bootstrap_servers": ["a:9093", "b:9093"],
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_plain_username": "ada",
    "sasl_plain_password": SECRET,
    "ssl_cafile": "/etc/ca.pem",
    "ssl_certfile": "/etc/us.pem",
    "ssl_password": "of the key",
    "ssl_check_hostname": False,
    "fetch_max_wait_ms": 250,
    "max_partition_fetch_bytes": 2_000_000,
}


def faults(read: Read, text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as faulty:
        read(text)
    told = [str(fault).replace(fault.file, "F") for fault in faulty.value.faults]
    assert not any("pa55" in each or "s3cret" in each for each in told), told
    return told


@pytest.mark.parametrize("text", [IN_JAVAS_WORDS, IN_LIBRDKAFKAS, IN_KAFKA_PYTHONS], ids=["J", "L", "P"])
def test_whoever_says_it_means_the_same(read: Read, text: str) -> None:
    kafka = read(text).kafka
    assert kafka.client() == MEANT
    assert (kafka.group_id, kafka.session_timeout) == ("g", 10.0)
    assert "pa55" not in repr(kafka)


def test_the_environment_speaks_them_too_and_goes_before_the_file(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATELOCK_KAFKA__SASL__JAAS__CONFIG", JAAS)
    monkeypatch.setenv("GATELOCK_KAFKA__SSL_CA_LOCATION", "/etc/ca.pem")
    monkeypatch.setenv("GATELOCK_KAFKA__FETCH_MIN_BYTES", "7")
    client = read("""
        [kafka]
        security_protocol = "SASL_SSL"
        sasl.mechanism = "SCRAM-SHA-256"
        sasl.username = "somebody"
        sasl_plain_password = "else"
        ssl_cafile = "/etc/another.pem"
    """).kafka.client()
    assert client["sasl_plain_username"] == "ada"
    assert client["sasl_plain_password"] == SECRET
    assert client["ssl_cafile"] == "/etc/ca.pem"
    assert client["fetch_min_bytes"] == 7


def test_a_secret_file_may_hold_a_login_in_javas_words(
    read: Read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gatelock_kafka__sasl_jaas_config").write_text(JAAS + "\n")
    monkeypatch.setenv("GATELOCK_SECRETS_DIR", str(tmp_path))
    text = '[kafka]\nsecurity.protocol = "SASL_SSL"\nsasl.mechanism = "SCRAM-SHA-256"'
    assert read(text).kafka.client()["sasl_plain_password"] == SECRET


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[kafka]\nssl_cafile = "/a.pem"\nssl.ca.location = "/b.pem"',
            "F:3: [kafka] ssl.ca.location: says something else than ssl_cafile, which is the same option",
        ),
        (
            '[kafka]\nsasl.password = "s3cret"\n[kafka.options]\nsasl_plain_password = "s3cret 2"',
            "F:4: [kafka] options.sasl_plain_password: says something else than sasl.password",
        ),
        (
            '[kafka]\nsasl.mechanism = "SCRAM-SHA-256"\nsasl.jaas.config = \'a.b.PlainLoginModule required '
            'username="ada" password="s3cret";\'',
            "F:3: [kafka] sasl.jaas.config: PlainLoginModule is not for the mechanism in sasl.mechanism",
        ),
        (
            "[kafka]\nsasl.jaas.config = 'a.b.ScramLoginModule required username=ada password=\"s3cret;'",
            "F:2: [kafka] sasl.jaas.config: is no login that can be read",
        ),
        (
            "[kafka]\nsasl.jaas.config = 'ScramLoginModule required password=\"s3cret\";'",
            "F:2: [kafka] sasl.jaas.config: names no user, or no password",
        ),
        (
            "[kafka]\nsasl.jaas.config = 'a.Krb5LoginModule required useKeyTab=true;'",
            "F:2: [kafka] sasl.jaas.config: Krb5LoginModule is not available",
        ),
        (
            '[kafka]\n"ssl.truststore.type" = "JKS"',
            "F:2: [kafka] \"ssl.truststore.type\": is not PEM, which is all that is read here",
        ),
        (
            '[kafka]\nssl.truststore.location = "/etc/ca.jks"',
            "F:2: [kafka] ssl.truststore.location: is a store of Java's, and PEM is all that is read here",
        ),
        (
            "[kafka]\nenable.auto.commit = true",
            "F:2: [kafka] enable.auto.commit: is not a matter of choice",
        ),
        (
            "[kafka]\nenable.ssl.certificate.verification = false",
            "F:2: [kafka] enable.ssl.certificate.verification: is not available",
        ),
        (
            '[kafka]\nssl.ca.loction = "/a.pem"',
            "F:2: [kafka] ssl.ca.loction: is not a key that is known here\n"
            '    did you mean "ssl.ca.location"?',
        ),
        (
            '[kafka.options]\nfetch_max_wait = 7',
            '"fetch_max_wait" is no option of the Kafka client that may be set here\n'
            '    did you mean "fetch_max_wait_ms"',
        ),
        (
            '[kafka]\nfetch.min.bytes = "many"',
            'F:2: [kafka] fetch.min.bytes: "many" is no whole number',
        ),
        (
            '[kafka]\nsession.timeout.ms = 100',
            'F:2: [kafka] session.timeout.ms: "100ms" is out of bounds',
        ),
        (
            '[kafka]\nsecurity.protocol = "SASL_SLL"',
            'F:2: [kafka] security.protocol: "SASL_SLL" is not',
        ),
        ('[kafka]\nbootstrap.servers = "SASL_SSL://a:9093"', "F:2: [kafka] bootstrap.servers: "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_where_it_stands_without_its_value(read: Read, text: str, told: str) -> None:
    assert any(told in each for each in faults(read, text)), faults(read, text)


def test_what_the_environment_says_wrongly_is_told_with_its_name(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATELOCK_KAFKA__SASL__PASSWORD", "s3cret")
    monkeypatch.setenv("GATELOCK_KAFKA__SASL_PLAIN_PASSWORD", "s3cret 2")
    monkeypatch.setenv("GATELOCK_KAFKA__SSL__TRUSTSTORE__TYPE", "JKS")
    told = "\n".join(faults(read, ""))
    assert "which is the same option" in told
    assert "is not PEM" in told
    with pytest.raises(ConfigInvalid, match="environment GATELOCK_KAFKA__SSL__TRUSTSTORE__TYPE"):
        read("")


@pytest.mark.parametrize(
    ("line", "password"),
    [
        ('x.PlainLoginModule required username="u" password="p" user_u="p";', "p"),
        ("x.PlainLoginModule required username='u' password='it''s';", None),
        (r'x.PlainLoginModule required username="u" password="a\"b\\c\n\101";', 'a"b\\c\nA'),
        ('  PlainLoginModule  required\n username = u\n password = "p=q;" ;\n', "p=q;"),
        ('PlainLoginModule username="u" password="p";', None),
        ('PlainLoginModule required username="u" password="p"', None),
        ("", None),
    ],
)
def test_a_login_is_read_as_java_reads_it(line: str, password: str | None) -> None:
    if password is None:
        with pytest.raises(Exception, match=r"is no login|names no"):
            dict(login(line))
    else:
        assert dict(login(line))["sasl_plain_password"] == password


def test_the_table_agrees_with_the_keys_and_with_kafka_python() -> None:
    assert KafkaTable.model_fields.keys() == KEYS
    assert OPTIONS.keys() <= KafkaConsumer.DEFAULT_CONFIG.keys() | {"ssl_ciphers"}
    assert ALSO.keys() <= KEYS | OPTIONS.keys()
    every = [plainly([also]) for others in ALSO.values() for also in others]
    assert len(every) == len(set(every)), "no name means two things"
    assert not KNOWN.keys() & {plainly([name]) for name in REFUSED}
    assert {plainly([name]) for name in WRITTEN} >= KNOWN.keys()


PAGE = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()


def test_the_page_has_every_name_and_its_examples_are_one_configuration(read: Read) -> None:
    assert [name for names in ALSO.values() for name in names if f"`{name}`" not in PAGE] == []
    assert [name for name in ALSO if f"`{name}`" not in PAGE] == []
    examples = [read(text).kafka.client() for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
    assert len(examples) == 3
    assert examples[0] == examples[1] == examples[2]
