"""The settings of a file, of the environment and of secret files, and the precedence among them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import ConfigMissing, Settings, find, load
from analyzer.plan.mapping import (
    AddressField,
    Condition,
    Not,
    NumberField,
    ResourceField,
    TextField,
    TimeField,
)
from analyzer.plan.meters import REQUESTS, Meter
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from gatekeeper.identity import NameDigest

Read = Callable[[str], Settings]

SOURCE = """
    [[sources]]
    topic = "access-log"
    [sources.fields]
    api_key = "key"
    status = "status"
"""


# Contents of a file


def test_fields_become_the_mapping_of_the_counter(read: Read) -> None:
    settings = read("""
        [[sources]]
        topic   = "access-log"
        caller  = ["api_key", "user", "address"]
        deny_if = { gate = "denied", status = [429, "500-599"] }
        [sources.fields]
        time     = { path = "ts", unit = "ms" }
        api_key  = "http.api_key"
        user     = ["http", "user.name"]
        address  = { path = "client_ip", prefix6 = 64 }
        resource = { path = "path", routes = ["/v1/items/{id}"], else = "rest" }
        status   = "status"
        gate     = "gate"
        took     = { path = "took", unit = "ms", default = 1.5 }
        cost     = { path = "cost", kind = "decimal", required = true }
        tokens   = "usage.total_tokens"
        [[meters]]
        name = "tokens"
        sum  = "tokens"
        """)
    mapping = settings.mappings()["access-log"]
    assert mapping.time == TimeField(("ts",), "ms")
    assert mapping.caller == ("api_key", "user", "address")
    assert mapping.deny_if == (Condition("gate", ("denied",)), Condition("status", ("429", "500-599")))
    assert mapping.fields == {
        "api_key": TextField(("http", "api_key")),
        "user": TextField(("http", "user.name")),
        "address": AddressField(("client_ip",), 64),
        "resource": ResourceField(("path",), ("/v1/items/{id}",), "rest"),
        "status": TextField(("status",)),
        "gate": TextField(("gate",)),
        "took": NumberField(("took",), "duration", "ms", 1500),
        "cost": NumberField(("cost",), "decimal", "s", None),
        "tokens": NumberField(("usage", "total_tokens"), "whole", "s", 0),
    }


def test_the_parts_of_a_combined_line_are_fields_by_default(read: Read) -> None:
    settings = read("""
        [[sources]]
        file   = "/var/log/nginx/access.log"
        format = "combined"
        [sources.fields]
        resource = { path = "path", routes = ["/v1/items/{id}"] }
        [[meters]]
        name = "bytes"
        sum  = "bytes"
        """)
    mapping = settings.mappings()["access.log"]
    assert mapping.format == "combined"
    assert mapping.time == TimeField(("time",), "clf")
    assert mapping.caller == ("address",), "servers write what a client says where the user is"
    assert mapping.fields["address"] == AddressField(("address",), 64)
    assert mapping.fields["resource"] == ResourceField(("path",), ("/v1/items/{id}",))
    assert mapping.fields["bytes"] == NumberField(("bytes",))
    assert mapping.fields["status"] == TextField(("status",))


def test_a_meter_may_add_up_a_field_that_a_combined_line_lacks(read: Read) -> None:
    settings = read("""
        [[sources]]
        topic = "calls"
        [sources.fields]
        user   = "user"
        tokens = "tokens"
        [[sources]]
        file   = "access.log"
        format = "combined"
        [[meters]]
        name = "tokens"
        sum  = "tokens"
        """)
    assert "tokens" not in settings.mappings()["access.log"].fields


def test_meters_policies_and_groupings_become_the_plan(read: Read) -> None:
    settings = read("""
        [[sources]]
        topic     = "access-log"
        groupings = ["caller+resource"]
        [sources.fields]
        user     = "user"
        status   = "status"
        took     = { path = "took", unit = "s" }
        resource = { path = "path" }
        [[meters]]
        name  = "errors"
        count = true
        where = { status = "500-599" }
        [[meters]]
        name  = "odd-users"
        count = true
        where = { user = { not = ["ann", "bob"] }, status = "200" }
        [[meters]]
        name = "slowest"
        max  = "took"
        [[policies]]
        name     = "daily"
        meter    = "errors"
        limit    = 1_000
        window   = { per = "month", zone = "Europe/Berlin" }
        status   = 503
        on_stale = "allow"
        """)
    plan = settings.plan()
    assert plan.groupings == ("caller", "caller+resource")
    assert plan.meters == (
        Meter("errors", where=(Condition("status", ("500-599",)),)),
        Meter(
            "odd-users",
            where=(Condition("status", ("200",)), Condition("user", Not(("ann", "bob")))),
        ),
        REQUESTS,
        Meter("slowest", "took", "max"),
    )
    assert plan.policies == (
        Quota(
            "daily", 1000, Calendar("month", "Europe/Berlin"), meter="errors", status=503, on_stale="allow"
        ),
    )


def test_without_a_file_everything_has_a_default() -> None:
    settings = load(None)
    assert settings.database.address == "sqlite:///gatelock.db"
    assert settings.kafka.client() == {
        "bootstrap_servers": ["localhost:9092"],
        "security_protocol": "PLAINTEXT",
    }
    assert settings.analyzer.flush_every == 0.1
    assert settings.analyzer.listen == ("127.0.0.1", 8321)
    assert settings.plan().groupings == ("caller",)


# Precedence


def test_variables_override_secret_files_which_override_the_file(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gatelock_kafka__group_id").write_text("from a secret file\n")
    (tmp_path / "GATELOCK_KAFKA__ASSIGN").write_text("all")
    (tmp_path / "other").write_bytes(b"\xff: without the prefix, so it is not opened")
    monkeypatch.setenv("GATELOCK_KAFKA__ASSIGN", "group")
    settings = read("""
        [kafka]
        group_id        = "from the file"
        assign          = "all"
        session_timeout = "30s"
        """)
    assert settings.kafka.group_id == "from a secret file"
    assert settings.kafka.assign == "group"
    assert settings.kafka.session_timeout == 30


def test_text_in_the_environment_is_converted_to_the_type_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATELOCK_ANALYZER__FLUSH_EVERY", "0.5")
    monkeypatch.setenv("GATELOCK_KAFKA__BOOTSTRAP_SERVERS", "a:9092,b:9092")
    monkeypatch.setenv("GATELOCK_KAFKA__OPTIONS", '{"fetch_max_wait_ms": 100}')
    monkeypatch.setenv("GATELOCK_KAFKA__SASL_PLAIN_IN_CLEAR", "true")
    monkeypatch.setenv("GATELOCK_SOURCES", '[{"topic": "t", "fields": {"user": "user"}}]')
    monkeypatch.setenv("GATELOCK_POLICIES", '[{"name": "daily", "limit": "1_000", "window": {"per": "day"}}]')
    settings = load(None)
    assert settings.analyzer.flush_every == 0.5
    assert settings.kafka.bootstrap_servers == ("a:9092", "b:9092")
    assert settings.kafka.options == {"fetch_max_wait_ms": 100}
    assert settings.kafka.sasl_plain_in_clear
    assert settings.mappings()["t"].caller == ("user",)
    assert settings.plan().policies[0].limit == 1000


def test_a_password_of_digits_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATELOCK_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("GATELOCK_KAFKA__SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("GATELOCK_KAFKA__SASL_PLAIN_USERNAME", "ada")
    monkeypatch.setenv("GATELOCK_KAFKA__SASL_PLAIN_PASSWORD", "1e5")
    assert load(None).kafka.client()["sasl_plain_password"] == "1e5"


def test_a_fault_names_the_variable_or_secret_file_that_caused_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATELOCK_KAFKA__GROUPID", "x")
    monkeypatch.setenv("GATELOCK_KAFAK__GROUP_ID", "x")
    monkeypatch.setenv("GATELOCK_SOURCES", "access-log")
    monkeypatch.setenv("GATELOCK_TEST", "a variable of another program")
    (tmp_path / "gatelock_database__url").write_text("mysql://ada:s3cret@db/x")
    with pytest.raises(ConfigInvalid) as raised:
        load(None)
    assert str(raised.value).splitlines()[::2] == [
        "environment GATELOCK_KAFAK__GROUP_ID: [kafak] group_id: is not a known key",
        f'secret file {tmp_path}/gatelock_database__url: [database] url: "mysql" is not a database'
        " that this version supports",
        "environment GATELOCK_KAFKA__GROUPID: [kafka] groupid: is not a known key",
        "environment GATELOCK_SOURCES: sources: must be a list of tables",
    ]


def test_a_key_that_is_an_argument_of_pydantic_is_unknown(read: Read) -> None:
    with pytest.raises(ConfigInvalid, match="_env_file: is not a known key"):
        read('_env_file = "/etc/passwd"')


# Secrets


def test_secrets_are_read_from_files_and_never_shown(
    read: Read, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "url").write_text("postgresql+psycopg://ada:s3cret/@db/gatelock\n")
    (tmp_path / "password").write_text("s3cret")
    settings = read(f"""
        [database]
        url_file = "{tmp_path}/url"
        [kafka]
        security_protocol = "SASL_SSL"
        sasl_mechanism    = "SCRAM-SHA-512"
        sasl_plain_username = "ada"
        sasl_plain_password_file = "{tmp_path}/password"
        ssl_password = "s3cret"
        """)
    assert settings.database.address == "postgresql+psycopg://ada:s3cret/@db/gatelock"
    assert settings.kafka.client()["sasl_plain_password"] == "s3cret"
    assert settings.kafka.client()["ssl_password"] == "s3cret"
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("analyzer").warning("%r %s", settings, settings)
    shown = [caplog.text, settings.database.shown, settings.model_dump_json(), str(settings.model_dump())]
    assert not any("s3cret" in text for text in shown)


@pytest.mark.parametrize(
    ("content", "what"), [(None, "No such file"), (b"", "is empty"), (b"\xff", "is not UTF-8")]
)
def test_a_secret_file_without_a_secret_is_a_fault(
    read: Read, tmp_path: Path, content: bytes | None, what: str
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(ConfigInvalid, match=what):
        read(f'[kafka]\nssl_password_file = "{tmp_path}/secret"')


def test_a_missing_folder_of_secrets_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATELOCK_SECRETS_DIR", "/nowhere")
    with pytest.raises(ConfigInvalid, match="/nowhere"):
        load(None)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("mysql://ada:s3cret@db/x", "mysql"),
        ("postgresql://ada:s3cret@db/x", "does not name the driver"),
        ("sqlite://", "keeps nothing"),
        ("sqlite:///:memory:", "keeps nothing"),
        ("postgresql+psycopg://ada:s3cret@db:port/x", "the port"),
        ("postgresql+psycopg://ada:s3cret@second@db/x", "has an @ that is not encoded"),
        ("gatelock.db", "must be a database URL"),
    ],
)
def test_an_invalid_database_url_is_a_fault_that_does_not_repeat_it(read: Read, url: str, what: str) -> None:
    with pytest.raises(ConfigInvalid, match=what) as raised:
        read(f'[database]\nurl = "{url}"')
    assert "s3cret" not in str(raised.value)
    assert "s3cret" not in repr(raised.value)


# Choice of the file


def test_a_named_file_precedes_those_in_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(None) is None
    Path("gatelock.toml").touch()
    assert find(None) == Path("gatelock.toml")
    named = tmp_path / "named.toml"
    named.touch()
    monkeypatch.setenv("GATELOCK_CONFIG", str(named))
    assert find(None) == named
    given = tmp_path / "given.toml"
    given.touch()
    assert find(given) == given


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("gatelock.toml").touch()
    with pytest.raises(ConfigMissing, match=r"given\.toml"):
        find(tmp_path / "given.toml")
    monkeypatch.setenv("GATELOCK_CONFIG", "/nowhere/gatelock.toml")
    with pytest.raises(ConfigMissing, match="/nowhere"):
        find(None)


def test_settings_cannot_be_changed(read: Read) -> None:
    settings = read(SOURCE)
    with pytest.raises(ValueError, match="frozen"):
        settings.kafka.group_id = "another"  # type: ignore[misc]  # that is the test
    assert pickle.loads(pickle.dumps(settings.mappings())) == settings.mappings()  # noqa: S301 - our own values


KEYED = """
    [[sources]]
    topic = "access-log"
    [sources.fields]
    time = { path = "ts", unit = "ms" }
    api_key = { path = "key", digest = "sha256" }
