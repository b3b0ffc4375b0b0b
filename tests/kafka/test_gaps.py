"""What stops a partition, from the broker to the command that goes on: a whole analyzer on a real Kafka."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from kafka import KafkaAdminClient, TopicPartition
from typer.testing import CliRunner

from analyzer.build import build
from analyzer.cli import app
from analyzer.daemon import Daemon
from analyzer.health import Health
from analyzer.metrics import Metrics
from analyzer.settings import load
from analyzer.store.engine import open_engine
from analyzer.store.migrate import upgrade
from analyzer.store.schema import buckets, offsets
from tests.support.kafka_log import produce
from tests.support.servers.kafka import GivenKafka, NativeKafka, new_name

RealKafka = NativeKafka | GivenKafka
CONFIGURATION = """
[database]
url = "sqlite:///{folder}/gatelock.db"
[kafka]
bootstrap_servers = "{bootstrap}"
assign = "all"
options = {{ metadata_max_age_ms = 500 }}
[[sources]]
topic = "{topic}"
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
"""


class World:
    """One installation: a configuration, a database, and analyzers that come and go."""

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.file = folder / "gatelock.toml"
        self.file.write_text(CONFIGURATION.format(folder=folder, bootstrap=bootstrap, topic=topic))
        self.settings = load(self.file)
        upgrade(self.settings.database.address)
        self.engine = open_engine(self.settings.database.address)
        self.health = Health(Metrics("1"), time.monotonic)
        self.daemon: Daemon | None = None

    def start(self) -> Daemon:
        self.daemon = build(self.settings, self.engine, self.health)
        return self.daemon

    def stop(self) -> None:
        if self.daemon is not None:
            self.daemon.close()
            self.daemon = None

    def run(self, enough: Callable[[], object], seconds: float = 20.0) -> None:
        daemon, end_s = self.daemon or self.start(), time.monotonic() + seconds
        while not enough():
            assert time.monotonic() < end_s, (self.open().values(), daemon.pipeline.source.problems())
            time.sleep(daemon.turn())

    def counted(self) -> set[str]:
        """The keys that were counted: each record has one of its own."""
        with self.engine.connect() as db:
            rows = db.execute(sa.select(buckets.c.key, buckets.c.value).where(buckets.c.grouping == "caller"))
            found = dict(tuple(row) for row in rows)
        assert set(found.values()) <= {1}, "nothing is counted twice"
        return {key.removeprefix("api_key:") for key in found}

    def gatelock(self, *arguments: str) -> Any:
        ran = CliRunner().invoke(app, ["--config", str(self.file), *arguments])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran

    def open(self) -> dict[str, tuple[str, int, int | None]]:
        ran = self.gatelock("gaps", "list", "--json")
        rows = [json.loads(line) for line in ran.output.splitlines()]
        assert ran.exit_code == (1 if rows else 0)
        return {row["partition"]: (row["kind"], row["start"], row["end"]) for row in rows}

    def accept(self, number: int, to: str, reason: str = "it is gone") -> Any:
        return self.gatelock("gaps", "accept", f"{self.topic}[{number}]", "--to", to, "--reason", reason)

    def skipped(self) -> dict[int, int]:
        audit = json.loads(self.gatelock("audit", "--json").output)
        assert audit["equal"]
        return {row["partition"]: row["skipped"] for row in audit["partitions"] if row["skipped"]}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[[RealKafka, str], World]]:
    worlds = []

    def world(kafka: RealKafka, topic: str) -> World:
        worlds.append(World(tmp_path, kafka.bootstrap, topic))
        return worlds[-1]

    yield world
    for each in worlds:
        each.stop()
        each.engine.dispose()


New = Callable[[RealKafka, str], World]


def write(kafka: RealKafka, topic: str, partition: int, begin: int, count: int = 10) -> set[str]:
    """One batch of records; their keys."""
    keys = [f"{topic}-{partition}-{n}" for n in range(begin, begin + count)]
    now_ms = int(time.time() * 1000)
    produce(kafka, topic, [json.dumps({"ts": now_ms, "key": key}).encode() for key in keys], partition)
    return set(keys)


def batches_of(log: bytes) -> list[int]:
    at, found = 0, []
    while at < len(log):
        found.append(at)
        at += 12 + struct.unpack_from(">i", log, at + 8)[0]
    return found


def harm(
    kafka: NativeKafka, topic: str, partition: int, batch: int, change: Callable[[bytearray, int], None]
):
    file = kafka.folder / "data" / f"{topic}-{partition}" / "00000000000000000000.log"
    content = bytearray(file.read_bytes())
    change(content, batches_of(bytes(content))[batch])
    file.write_bytes(content)


def payload(log: bytearray, at: int) -> None:
    log[at + 80] ^= 0xFF


def claim(log: bytearray, at: int) -> None:
    """It claims a thousand offsets more."""
    struct.pack_into(">i", log, at + 23, 1009)


def length(log: bytearray, at: int) -> None:
    """It seems to be shorter."""
    struct.pack_into(">i", log, at + 8, 70)


@pytest.mark.parametrize("way", ["raw", "plain"])
def test_what_is_damaged_is_named_exactly_and_gone_on_behind(
    own_kafka: NativeKafka, world: New, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "plain":
        monkeypatch.setattr("analyzer.kafka.records.NO_RAW", "this kafka-python is another one")
    topic = own_kafka.create_topic(partitions=5)
    keys = {p: [write(own_kafka, topic, p, 10 * n) for n in range(4)] for p in range(5)}
    harms = {0: payload, 3: payload} if way == "plain" else {0: payload, 1: claim, 2: length, 3: payload}
    own_kafka.stop()
    for partition, change in harms.items():
        harm(own_kafka, topic, partition, 3 if partition == 3 else 1, change)
    own_kafka.start()

    here = world(own_kafka, topic)
    sizes = {p: (30, 40) if p == 3 else (10, 20) for p in harms}
    here.run(lambda: here.open() == {f"{topic}[{p}]": ("corrupt", *sizes[p]) for p in harms}, seconds=40)
    before = {
        key for p in range(5) for batch in keys[p][: sizes[p][0] // 10 if p in harms else 4] for key in batch
    }
    here.run(lambda: here.counted() == before)
    assert {gap.kind for gap in here.health.gaps.values()} == {"corrupt"}
    assert f"{topic}[0]  corrupt" in here.gatelock("gaps", "list").output

    assert here.accept(0, "9").exit_code == 2
    beyond = here.accept(0, "999")
    assert (beyond.exit_code, beyond.stderr) == (2, f"{topic}[0]: the log has [0, 40) now, and not 999\n")
    assert here.accept(4, "next").exit_code == 2
    for p in harms:
        told = here.accept(p, "next")
        assert told.exit_code == 0
        assert "10 offsets are skipped" in told.output
        assert here.accept(p, "next").exit_code == 2, "accepted twice"
    lost = {key for p in harms for key in keys[p][sizes[p][0] // 10]}
    # A broker that starts on a wrong length takes what follows for the end of its log: it serves no more.
    lost |= {key for batch in keys[2][2:] for key in batch if 2 in harms}
    truth = {key for p in keys for batch in keys[p] for key in batch} - lost
    truth |= write(own_kafka, topic, 3, 40)
    here.run(lambda: here.counted() >= truth, seconds=30)
    assert here.counted() == truth
    assert here.open() == {}
    assert here.skipped() == dict.fromkeys(harms, 10)
    acts = here.gatelock("events", "list", "--json").output
    assert acts.count("gap accepted") == acts.count("it is gone") == len(harms)


def delete_topic(admin: KafkaAdminClient, topic: str) -> None:
    admin.delete_topics([topic])
    while topic in admin.list_topics():
        time.sleep(0.02)


def create_again(admin: KafkaAdminClient, topic: str, partitions: int) -> None:
    given = {"num_partitions": partitions, "replication_factor": 1}
    admin.create_topics({topic: given}, wait_for_metadata=True)


@pytest.fixture
def admin(real_kafka: RealKafka) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=real_kafka.bootstrap)
    yield admin
    admin.close()


def test_a_topic_made_again_is_known_before_a_record_of_it_is_counted(
    real_kafka: RealKafka, admin: KafkaAdminClient, world: New
) -> None:
    """However long the client's metadata is believed: fetches ask for the topic by its id."""
    topic = real_kafka.create_topic(new_name(), partitions=2)
    old = {key for p in range(2) for key in write(real_kafka, topic, p, 0)}
    here = world(real_kafka, topic)
    here.file.write_text(here.file.read_text().replace("= 500", "= 300000"))
    here.settings = load(here.file)
    here.run(lambda: here.counted() == old)

    # While nobody fetches: no error in between tells the client that anything happened.
    delete_topic(admin, topic)
    create_again(admin, topic, 2)
    new = {p: write(real_kafka, topic, p, 100, 40) for p in range(2)}
    expected = {f"{topic}[{p}]": ("recreated", 0, None) for p in range(2)}
    here.run(lambda: here.open() == expected)
    assert here.counted() == old

    here.stop()  # another analyzer finds the same
    here.run(lambda: here.health.gaps)
    assert here.open() == expected
    assert here.accept(1, "41").exit_code == 2
    assert here.accept(1, "5", "begun anew").exit_code == 0
    rest = {f"{topic}-1-{n}" for n in range(105, 140)}
    here.run(lambda: here.counted() >= old | rest)
    assert here.counted() == old | rest, "the other partition still waits"
    assert here.open() == {f"{topic}[0]": ("recreated", 0, None)}
    assert here.accept(0, "next").exit_code == 0
    here.run(lambda: here.counted() >= old | rest | new[0])
    assert here.open() == {}
    assert here.skipped() == {1: 5}
    audit = json.loads(here.gatelock("audit", "--json").output)
    assert len(audit["partitions"]) == 4, "the old log's ledger stays"


