"""`[kafka]` has kafka-python's names; a fault of another client's name says which one to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaConsumer

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.kafka_options import ELSEWHERE, OPTIONS
from analyzer.config.settings import Settings
from analyzer.config.tables.kafka import KafkaTable

Read = Callable[[str], Settings]

PAGE = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()
SECRET = "pa55; w\u00f6rd \"'\\"
TEXT = f"""
    [kafka]
    bootstrap_servers = ["a:9093", "b:9093"]
    group_id = "g"
    session_timeout = "10s"
    security_protocol = "SASL_SSL"
    sasl_mechanism = "SCRAM-SHA-512"
    sasl_plain_username = "ada"
    sasl_plain_password = '''{SECRET}'''
    ssl_cafile = "/etc/ca.pem"
    options = {{ ssl_check_hostname = false, fetch_max_wait_ms = 250 }}
"""


def test_the_client_has_the_keys_and_the_options(read: Read) -> None:
    kafka = read(TEXT).kafka
    assert kafka.client() == {
        "bootstrap_servers": ["a:9093", "b:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ada",
        "sasl_plain_password": SECRET,
        "ssl_cafile": "/etc/ca.pem",
        "ssl_check_hostname": False,
        "fetch_max_wait_ms": 250,
    }
    assert (kafka.group_id, kafka.session_timeout) == ("g", 10.0)
    assert "pa55" not in repr(kafka)


def test_variables_override_the_file_and_have_numbers_as_text(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATELOCK_KAFKA__SSL_CAFILE", "/etc/other.pem")
    monkeypatch.setenv("GATELOCK_KAFKA__OPTIONS__FETCH_MIN_BYTES", "7")
    monkeypatch.setenv("GATELOCK_KAFKA__OPTIONS__SSL_CHECK_HOSTNAME", "TRUE")
    client = read(TEXT).kafka.client()
    assert (client["ssl_cafile"], client["fetch_min_bytes"]) == ("/etc/other.pem", 7)
    assert client["ssl_check_hostname"] is True


def test_a_password_may_be_in_a_secret_file(
    read: Read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gatelock_kafka__sasl_plain_password").write_text(SECRET + "\n")
    monkeypatch.setenv("GATELOCK_SECRETS_DIR", str(tmp_path))
    without = "\n".join(line for line in TEXT.splitlines() if "password" not in line)
    for text in (TEXT.replace(SECRET, "other"), without):
        assert read(text).kafka.client()["sasl_plain_password"] == SECRET


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocol = 1", "F:2: [kafka] security: is not a known key\n    write security_protocol"),
        ('"sasl.mechanism" = 1', "is not a known key\n    write sasl_mechanism"),
        ('sasl.jaas.config = "s3cret"', "\n    write sasl_plain_username and sasl_plain_password"),
        ("fetch.wait.max.ms = 1", "\n    write options = { fetch_max_wait_ms = ... }"),
        ("fetch_max_wait_ms = 1", "\n    write options = { fetch_max_wait_ms = ... }"),
        ("group_idd = 1", '\n    did you mean "group_id"?'),
        ("colour = 1", "\n    use one of assign, bootstrap_servers, "),
        (
            "options = { fetch_max_wait = 7 }",
            '"fetch_max_wait" is not an option of the Kafka client that can be set here\n'
            '    did you mean "fetch_max_wait_ms"',
        ),
        (
            "options = { group_id = 'g' }",
            '"group_id" is a key of [kafka], not an option\n    write group_id = ...',
        ),
        ("options = { enable_auto_commit = true }", "is not an option of the Kafka client"),
        ("options = { fetch_min_bytes = 'many' }", 'must be a whole number, not "many"'),
        ("options = { ssl_check_hostname = 'no' }", 'must be true or false, not "no"'),
        ("options = { client_id = [] }", "must be a single value"),
        ("session_timeout = '100ms'", '"100ms" is too short'),
        ("security_protocol = 'SASL_SLL'", '"SASL_SLL" is not one of the known values'),
        ("bootstrap_servers = 'SASL_SSL://a:9093'", "F:2: [kafka] bootstrap_servers: "),
    ],
)
def test_a_fault_says_what_to_write_and_no_secret(read: Read, text: str, message: str) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        read(f"[kafka]\n{text}")
    messages = [str(fault).replace(fault.file, "F") for fault in raised.value.faults]
    assert any(message in shown for shown in messages), messages
    assert not any("s3cret" in shown for shown in messages)


def test_the_names_are_those_of_kafka_python_and_each_cure_is_one_of_them() -> None:
    keys = KafkaTable.model_fields.keys()
    assert OPTIONS.keys() <= KafkaConsumer.DEFAULT_CONFIG.keys() | {"ssl_ciphers"}
    assert not OPTIONS.keys() & keys
    for name, key in ELSEWHERE.items():
        assert set(re.findall(r"[a-z]+(?:_[a-z]+)+", key)) <= keys | OPTIONS.keys(), name


def test_the_page_has_each_name_and_its_example_is_read(read: Read) -> None:
    assert [name for name in ELSEWHERE if f"`{name}`" not in PAGE] == []
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for text in examples:
        read(text)