"""


def test_the_secret_of_digests_comes_from_a_file_or_the_environment_and_is_never_shown(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "kept in a secret file"
    (tmp_path / "secret").write_text(f"{secret}\n")
    by_file = read(f'[analyzer]\ndigest_secret_file = "{tmp_path}/secret"\n{KEYED}')
    monkeypatch.setenv("GATELOCK_ANALYZER__DIGEST_SECRET", secret)
    by_environment = read(KEYED)
    for settings in (by_file, by_environment):
        mapping = settings.mappings()["access-log"]
        assert mapping.fields["api_key"] == TextField(("key",), NameDigest(secret).fingerprint)
        assert secret not in repr(settings) + str(settings) + repr(mapping)


@pytest.mark.parametrize(
    ("analyzer", "text", "sentence"),
    [
        ("", KEYED, "api_key.digest: needs a secret"),
        ('digest_secret = "too short"', KEYED, "digest_secret: is shorter than 16 bytes"),
        (f'digest_secret = "{"s" * 16}"', KEYED.replace('"sha256"', '"md5"'), '"md5" is not one of'),
        (
            f'digest_secret = "{"s" * 16}"',
            KEYED.replace('digest = "sha256"', 'kind = "whole", digest = "sha256"'),
            "api_key.digest: applies to text only",
        ),
    ],
)
def test_a_digest_that_cannot_be_made_is_a_fault(read: Read, analyzer: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        read(f"[analyzer]\n{analyzer}\n{text}")
    assert sentence in str(raised.value)
    assert "too short" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://ada:s3 cret@db/gl", "postgresql+psycopg://ada:***@db/gl"),
        ("postgresql+psycopg://ada:s3%40cret@db/gl", "postgresql+psycopg://ada:***@db/gl"),
        ("postgresql+psycopg://db/gl?sslpassword=s3 cret", "postgresql+psycopg://db/gl?sslpassword=***"),
    ],
)
def test_a_password_is_never_shown(read: Read, url: str, shown: str) -> None:
    assert read(f'[database]\nurl = "{url}"').database.shown == shown
