"""Options under the names of Java's clients, librdkafka and kafka-python give one configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaConsumer

from analyzer.config.diagnostics.faults import ConfigInvalid, OptionFault
from analyzer.config.kafka_options.jaas import parse_login
from analyzer.config.kafka_options.names import (
    ALIASES,
    KEYS,
    OPTIONS,
    OUR_NAMES,
    SPELLINGS,
    UNSUPPORTED,
    normalized,
)
from analyzer.config.settings import Settings
from analyzer.config.tables.kafka import KafkaTable

Read = Callable[[str], Settings]

SECRET = "pa55; w\u00f6rd \"'\\"
JAAS = r"""org.apache.kafka.common.security.scram.ScramLoginModule required
    username="ada"
    password="pa55; wörd \"'\\" ;"""

JAVA = f"""
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
LIBRDKAFKA = f"""
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
KAFKA_PYTHON = f"""
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
EXPECTED = {
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
    """The messages of a configuration with this text; F stands for the file."""
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    messages = [str(fault).replace(fault.file, "F") for fault in raised.value.faults]
    assert not any("pa55" in message or "s3cret" in message for message in messages), messages
    return messages


@pytest.mark.parametrize("text", [JAVA, LIBRDKAFKA, KAFKA_PYTHON], ids=["Java", "librdkafka", "kafka-python"])
def test_the_names_of_each_client_give_one_configuration(read: Read, text: str) -> None:
    kafka = read(text).kafka
    assert kafka.client() == EXPECTED
    assert (kafka.group_id, kafka.session_timeout) == ("g", 10.0)
    assert "pa55" not in repr(kafka)


def test_variables_may_have_these_names_and_override_the_file(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATELOCK_KAFKA__SASL__JAAS__CONFIG", JAAS)
    monkeypatch.setenv("GATELOCK_KAFKA__SSL_CA_LOCATION", "/etc/ca.pem")
    monkeypatch.setenv("GATELOCK_KAFKA__FETCH_MIN_BYTES", "7")
    client = read("""
        [kafka]
        security_protocol = "SASL_SSL"
        sasl.mechanism = "SCRAM-SHA-256"
        sasl.username = "bob"
        sasl_plain_password = "another"
        ssl_cafile = "/etc/another.pem"
    """).kafka.client()
    assert client["sasl_plain_username"] == "ada"
    assert client["sasl_plain_password"] == SECRET
    assert client["ssl_cafile"] == "/etc/ca.pem"
    assert client["fetch_min_bytes"] == 7


def test_a_secret_file_may_hold_a_login_line_of_java(
    read: Read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gatelock_kafka__sasl_jaas_config").write_text(JAAS + "\n")
    monkeypatch.setenv("GATELOCK_SECRETS_DIR", str(tmp_path))
    text = '[kafka]\nsecurity.protocol = "SASL_SSL"\nsasl.mechanism = "SCRAM-SHA-256"'
    assert read(text).kafka.client()["sasl_plain_password"] == SECRET


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[kafka]\nssl_cafile = "/a.pem"\nssl.ca.location = "/b.pem"',
            "F:3: [kafka] ssl.ca.location: differs from ssl_cafile, which is the same option",
        ),
        (
            '[kafka]\nsasl.password = "s3cret"\n[kafka.options]\nsasl_plain_password = "s3cret 2"',
            "F:4: [kafka] options.sasl_plain_password: differs from sasl.password",
        ),
        (
            '[kafka]\nsasl.mechanism = "SCRAM-SHA-256"\nsasl.jaas.config = \'a.b.PlainLoginModule required '
            'username="ada" password="s3cret";\'',
            "F:3: [kafka] sasl.jaas.config: PlainLoginModule does not fit the mechanism in sasl.mechanism",
        ),
        (
            "[kafka]\nsasl.jaas.config = 'a.b.ScramLoginModule required username=ada password=\"s3cret;'",
            "F:2: [kafka] sasl.jaas.config: is not a login line that can be parsed",
        ),
        (
            "[kafka]\nsasl.jaas.config = 'ScramLoginModule required password=\"s3cret\";'",
            "F:2: [kafka] sasl.jaas.config: lacks the user or the password",
        ),
        (
            "[kafka]\nsasl.jaas.config = 'a.Krb5LoginModule required useKeyTab=true;'",
            "F:2: [kafka] sasl.jaas.config: Krb5LoginModule is not available",
        ),
        (
            '[kafka]\n"ssl.truststore.type" = "JKS"',
            "F:2: [kafka] \"ssl.truststore.type\": must be PEM, the only format that is supported",
        ),
        (
            '[kafka]\nssl.truststore.location = "/etc/ca.jks"',
            "F:2: [kafka] ssl.truststore.location: is a Java key store; only PEM files are supported",
        ),
        (
            "[kafka]\nenable.auto.commit = true",
            "F:2: [kafka] enable.auto.commit: cannot be changed",
        ),
        (
            "[kafka]\nenable.ssl.certificate.verification = false",
            "F:2: [kafka] enable.ssl.certificate.verification: is not available",
        ),
        (
            '[kafka]\nssl.ca.loction = "/a.pem"',
            "F:2: [kafka] ssl.ca.loction: is not a known key\n"
            '    did you mean "ssl.ca.location"?',
        ),
        (
            '[kafka.options]\nfetch_max_wait = 7',
            '"fetch_max_wait" is not an option of the Kafka client that can be set here\n'
            '    did you mean "fetch_max_wait_ms"',
        ),
        (
            '[kafka]\nfetch.min.bytes = "many"',
            'F:2: [kafka] fetch.min.bytes: must be a whole number, not "many"',
        ),
        (
            '[kafka]\nsession.timeout.ms = 100',
            'F:2: [kafka] session.timeout.ms: "100ms" is too short',
        ),
        (
            '[kafka]\nsecurity.protocol = "SASL_SLL"',
            'F:2: [kafka] security.protocol: "SASL_SLL" is not one of the known values',
        ),
        ('[kafka]\nbootstrap.servers = "SASL_SSL://a:9093"', "F:2: [kafka] bootstrap.servers: "),
    ],
)  # fmt: skip
def test_a_fault_names_the_option_as_written_and_not_its_value(read: Read, text: str, message: str) -> None:
    found = faults(read, text)
    assert any(message in shown for shown in found), found