def test_what_retention_took_and_what_was_cut_off_wait_for_a_person(
    real_kafka: RealKafka, admin: KafkaAdminClient, world: New
) -> None:
    topic = real_kafka.create_topic(new_name(), partitions=3)
    keys = {p: write(real_kafka, topic, p, 0, 40) for p in range(3)}
    here = world(real_kafka, topic)
    here.run(lambda: here.counted() == set().union(*keys.values()))
    here.stop()
    stand(here.engine, {1: 1000})
    more = {p: write(real_kafka, topic, p, 40, 40) for p in range(3)}
    admin.delete_records({TopicPartition(topic, 0): 70})

    expected = {f"{topic}[0]": ("retention", 40, 70), f"{topic}[1]": ("past-end", 80, 1000)}
    here.run(lambda: here.open() == expected)
    kinds = {gap.kind for gap in here.health.gaps.values()}
    assert kinds == {"retention", "past-end"}
    admin.delete_records({TopicPartition(topic, 0): 75})
    assert here.accept(0, "74").exit_code == 2, "that is gone by now, too"
    assert "going on at 75, 35 offsets are skipped" in here.accept(0, "next").output
    assert here.accept(1, "again").exit_code == 2
    assert here.accept(1, "next").exit_code == 0
    late = write(real_kafka, topic, 1, 80)
    truth = set().union(*keys.values(), more[2], late) | {f"{topic}-0-{n}" for n in range(75, 80)}
    here.run(lambda: here.counted() >= truth)
    assert here.counted() == truth
    assert here.open() == {}
    assert here.skipped() == {0: 35}


def stand(engine: sa.Engine, at: dict[int, int]) -> None:
    """As if so much had been counted, of a log that then lost its end."""
    with engine.begin() as db:
        for number, offset in at.items():
            db.execute(sa.update(offsets).where(offsets.c.partition == number).values(next=offset))
