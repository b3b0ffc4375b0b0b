"""An installation on a real Kafka: configuration, database, commands, and an analyzer in this thread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from analyzer.build import build
from analyzer.config.settings import load
from analyzer.daemon import Daemon
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import buckets
from tests.support.command_line import run_command
from tests.support.configured import source
from tests.support.fresh_databases import migrated_sqlite
from tests.support.servers.kafka import GivenKafka, NativeKafka
from tests.support.waiting import wait_until

RealKafka = NativeKafka | GivenKafka
CONFIGURATION = """
[database]
url = "sqlite:///{folder}/gatelock.db"
[kafka]
bootstrap_servers = "{bootstrap}"
assign = "all"
options = {{ metadata_max_age_ms = {metadata_ms} }}
"""


class Installation:
    """A configuration and a database, on which analyzers are started and stopped one after another."""

    def __init__(
        self, folder: Path, bootstrap: str, topics: Sequence[str], *, metadata_ms: int = 500
    ) -> None:
        self.topic = topics[0]
        self.file = folder / "gatelock.toml"
        configuration = CONFIGURATION.format(folder=folder, bootstrap=bootstrap, metadata_ms=metadata_ms)
        self.file.write_text(configuration + "".join(map(source, topics)))
        self.settings = load(self.file)
        migrated_sqlite(folder)
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

    def close(self) -> None:
        self.stop()
        self.engine.dispose()

    def run_until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Runs the analyzer until `condition` is true; fails after `seconds`.

        The analyzer has four fifths of the time: some conditions run a command, and longer than a turn.
        """
        daemon, deadline_s = self.daemon or self.start(), time.monotonic() + seconds
        while True:
            began_s = time.monotonic()
            if condition():
                return
            ended_s = time.monotonic()
            assert ended_s < deadline_s, (self.open_gaps(), daemon.pipeline.source.problems())
            while True:
                time.sleep(daemon.run_once())
                if time.monotonic() - ended_s >= 4 * (ended_s - began_s):
                    break

    def counted(self) -> set[str]:
        """Returns the keys that were counted, each once: every record has a different one."""
        with self.engine.connect() as db:
            rows = db.execute(sa.select(buckets.c.key, buckets.c.value_0))
            found = dict(tuple(row) for row in rows)
        assert set(found.values()) <= {1}, "nothing is counted twice"
        return {key.removeprefix("api_key:") for key in found}

    def gatelock(self, *arguments: str) -> Any:
        result = run_command(["--config", str(self.file), *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def open_gaps(self) -> dict[str, tuple[str, int, int | None]]:
        """Returns kind and range of each open gap by partition."""
        result = self.gatelock("upkeep", "sources", "list", "--gaps", "--json")
        rows = [json.loads(line) for line in result.output.splitlines()]
        assert result.exit_code == (1 if rows else 0)
        return {row["partition"]: (row["kind"], row["start"], row["end"]) for row in rows}

    def accept(self, number: int | str, to: str, reason: str = "it is gone") -> Any:
        return self.gatelock(
            "upkeep", "sources", "resume", f"{self.topic}[{number}]", "--to", to, "--reason", reason, "--yes"
        )

    def audit(self) -> dict[str, Any]:
        """Returns the output of `gatelock billing audit`; checks that its numbers are equal."""
        result = self.gatelock("billing", "audit", "--json")
        found: dict[str, Any] = json.loads(result.output)
        assert (result.exit_code, found["equal"]) == (0, True)
        return found

    def skipped(self) -> dict[int, int]:
        """Returns the number of skipped offsets by partition."""
        return {row["partition"]: row["skipped"] for row in self.audit()["partitions"] if row["skipped"]}

    def acts(self) -> list[dict[str, str]]:
        """Returns the audit log of manual acts, the latest first, without changes of the plan."""
        events = [
            json.loads(line)
            for line in self.gatelock("upkeep", "events", "list", "--json").output.splitlines()
        ]
        return [event for event in events if event["act"] != "plan put in force"]


def write(kafka: RealKafka, topic: str, partition: int, begin: int, count: int = 10) -> set[str]:
    """Writes one batch of records; returns their keys."""
    (batch,) = fill(kafka, topic, [partition], 1, begin, count)[partition]
    return batch


def fill(
    kafka: RealKafka, topic: str, partitions: Iterable[int], batches: int, begin: int = 0, count: int = 10
) -> dict[int, list[set[str]]]:
    """Writes batches of `count` records to each partition; returns the keys of each batch."""
    keys = {
        partition: [
            [f"{topic}-{partition}-{n}" for n in range(at, at + count)]
            for at in range(begin, begin + batches * count, count)
        ]
        for partition in partitions
    }
    # A long linger, and a topic that is known before, so that a batch is not sent in parts.
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 60_000})
    producer.list_topics(topic, 30)
    now_ms = int(time.time() * 1000)
    for batch in range(batches):
        for partition in keys:
            for key in keys[partition][batch]:
                producer.produce(topic, json.dumps({"ts": now_ms, "key": key}), partition=partition)
        assert producer.flush(30) == 0
    return {partition: [set(batch) for batch in keys[partition]] for partition in keys}


def delete_topic(admin: KafkaAdminClient, topic: str) -> None:
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics())


def create_again(admin: KafkaAdminClient, topic: str, partitions: int) -> None:
    options = {"num_partitions": partitions, "replication_factor": 1}
    admin.create_topics({topic: options}, wait_for_metadata=True)
