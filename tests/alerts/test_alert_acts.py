"""The commands about alerts, with a real receiver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.config.alert_destinations import AlertDestinations
from analyzer.config.settings import Settings, load
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.outbox_tables import alert_contacts, alert_messages
from analyzer.kernel.tables.schema import callers
from tests.alerts.conftest import deliverer, lock_event, make_due, put
from tests.support.alert_receiver import ACCEPT, REFUSE, AlertReceiver, receiving
from tests.support.command_line import run_command

SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
Gatelock = Callable[..., Any]


@pytest.fixture
def receiver() -> Iterator[AlertReceiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def file(receiver: AlertReceiver, migrated_url: str, tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    file = tmp_path / "gatelock.toml"
    file.write_text(
        f"""
[database]
url = "{migrated_url}"
[alerting]
allow_networks = ["127.0.0.0/8"]
allow_http = ["{receiver.host}"]
pages = "https://gatelock.example.com"
[[alerts]]
name = "ops"
webhook = "{receiver.url}"
secret_file = "{tmp_path / "secret"}"
group_wait = 0
[[alerts]]
name = "chat"
slack = "{receiver.url}"
kinds = ["signal.*"]
"""
    )
    return file


@pytest.fixture
def gatelock(file: Path) -> Gatelock:
    def call(*words: str) -> Any:
        return run_command([*words, "--config", str(file)])

    return call


@pytest.fixture
def settings(file: Path) -> Settings:
    return load(file)


def rows(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.stdout.splitlines()]


def send_all(engine: sa.Engine, settings: Settings) -> None:
    made = AlertDestinations.of(settings, engine)
    sender = deliverer(engine, *made.configured(), of_contact=made.of_contact)
    while sender.step():
        pass
    make_due(engine, "gathering")
    while sender.step():
        pass


def test_a_test_message_is_sent_and_its_answer_printed(
    gatelock: Gatelock, receiver: AlertReceiver, engine: sa.Engine
) -> None:
    answer = gatelock("alerts", "test", "ops")
    assert answer.exit_code == 0, answer.output
    assert answer.stdout == f"webhook http://{receiver.host}:{receiver.port}/...: accepted: ok\n"
    [request] = receiver.requests
    assert json.loads(request.body)["type"] == "gatelock.test"
    assert [entry.about for entry in entries(engine)] == ["ops: accepted"]
    receiver.answer_next(REFUSE)
    answer = gatelock("alerts", "test", "ops")
    assert (answer.exit_code, "not accepted: 500 lies" in answer.stdout) == (1, True)
    assert gatelock("alerts", "test", "opps").exit_code == 2


def test_destinations_are_listed_without_their_secrets(gatelock: Gatelock, file: Path) -> None:
    answer = gatelock("alerts", "list")
    assert answer.exit_code == 0, answer.output
    assert "ops" in answer.stdout
    assert "secret" not in answer.stdout.replace(str(file.parent), "")


def test_a_dead_message_is_listed_and_sent_again(
    gatelock: Gatelock, receiver: AlertReceiver, engine: sa.Engine, settings: Settings
) -> None:
    receiver.answer_next(REFUSE)
    put(engine, lock_event(1))
    send_all(engine, settings)
    with writing(engine) as db:
        db.execute(sa.update(alert_messages).values(begun_ms=alert_messages.c.begun_ms - 86_400_001))
    make_due(engine)
    send_all(engine, settings)
    listed = gatelock("alerts", "list", "--json")
    assert listed.exit_code == 1
    assert [row["dead"] for row in rows(listed)] == [1, 0]
    [message] = rows(gatelock("alerts", "list", "--messages", "--state", "dead", "--json"))
    assert message["answer"] == "500 lies"
    assert message["title"] == "api_key:acct-1 is locked by daily: 100 counted"
    receiver.answer_next(ACCEPT)
    assert gatelock("alerts", "resend", "--to", "ops", "--reason", "repaired").exit_code == 0
    send_all(engine, settings)
    assert {request.headers["webhook-id"] for request in receiver.requests} == {message["id"]}
    assert rows(gatelock("alerts", "list", "--messages", "--json"))[0]["state"] == "sent"
    assert gatelock("alerts", "resend", message["id"], "--reason", "again").exit_code == 0
    assert gatelock("alerts", "resend", "--dead", "--reason", "again").exit_code == 1
    assert gatelock("alerts", "resend", "--dead", "--to", "ops", "--reason", "x").exit_code == 2
    assert [entry.act for entry in entries(engine)] == ["alerts resend"] * 2


def test_a_customer_gets_messages_about_its_callers_alone(
    gatelock: Gatelock, receiver: AlertReceiver, engine: sa.Engine, settings: Settings
) -> None:
    with writing(engine) as db:
        for number in (1, 2):
            facts = {"plan": "", "zone": "", "anchor": "", "version": 1}
            tenant = {"caller": f"api_key:acct-{number}", "tenant": "acme"}
            db.execute(sa.insert(callers).values(facts | tenant))
    url = receiver.url.replace("hook", "customer")
    made = gatelock("alerts", "contact", "--tenant", "acme", "--webhook", url, "--reason", "asked", "--json")
    assert made.exit_code == 0, made.output
    [contact] = rows(made)
    assert contact["secret"].startswith("whsec_")
    assert "secret=" not in str(gatelock("alerts", "list").stdout)
    victim = "api_key:victim has 80 % of /v1/search"
    put(
        engine,
        lock_event(1),
        lock_event(3),
        lock_event(
            2,
            what=f"api_key:acct-2 is locked by fair: {victim}",
            customer_what="api_key:acct-2 is locked by fair",
            details={"scope": "caller", "kind": "share", "detail": victim},
        ),
    )
    send_all(engine, settings)
    [request] = [request for request in receiver.requests if "customer" in request.target]
    text = request.body.decode()
    assert json.loads(text)["count"] == 2
    assert "acct-1" in text
    assert "acct-2" in text
    assert "acct-3" not in text
    assert "victim" not in text
    assert "gatelock locks" not in text
    assert gatelock("alerts", "remove", contact["id"], "--reason", "left").exit_code == 0
    assert gatelock("alerts", "remove", contact["id"], "--reason", "left").exit_code == 1
    with writing(engine) as db:
        assert db.execute(sa.select(alert_contacts)).all() == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["api_key:acme"], "give CALLER or --tenant"),
        (["api_key:acme", "--email", "it@acme.example"], "no server takes mail"),
        (["api_key:acme", "--webhook", "http://169.254.169.254/"], "not encrypted"),
        (["api_key:acme", "--webhook", "https://u:p@x.example/"], "without a user"),
        (["api_key:acme", "--email", "a@b.c", "--webhook", "https://x.example/"], "give CALLER"),
    ],
)
def test_a_contact_that_nothing_can_be_sent_to_is_refused(
    gatelock: Gatelock, words: list[str], why: str
) -> None:
    answer = gatelock("alerts", "contact", *words, "--reason", "x")
    assert answer.exit_code == 2
    assert why in answer.stderr


def test_a_contact_at_a_private_address_gets_nothing(
    gatelock: Gatelock, engine: sa.Engine, file: Path
) -> None:
    file.write_text(file.read_text().replace('allow_networks = ["127.0.0.0/8"]', ""))
    made = gatelock(
        "alerts", "contact", "api_key:acct-1", "--webhook", "https://localhost:1/x", "--reason", "x", "--json"
    )
    [contact] = rows(made)
    answer = gatelock("alerts", "test", f"contact {contact['id']}")
    assert answer.exit_code == 1
    assert "which is not public" in answer.stdout


def test_a_contact_that_the_configuration_cannot_serve_keeps_no_other_message_back(
    gatelock: Gatelock, receiver: AlertReceiver, engine: sa.Engine, file: Path
) -> None:
    with writing(engine) as db:
        subject = {"subject_kind": "caller", "subject": "api_key:acct-1", "who": "", "reason": "", "at_ms": 1}
        for number, way in enumerate(("email", "webhook")):
            address = {"id": f"0000000{number}", "way": way, "sent_to": "http://x.example/", "secret": "none"}
            db.execute(sa.insert(alert_contacts).values(subject | address))
    put(engine, lock_event(1))
    send_all(engine, load(file))
    assert [json.loads(request.body)["type"] for request in receiver.requests] == ["gatelock.lock.set"]
    listed = rows(gatelock("alerts", "list", "--messages", "--state", "waiting", "--json"))
    assert {message["answer"] for message in listed} == {
        "no server takes mail: write [alerting.mail]",
        "http is not encrypted: write https, or add x.example to allow_http in [alerting]",
    }
    assert gatelock("alerts", "test", "contact 00000000").exit_code == 1


def test_a_hundred_contacts_are_not_ten(gatelock: Gatelock, engine: sa.Engine) -> None:
    words = ["alerts", "contact", "api_key:acme", "--webhook", "https://x.example/", "--reason", "x"]
    assert [gatelock(*words).exit_code for _ in range(11)] == [0] * 10 + [2]
