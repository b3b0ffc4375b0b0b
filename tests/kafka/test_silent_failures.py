"""Failures that kafka-python does not raise: named in the log, in /readyz and as a metric.

How the analyzer recovers from them is in test_broker_failures, test_groups and test_security.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import offsets
from tests.support.kafka_log import lines, open_source, produce, read_and_check
from tests.support.running import PROBLEM_S_MAX, Analyzer
from tests.support.servers.kafka import GivenKafka, NativeKafka
from tests.support.servers.secured import PASSWORD, USER, SecuredKafka
from tests.support.source_reader import MemoryPositionStore, SourceReader
from tests.support.waiting import wait_until

RealKafka = NativeKafka | GivenKafka
LINE = '{{"ts": 1795216000, "key": "acme", "n": {}}}'

# Computes forever within kafka-python's poll, at the first batch.
HANGING = """
import sys
from tests.support.patches import replace
import analyzer.watchdog as watchdog
from analyzer.faces.cli import main
from analyzer.sources.kafka import connection_health
from analyzer.sources.kafka.internals import raw_fetcher

def hang(raw, start):
    while True:
        pass

replace(raw_fetcher, batch_span=hang)
replace(connection_health, SILENT_S=3.0)
replace(watchdog, WARN_AFTER_S=4.0, END_AFTER_S=6.0)  # it hangs in CPU time, which the test pays for
sys.argv = ["gatelock", "run"]
main()
"""


# A group whose members get no partition until a file exists.
LEFT_OUT = """
import sys
from pathlib import Path
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as Assignor
from analyzer.faces.cli import main

assign = Assignor.assign.__func__

def assign_none(cls, cluster, members):
    assignments = assign(cls, cluster, members)
    if not Path("{file}").exists():
        for assignment in assignments.values():
            assignment.assigned_partitions.clear()
    return assignments

