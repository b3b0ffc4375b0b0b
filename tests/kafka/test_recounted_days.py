"""`gatelock billing audit --day --against-kafka`: a day of real records, counted again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_rows import add_day
from analyzer.config.settings import load
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.tables.schema import lock_history
from tests.support.installation import Installation, RealKafka, delete_topic
from tests.support.servers.kafka import new_name
from tests.support.tampered_tables import tamper

DAY_MS = 86_400_000
# Producers set the times in Kafka: the day is over, and within the retention of the topic.
MIDNIGHT_MS = (int(time.time() * 1000) // DAY_MS - 3) * DAY_MS
DATE = f"{datetime.fromtimestamp(MIDNIGHT_MS / 1000, UTC):%Y-%m-%d}"
SOURCE = """
[billing]
groupings = ["caller", "caller+resource"]
[[sources]]
topic = "{topic}"
caller = ["user", "address"]
id = "event"
id_horizon = "1h"
deny_if = {{ gate = "denied" }}
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
user = "user"
address = "ip"
event = "id"
gate = "gate"
bytes = "bytes"
resource = {{ path = "path", routes = ["/v1/items/{{id}}"], else = "other" }}
[[meters]]
name = "volume"
sum = "bytes"
[[meters]]
name = "largest"
max = "bytes"
"""


class RecountedDay(Installation):
    """An installation whose first day was written to two partitions."""

    def __init__(self, folder: Path, kafka: RealKafka, topic: str) -> None:
        super().__init__(folder, kafka.bootstrap, [topic])
        text = self.file.read_text().partition("[[sources]]")[0]
        self.file.write_text(text + SOURCE.format(topic=topic))
        self.settings = load(self.file)
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 100})
        self.sent = 0
        with writing(self.engine) as db:
            add_day(db, "UTC", MIDNIGHT_MS // 1000)
            # As if locks had been noted for long: what no lock supports is not believed.
            db.execute(sa.update(lock_history).where(lock_history.c.scope == "").values(began_ms=0))

    def send(self, part: int, at_s: float, user: str | None, later_s: float = 0, **fields: Any) -> None:
        """Sends a request of the day, which is logged `later_s` later."""
        ms = MIDNIGHT_MS + round(at_s * 1000)
        content = {
            "ts": ms,
            "id": f"e-{self.sent}",
            "user": user,
            "path": "/v1/items/7",
            "bytes": 10,
            **fields,
        }
        self.put(part, json.dumps(content).encode(), ms + round(later_s * 1000))

    def put(self, part: int, value: bytes, kafka_ms: int) -> None:
        self.producer.produce(self.topic, value, partition=part, timestamp=kafka_ms)
        self.sent += 1

    def counted_up(self) -> None:
        assert self.producer.flush(30) == 0

        def is_counted() -> bool:
            with self.engine.connect() as db:
                seen = db.exec_driver_sql("select coalesce(sum(seen), 0) from offsets").scalar_one()
            return int(seen) == self.sent

        self.run_until(is_counted)

    def close_day(self) -> None:
        billing = Billing(groupings=("caller", "caller+resource"), grace_s=0.0)
        far_ms = MIDNIGHT_MS + 100 * DAY_MS
        assert DayClosing(self.engine, billing, lambda _: {}, lambda: "mark", lambda: far_ms).step() == 1

    def recount(self, *arguments: str) -> Any:
        return self.gatelock("billing", "audit", "--day", DATE, "--against-kafka", *arguments)

    def recounted(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.recount("--json").stdout)
        return found


@pytest.fixture
def day(real_kafka: RealKafka, tmp_path: Path) -> Iterator[RecountedDay]:
    topic = real_kafka.create_topic(new_name(), partitions=2)
    made = RecountedDay(tmp_path, real_kafka, topic)
    yield made
    made.close()


def fill(day: RecountedDay) -> None:
    """Writes a day with everything that makes counting hard."""
    for number in range(40):
        part, user = number % 2, f"u{number % 4}"
        day.send(part, 600 * number, user, bytes=number, status=200)
    day.send(0, -1, "u0")  # of the day before
    day.send(1, 86_400, "u1")  # of the day after
    for repeated_s in (1_000, 1_500, 1_600):
        day.send(0, repeated_s, "u0", id="twice")
    day.send(1, 1_500, "u0", id="twice")  # in another partition: counts
    day.send(0, 40_000, "u0", id="again")
    day.send(0, 50_000, "u0", id="again")  # after the horizon
    day.send(0, 3_000, "u2", gate='denied;policy="daily"')
    day.send(0, 3_001, None, ip="2001:db8::1")
    day.send(1, 3_002, "bad\nname", ip="192.0.2.1")
    day.send(1, 3_003, "", path=None)
    day.send(1, 7_200, "u1", later_s=80_000)  # shipped late, before the cut
    for value in (b"{", b"\xff", b'{"ts": 1}', b'{"user": "u1", "ts": "now"}', b""):
        day.put(1, value, MIDNIGHT_MS + 4_000_000)
    day.send(0, 4_000, "u1", later_s=-1_000)  # too far in the future


def test_a_day_is_counted_again_without_a_difference(day: RecountedDay) -> None:
    fill(day)
    day.counted_up()
    day.close_day()
    day.send(0, 5_000, "u1", later_s=90_000)  # past the cut: an adjustment
    day.send(1, 5_000, "u3", later_s=90_000)
    day.counted_up()
    found = day.recounted()
    assert (found["equal"], found["differences"]) == (True, [])
    assert found["records"] >= 50
    assert [one["partition"] for one in found["partitions"]] == [f"{day.topic}[0]", f"{day.topic}[1]"]
    assert all(one["plans"] for one in found["partitions"])
    assert [(one.split()[0], one.split(": ")[-1]) for one in found["given"]] == [
        ("records", "1"),
        ("requests", "1"),
    ]
    result = day.recount()
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].endswith("series compared: no difference")
    assert day.gatelock("billing", "audit", "--day", DATE).exit_code == 0


def test_a_wrong_row_is_found_by_name(day: RecountedDay) -> None:
    """Also one that was moved between two callers in all tables that can be compared."""
    fill(day)
    day.counted_up()
    day.close_day()
    reference = "(select reference from referenced_names where name = 'user:u{}')"
    tamper(
        day.engine,
        f"update frozen_counts set value_0 = value_0 - 1 where reference = {reference.format(1)}",
        f"update frozen_counts set value_0 = value_0 + 1 where reference = {reference.format(3)}",
    )
    result = day.recount()
    assert result.exit_code == 1
    wrong = [line for line in result.stdout.splitlines() if line.endswith("in the log: NOT EQUAL")]
    assert {line.split(":")[1].split()[0] for line in wrong} == {"u1", "u3"}
    found = day.recounted()
    assert (found["equal"], found["differing"]) == (False, 4)
    assert {one["name"] for one in found["differences"]} == {"user:u1", "user:u3"}


def test_a_record_that_was_never_counted_is_found(day: RecountedDay) -> None:
    """Offsets that a stored position has passed, and whose counts are missing everywhere."""
    fill(day)
    day.counted_up()
    tables = ("buckets", "totals")
    with reading(day.engine) as db:
        names = db.execute(sa.text("select distinct key from buckets where key = 'user:u3'")).all()
    assert names
    for table in tables:
        tamper(day.engine, f"delete from {table} where key = 'user:u3'")
    day.close_day()
    found = day.recounted()
    assert {one["name"] for one in found["differences"]} == {"user:u3"}
    assert {one["frozen"] for one in found["differences"]} == {0}


def test_a_log_that_is_gone_is_refused(day: RecountedDay, admin: KafkaAdminClient) -> None:
    fill(day)
    day.counted_up()
    day.close_day()
    day.stop()
    delete_topic(admin, day.topic)
    result = day.recount()
    assert result.exit_code == 3
    assert f"{DATE} (UTC) cannot be counted again: {day.topic}[0]: its log does not exist" in result.stderr


def test_the_day_must_be_closed_and_named(day: RecountedDay) -> None:
    result = day.gatelock("billing", "audit", "--against-kafka")
    assert (result.exit_code, result.stderr) == (
        2,
        "--against-kafka counts one day again: write --day DATE\n",
    )
    result = day.recount()
    assert (result.exit_code, result.stderr) == (
        1,
        f"{DATE} (UTC) is not closed; see `gatelock billing days list`\n",
    )
