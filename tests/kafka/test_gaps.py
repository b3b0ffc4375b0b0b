"""Gaps, from the broker to the command that accepts them: a whole analyzer on a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from kafka import KafkaAdminClient, TopicPartition

from analyzer.kernel.tables.schema import offsets
from tests.support.configured import source
from tests.support.installation import (
    Installation,
    RealKafka,
    create_again,
    delete_topic,
    write,
)
from tests.support.running import Analyzer
from tests.support.servers.kafka import new_name
from tests.support.waiting import wait_until

New = Callable[..., Installation]


def test_a_recreated_topic_is_noticed_before_a_record_of_it_is_counted(
    real_kafka: RealKafka, admin: KafkaAdminClient, new: New
) -> None:
    """However old the client's metadata may be: batches are requested by the topic's id."""
    topic, other = real_kafka.create_topic(new_name(), partitions=2), real_kafka.create_topic(partitions=1)
    old = {key for p in range(2) for key in write(real_kafka, topic, p, 0)} | write(real_kafka, other, 0, 0)
    here = new(topic, other, metadata_ms=300_000)
    here.run_until(lambda: here.counted() == old)

    # While nothing is fetched, so that no error in between makes the client refresh its metadata.
    delete_topic(admin, topic)
    create_again(admin, topic, 3)
    again = {p: write(real_kafka, topic, p, 100, 40) for p in range(3)}
    expected = {f"{topic}[{p}]": ("recreated", 0, None) for p in range(3)}
    here.run_until(lambda: here.open_gaps() == expected)
    old |= write(real_kafka, other, 0, 10)
    here.run_until(lambda: here.counted() >= old)
    assert here.counted() == old, "only the other topic continues"

    here.stop()  # another analyzer finds the same
    here.run_until(lambda: here.health.gaps)
    assert here.open_gaps() == expected
    assert here.accept(1, "41").exit_code == 2
    assert here.accept(1, "again").exit_code == 2
    assert here.accept(1, "5", "new log").exit_code == 0
    rest = {f"{topic}-1-{n}" for n in range(105, 140)}
    here.run_until(lambda: here.counted() >= old | rest)
    assert here.counted() == old | rest, "the others still wait"
    assert here.open_gaps().keys() == {f"{topic}[0]", f"{topic}[2]"}
    assert here.accept("*", "next").exit_code == 0
    here.run_until(lambda: here.counted() >= old | rest | again[0] | again[2])
    assert here.open_gaps() == {}
    assert here.skipped() == {1: 5}
    assert len(here.audit()["partitions"]) == 6, "the old log's ledger stays"
    assert here.gatelock("upkeep", "sources", "list").exit_code == 0, "the old log does not count as waiting"


def test_deleted_and_truncated_records_wait_for_an_operator(
    real_kafka: RealKafka, admin: KafkaAdminClient, new: New
) -> None:
    topic = real_kafka.create_topic(new_name(), partitions=3)
    keys = {p: write(real_kafka, topic, p, 0, 40) for p in range(3)}
    here = new(topic)
    here.run_until(lambda: here.counted() == set().union(*keys.values()))
    here.stop()
    set_positions(here.engine, {1: 1000})
    more = {p: write(real_kafka, topic, p, 40, 40) for p in range(3)}
    admin.delete_records({TopicPartition(topic, 0): 70})

    expected = {f"{topic}[0]": ("retention", 40, 70), f"{topic}[1]": ("past-end", 80, 1000)}
    here.run_until(lambda: here.open_gaps() == expected)
    kinds = {gap.kind for gap in here.health.gaps.values()}
    assert kinds == {"retention", "past-end"}
    admin.delete_records({TopicPartition(topic, 0): 75})
    assert here.accept(0, "74").exit_code == 2, "that is gone by now, too"
    assert here.accept(0, "again").exit_code == 2
    assert "continuing at 75, 35 offsets are skipped" in here.accept(0, "next", "we were down").output
    assert here.accept(1, "again").exit_code == 2
    assert here.accept(1, "next").exit_code == 0
    late = write(real_kafka, topic, 1, 80)
    truth = set().union(*keys.values(), more[2], late) | {f"{topic}-0-{n}" for n in range(75, 80)}
    here.run_until(lambda: here.counted() >= truth)
    assert here.counted() == truth
    assert here.open_gaps() == {}
    [gap] = here.audit()["gaps"]
    assert (gap["partition"], gap["start"], gap["accepted_to"], gap["skipped"]) == (f"{topic}[0]", 40, 75, 35)
    audit = here.gatelock("billing", "audit").output
    assert f"skipped: {topic}[0] [40, 75), retention: {gap['accepted_by']}, " in audit
    assert ": we were down\n" in audit


def set_positions(engine: sa.Engine, positions: dict[int, int]) -> None:
    """Stores positions by partition, as if so much had been counted of a log that then lost its end."""
    with engine.begin() as db:
        for number, offset in positions.items():
            db.execute(
                sa.update(offsets).where(offsets.c.partition == number).values(next=offset, resume_token="")
            )


def test_a_gap_of_a_log_that_was_deleted_since_is_not_accepted(
    real_kafka: RealKafka, admin: KafkaAdminClient, new: New
) -> None:
    topic = real_kafka.create_topic(new_name(), partitions=1)
    write(real_kafka, topic, 0, 0)
    here = new(topic)
    here.run_until(here.counted)
    here.stop()
    write(real_kafka, topic, 0, 10)
    admin.delete_records({TopicPartition(topic, 0): 15})
    here.run_until(here.open_gaps)
    here.stop()
    delete_topic(admin, topic)
    create_again(admin, topic, 1)
    accepted = here.accept(0, "next")
    assert accepted.exit_code == 2
    assert "does not exist any more" in accepted.stderr
    here.run_until(lambda: here.open_gaps() == {f"{topic}[0]": ("recreated", 0, None)})
    assert here.accept(0, "next").exit_code == 0


def test_a_running_analyzer_continues_within_a_second_after_a_gap_is_accepted(
    real_kafka: RealKafka, admin: KafkaAdminClient, new: New, tmp_path: Path
) -> None:
    topic = real_kafka.create_topic(new_name(), partitions=2)
    here = new(topic)
    truth = write(real_kafka, topic, 0, 0) | write(real_kafka, topic, 1, 0)
    here.run_until(lambda: here.counted() == truth)
    here.stop()
    write(real_kafka, topic, 0, 10)
    admin.delete_records({TopicPartition(topic, 0): 15})
    configuration = f"""
        [kafka]
        bootstrap_servers = "{real_kafka.bootstrap}"
        assign = "all"
        {source(topic)}
    """
    analyzer = Analyzer(tmp_path, "one", configuration, str(here.settings.database.address))
    try:
        why = analyzer.wait_for_problem(f"{topic}[0]")
        cure = "`gatelock upkeep sources list --gaps` says what to do"
        assert why == f"[10, 15) was deleted before it was counted; {cure}"
        truth |= write(real_kafka, topic, 1, 10) | {f"{topic}-0-{n}" for n in range(15, 20)}
        wait_until(here.open_gaps)  # /readyz has a gap a moment before the database has it
        assert here.accept(0, "next").exit_code == 0
        accepted_s = time.time()
        wait_until(lambda: here.counted() == truth)
        analyzer.wait_until_ready()
        continued_s = analyzer.logged_at(f"resuming {topic}[0]")  # before the first record is counted
        assert continued_s is not None
        assert continued_s - accepted_s < 5.0, "it checks twice a second; a loaded machine may be late"
    finally:
        analyzer.end()
    assert here.skipped() == {0: 5}