Assignor.assign = classmethod(assign_none)
sys.argv = ["gatelock", "run"]
main()
"""

Start = Callable[..., Analyzer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    from analyzer.kernel.database.migrate import upgrade

    upgrade(f"sqlite:///{tmp_path}/gatelock.db")
    started: list[Analyzer] = []

    def start(*given: Any, **more: Any) -> Analyzer:
        started.append(Analyzer(tmp_path, f"analyzer-{len(started)}", *given, **more))
        return started[-1]

    yield start
    for analyzer in started:
        analyzer.end()


def reading(topic: str, kafka: str) -> str:
    return f"""
        [kafka]
        {kafka}
        [[sources]]
        topic  = "{topic}"
        fields = {{ time = {{ path = "ts", unit = "s" }}, api_key = "key" }}
    """


def all_of(kafka: RealKafka, topic: str) -> str:
    return reading(topic, f'bootstrap_servers = "{kafka.bootstrap}"\nassign = "all"')


def test_a_poll_that_hangs_is_named_and_ends_the_process(real_kafka: RealKafka, start: Start) -> None:
    topic = real_kafka.create_topic(partitions=1)
    produce(real_kafka, topic, [LINE.format(0).encode()], partition=0)
    analyzer = start(all_of(real_kafka, topic), code=HANGING)
    # It hangs computing, and the watchdog counts the CPU time that it is given.
    assert "poll() has not returned" in analyzer.wait_for_problem("kafka-hung", 4 * PROBLEM_S_MAX)
    assert analyzer.process.wait(4 * PROBLEM_S_MAX) == 3, "not 0, so that systemd or Kubernetes restarts it"
    last = analyzer.log[-1]
    assert last["level"] == "critical"
    assert "fetched_records" in last["message"], "where it hangs"


@pytest.mark.deep("a broker with logins, and an analyzer for each of its faults")
def test_lost_permissions_changed_passwords_and_silent_brokers_are_named(
    secured: SecuredKafka, start: Start, tmp_path: Path
) -> None:
    """With default settings. The analyzer recovers from each without a restart, and loses nothing."""
    topics = {"ada": secured.create_topic(partitions=1), "bob": secured.create_topic(partitions=1)}
    analyzers = []
    for user, topic in topics.items():
        secured.add_scram(user, PASSWORD)
        secured.allow(user, topic=topic)
        secured.allow(user, group=topic)
        analyzers.append(start(login(secured, topic, user)))
    ada, bob = analyzers

    def write_and_count(total: int) -> None:
        for topic in topics.values():
            produce(secured, topic, [LINE.format(number).encode() for number in range(10)], partition=0)
        ada.wait_until_ready()
        bob.wait_until_ready()
        expected = dict.fromkeys(topics.values(), total)
        wait_until(lambda: counted(tmp_path) == expected, PROBLEM_S_MAX, lambda: counted(tmp_path))

    write_and_count(10)
    secured.forbid("ada", topic=topics["ada"])
    assert f"the user ada may not read {topics['ada']}" in ada.wait_for_problem("kafka-permission")
    secured.add_scram("bob", "another one")
    secured.restart()
    assert "the broker refuses the login of bob" in bob.wait_for_problem("kafka-login")
    ada.wait_for_problem("kafka-permission")

    secured.allow("ada", topic=topics["ada"])
    secured.add_scram("bob", PASSWORD)
    write_and_count(20)
    secured.pause()
    try:
        assert "no broker has answered for" in ada.wait_for_problem("kafka")
        assert "no broker has answered for" in bob.wait_for_problem("kafka")
    finally:
        secured.resume()
    write_and_count(30)


def counted(folder: Path) -> dict[str, int]:
    engine = open_engine(f"sqlite:///{folder}/gatelock.db")
    try:
        with engine.connect() as db:
            return dict(db.execute(sa.select(offsets.c.topic, offsets.c.counted)).all())
    finally:
        engine.dispose()


def login(secured: SecuredKafka, topic: str, user: str, **more: str) -> str:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
    given |= {"bootstrap_servers": secured.listeners["SASLPLAIN"], "sasl_plain_username": user}
    given |= {"sasl_plain_password": PASSWORD, "group_id": topic, **more}
    return reading(topic, "\n".join(f'{name} = "{value}"' for name, value in given.items()))


def test_a_member_that_is_left_out_and_one_that_is_replaced_are_named(
    real_kafka: RealKafka, start: Start, tmp_path: Path
) -> None:
    topic = real_kafka.create_topic()
    assigning = tmp_path / "assigning"
    address = f'bootstrap_servers = "{real_kafka.bootstrap}"\n'
    left_out = start(reading(topic, address + 'group_id = "left-out"'), code=LEFT_OUT.format(file=assigning))
    twin = reading(topic, address + 'group_id = "twins"\noptions = { group_instance_id = "one" }')
    first = start(twin)
    first.wait_until_ready()
    second = start(twin)
    assert "has joined the group twins as one" in first.wait_for_problem("kafka-group")
    second.wait_until_ready()
    assert "leaves partitions unread while this analyzer has none" in left_out.wait_for_problem("kafka-group")
    assigning.touch()
    left_out.wait_until_ready()


MISTAKES = [
    ("kafka-login", {"sasl_plain_password": "wrong"}),
    ("kafka-tls", {"security_protocol": "SASL_SSL", "ssl_cafile": "other-authority.pem"}),
    ("kafka-permission", {"sasl_plain_username": "guest"}),
    ("kafka-permission", {"group_id": "not-ours"}),
]


def test_a_mistake_in_the_connection_is_one_error_soon(secured: SecuredKafka, start: Start) -> None:
    topic = secured.create_topic()
    secured.allow(USER, topic=topic)
    analyzers = []
    # One after another: several that start at once on a busy machine may have no answer within ten seconds,
    # which is another error.
    for name, mistake in MISTAKES:
        more = dict(mistake)
        if "ssl_cafile" in more:
            more["ssl_cafile"] = str(secured.folder / more["ssl_cafile"])
            more["bootstrap_servers"] = secured.listeners["SASLTLS"]
        analyzer = start(login(secured, topic, USER, **more))
        analyzers.append(analyzer)
        analyzer.wait_for_problem(name)
        began_s, logged_s = analyzer.logged_at("listening"), analyzer.logged_at(name)
        assert began_s is not None
        assert logged_s is not None
        assert logged_s - began_s < PROBLEM_S_MAX
    time.sleep(5)  # more attempts fail meanwhile
    for analyzer in analyzers:
        assert len(analyzer.errors) == 1, analyzer.errors


def test_two_analyzers_of_the_same_partitions_are_named(real_kafka: RealKafka, start: Start) -> None:
    """Both with assign = "all" on one database: what the slower one counts is discarded."""
    topic = real_kafka.create_topic()
    first, second = (start(all_of(real_kafka, topic)) for _ in range(2))
    first.wait_until_listening()
    second.wait_until_listening()
    end_s, problems = time.monotonic() + PROBLEM_S_MAX, {}
    while "contention" not in problems:
        assert time.monotonic() < end_s, (first.log[-3:], second.log[-3:])
        produce(real_kafka, topic, [LINE.format(number).encode() for number in range(200)])
        problems = first.problems() | second.problems()
    assert "two analyzers read the same partitions" in problems["contention"]


def test_a_refused_login_does_not_look_like_a_broker_that_is_down(
    start: Start, real_kafka: RealKafka
) -> None:
    """The listener takes no login."""
    options = f"""
        bootstrap_servers = "{real_kafka.bootstrap}"
        security_protocol = "SASL_PLAINTEXT"
        sasl_mechanism = "PLAIN"
        sasl_plain_username = "ada"
        sasl_plain_password = "s3cret"
    """
    analyzer = start(reading("t", options))
    assert "security_protocol" in analyzer.wait_for_problem("kafka-login")
    began_s, logged_s = analyzer.logged_at("listening"), analyzer.logged_at("kafka-login")
    assert began_s is not None
    assert logged_s is not None
    assert logged_s - began_s < PROBLEM_S_MAX
    assert [message.partition(":")[0] for message in analyzer.errors] == ["kafka-login"]
    assert "s3cret" not in json.dumps(analyzer.log)


def test_a_member_that_is_replaced_stays_away_until_the_other_has_left(
    real_kafka: RealKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "analyzer.sources.kafka")
    topic = real_kafka.create_topic()
    given = {
        "group_id": topic,
        "session_timeout_s": 1.5,
        "options": {"group_instance_id": "one", "heartbeat_interval_ms": 200},
    }
    positions, kept = MemoryPositionStore(), {}
    first, second = (
        SourceReader(open_source(real_kafka, positions, topic, **given), positions, kept) for _ in range(2)
    )
    produce(real_kafka, topic, lines(40))
    read_and_check([first], lines(40))
    end_s = time.monotonic() + PROBLEM_S_MAX
    while "kafka-group" not in first.source.problems():
        assert time.monotonic() < end_s
        second.turn()
        first.turn()
    assert "has joined the group" in first.source.problems()["kafka-group"]
    assert any("kafka-group" in record.message for record in caplog.records)
    produce(real_kafka, topic, lines(40, begin=40))
    read_and_check([first, second], lines(80))
    assert first.source.positions() == {}
    assert second.source.problems() == {}

    second.source.close()
    produce(real_kafka, topic, lines(40, begin=80))
    read_and_check([first], lines(120))
    assert first.source.problems() == {}
    first.source.close()