def test_a_fault_of_a_variable_names_it(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATELOCK_KAFKA__SASL__PASSWORD", "s3cret")
    monkeypatch.setenv("GATELOCK_KAFKA__SASL_PLAIN_PASSWORD", "s3cret 2")
    monkeypatch.setenv("GATELOCK_KAFKA__SSL__TRUSTSTORE__TYPE", "JKS")
    messages = "\n".join(faults(read, ""))
    assert "which is the same option" in messages
    assert "must be PEM" in messages
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
def test_a_login_line_is_parsed_as_java_does(line: str, password: str | None) -> None:
    if password is None:
        with pytest.raises(OptionFault, match=r"is not a login line|lacks the user"):
            dict(parse_login(line))
    else:
        assert dict(parse_login(line))["sasl_plain_password"] == password


def test_the_tables_of_names_agree_with_the_keys_and_with_kafka_python() -> None:
    assert KafkaTable.model_fields.keys() == KEYS
    assert OPTIONS.keys() <= KafkaConsumer.DEFAULT_CONFIG.keys() | {"ssl_ciphers"}
    assert ALIASES.keys() <= KEYS | OPTIONS.keys()
    every = [normalized([alias]) for aliases in ALIASES.values() for alias in aliases]
    assert len(every) == len(set(every)), "no name stands for two options"
    assert not OUR_NAMES.keys() & {normalized([name]) for name in UNSUPPORTED}
    assert {normalized([name]) for name in SPELLINGS} >= OUR_NAMES.keys()


PAGE = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()


def test_the_page_lists_every_name_and_its_examples_give_one_configuration(read: Read) -> None:
    assert [name for names in ALIASES.values() for name in names if f"`{name}`" not in PAGE] == []
    assert [name for name in ALIASES if f"`{name}`" not in PAGE] == []
    examples = [read(text).kafka.client() for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
    assert len(examples) == 3
    assert examples[0] == examples[1] == examples[2]
