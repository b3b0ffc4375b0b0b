"""Days that are closed again after a restore, from the topics of a real Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from analyzer.billing.days.day_rows import add_day
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import offsets
from tests.support.installation import Installation, RealKafka
from tests.support.restoring import backed_up
from tests.support.servers.kafka import new_name
from tests.support.tampered_tables import tamper

New = Callable[..., Installation]
DAY_S = 86_400
FOLLOWED = "update offsets set beat_ms = beat_ms - 20000"  # as long ago as a restore takes


def write(kafka: RealKafka, topic: str, partition: int, requests: int, at_s: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(requests):
        value = json.dumps({"ts": at_s * 1000, "key": f"caller-{partition}"})
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def counted(here: Installation) -> int:
    with here.engine.connect() as db:
        return int(db.execute(sa.select(sa.func.sum(offsets.c.counted))).scalar() or 0)


def beats(here: Installation) -> dict[int, int | None]:
    with here.engine.connect() as db:
        return dict(tuple(row) for row in db.execute(sa.select(offsets.c.partition, offsets.c.beat_ms)))


def test_a_restored_day_is_closed_at_the_offsets_that_it_had(
    real_kafka: RealKafka, admin: KafkaAdminClient, new: New, tmp_path: Path
) -> None:
    topic = real_kafka.create_topic(new_name(), partitions=2)
    here, at_s = new(topic), int(time.time()) - DAY_S
    date = f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}"

    def counts(partition: int, requests: int) -> None:
        expected = counted(here) + requests
        write(real_kafka, topic, partition, requests, at_s)
        here.run_until(lambda: counted(here) == expected)

    def report(*words: str) -> str:
        result = here.gatelock("billing", "report", *words)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    with writing(here.engine) as db:
        add_day(db, "UTC", at_s)
    empty = backed_up(here.engine)
    counts(0, 10)
    here.stop()
    restore = backed_up(here.engine)
    counts(0, 5)
    counts(1, 7)
    closed = here.gatelock("billing", "days", "close", date, "--reason", "r", "--yes")
    assert closed.exit_code == 0, closed.output
    report("day", date, "--out", str(tmp_path / "reports.csv"))
    counts(0, 4)
    booked = report("corrections", "today")
    assert ",requests,4," in booked
    here.stop()
    restore()
    days = ("restore", "days", "--from", str(tmp_path), "--reason", "r", "--yes")
    assert "analyzers count: stop them all first" in here.gatelock(*days).stdout
    tamper(here.engine, FOLLOWED)
    before = beats(here)
    assert here.gatelock("restore", "check", "--from", str(tmp_path)).exit_code == 1
    restored = here.gatelock(*days)
    assert restored.exit_code == 0, restored.output
    assert f"{date} (UTC): closed again, to the same bytes" in restored.stdout
    assert report("day", date) == (tmp_path / "reports.csv").read_text().replace("\r\n", "\n")
    assert beats(here)[0] == before[0]
    assert beats(here)[1] is not None  # analyzers have followed it, too
    here.run_until(lambda: counted(here) == 26)
    assert report("corrections", "today") == booked
    here.audit()
    here.stop()
    empty()  # no plan, no offset
    restored = here.gatelock(*days)
    assert f"{date} (UTC): closed again, to the same bytes" in restored.stdout, restored.output
    restore()
    tamper(here.engine, FOLLOWED)
    admin.delete_records({TopicPartition(topic, 0): 12})
    gone = here.gatelock(*days)
    assert gone.exit_code == 1
    assert f"{date} (UTC): {topic}[0]: the offsets from 10 to 12 are no longer there" in gone.stdout
    assert counted(here) == 10
