"""Days that are closed while a real Kafka has more partitions, other topics and transactions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from kafka import KafkaAdminClient
from kafka.admin import NewPartitions

from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_rows import add_day, stored_days
from analyzer.build import ends_of_logs
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.errors import LogsUnknown
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.billing_tables import day_positions, days
from analyzer.sources.kafka.probes.log_bounds import read_ends
from tests.support.installation import Installation, RealKafka, create_again, delete_topic, write
from tests.support.servers.child import free_port
from tests.support.servers.kafka import new_name

New = Callable[..., Installation]


def closing_of(here: Installation) -> DayClosing:
    """Returns the closing of an installation whose open day is over for a long time."""
    with writing(here.engine) as db:
        add_day(db, "UTC", 1_700_000_000)
    far = 4_000_000_000_000
    return DayClosing(
        here.engine, Billing(grace_s=0.0), ends_of_logs(here.settings), lambda: "mark", lambda: far
    )


def positions(here: Installation) -> dict[tuple[int, int], tuple[int | None, int | None]]:
    """Returns target and cut of each partition, by whether its log is gone, and its number."""
    of = day_positions.c
    with reading(here.engine) as db:
        rows = db.execute(sa.select(of.is_gone, of.partition, of.target, of.cut))
        return {(gone, number): (target, cut) for gone, number, target, cut in rows}


def waits(here: Installation, closing: DayClosing) -> list[str]:
    with reading(here.engine) as db:
        [day] = stored_days(db, days.c.state == "open")
    return [str(one) for one in closing.find_awaited(day)]


def test_a_day_waits_for_all_records_and_not_for_silent_partitions(real_kafka: RealKafka, new: New) -> None:
    topic = real_kafka.create_topic(new_name(), partitions=3)
    here = new(topic)
    keys = write(real_kafka, topic, 0, 0, count=8)
    here.run_until(lambda: here.counted() == keys)
    write(real_kafka, topic, 1, 0, count=5)
    closing = closing_of(here)
    assert closing.step() == 0
    assert waits(here, closing) == [f"{topic}[1]: is counted up to 0, and must be up to 5"]
    here.run_until(lambda: len(here.counted()) >= 13)
    write(real_kafka, topic, 1, 5, count=5)
    assert closing.step() == 1
    assert positions(here) == {(0, 0): (8, 8), (0, 1): (5, 5), (0, 2): (0, 0)}


def test_a_partition_that_was_added_is_awaited_before_any_analyzer_knows_it(
    real_kafka: RealKafka, admin: KafkaAdminClient, new: New
) -> None:
    topic = real_kafka.create_topic(new_name(), partitions=1)
    here = new(topic)
    keys = write(real_kafka, topic, 0, 0, count=4)
    here.run_until(lambda: here.counted() == keys)
    here.stop()
    admin.create_partitions({topic: NewPartitions(total_count=2)})
    write(real_kafka, topic, 1, 0, count=3)
    closing = closing_of(here)
    assert closing.step() == 0
    assert waits(here, closing) == [f"{topic}[1]: is not counted yet, and must be up to 3"]
    here.run_until(lambda: len(here.counted()) == 7)
    assert closing.step() == 1
    assert positions(here) == {(0, 0): (4, 4), (0, 1): (3, 3)}


def test_a_topic_that_was_created_again_has_no_more_to_come(
    real_kafka: RealKafka, admin: KafkaAdminClient, new: New
) -> None:
    """The old log is cut where it was counted to; the new one is awaited."""
    topic = real_kafka.create_topic(new_name(), partitions=1)
    here = new(topic)
    keys = write(real_kafka, topic, 0, 0, count=4)
    here.run_until(lambda: here.counted() == keys)
    here.stop()
    delete_topic(admin, topic)
    create_again(admin, topic, 1)
    write(real_kafka, topic, 0, 4, count=2)
    closing = closing_of(here)
    assert closing.step() == 0
    assert waits(here, closing) == [f"{topic}[0]: is not counted yet, and must be up to 2"]
    here.run_until(lambda: bool(here.open_gaps()))
    here.accept(0, "next")
    here.run_until(lambda: len(here.counted()) == 6)
    assert closing.step() == 1
    assert positions(here) == {(1, 0): (4, 4), (0, 0): (2, 2)}


def test_the_target_is_the_end_of_what_can_be_read(real_kafka: RealKafka, new: New) -> None:
    """A transaction that is open is not awaited; markers and aborted records are passed."""
    topic = real_kafka.create_topic(new_name(), partitions=1)
    here = new(topic)
    producer = Producer({"bootstrap.servers": real_kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction()
    keys = write(real_kafka, topic, 0, 0, count=4)
    here.run_until(lambda: here.counted() == keys)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    part = Partition("", "", 0, "", topic)
    [end] = [end for one, end in ends_of_logs(here.settings)([part]).items() if one.topic == topic]
    assert end == 6, "a record and its marker, and four more"
    assert closing_of(here).step() == 1
    producer.abort_transaction()


def test_without_an_answer_of_kafka_no_day_is_closed(new: New) -> None:
    here = new(new_name())
    with pytest.raises(LogsUnknown, match="Kafka was asked for the ends of its logs"):
        read_ends({"log": "log"}, [], {"bootstrap_servers": f"127.0.0.1:{free_port()}"})
    closing = closing_of(here)
    assert closing.step() == 0, "nothing was ever counted"
