"""The witness of the chain in a compacted topic, for analyzers on several hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError

from analyzer.kernel.database.chain import Tip
from analyzer.kernel.errors import WitnessAway
from analyzer.sources.kafka.options import Options, admin_options, probe_options

# Of records. Two that are written in the wrong order have different ones, so that compaction keeps both.
KEYS = 64
ANSWER_S = 20.0
COMPACTED = {"cleanup.policy": "compact"}


class TopicWitness:
    """The last entries of the chain in a topic with one partition, which is created compacted.

    Args:
        topic: Its name.
        options: Of kafka-python's clients.
    """

    def __init__(self, topic: str, options: Options) -> None:
        self._topic = topic
        self._options = probe_options({**options, "fetch_min_bytes": 1})

    def seen(self) -> Tip | None:
        """Returns the newest tip in the topic; None without one. Raises WitnessAway."""
        with self._errors(), closing(KafkaConsumer(**self._options)) as consumer:
            if not consumer.partitions_for_topic(self._topic):
                return None
            part = TopicPartition(self._topic, 0)
            consumer.assign([part])
            consumer.seek_to_beginning(part)
            end, newest = consumer.end_offsets([part])[part], None
            deadline_s = time.monotonic() + ANSWER_S
            while consumer.position(part) < end:
                for record in consumer.poll(timeout_ms=500).get(part, ()):
                    tip = Tip.parse(record.value or b"")
                    newest = tip if newest is None or tip.rank > newest.rank else newest
                if time.monotonic() > deadline_s:
                    raise WitnessAway(
                        f"the topic {self._topic} was not read to its end within {ANSWER_S:g} s"
                    )
            return newest

    def note(self, tip: Tip) -> None:
        """Writes a tip, and creates the topic for the first one. Raises WitnessAway."""
        with self._errors():
            self._create()
            with closing(KafkaProducer(**self._producer_options())) as producer:
                written = producer.send(
                    self._topic, key=str(tip.number % KEYS).encode(), value=tip.text().encode(), partition=0
                )
                written.get(ANSWER_S)

    def _create(self) -> None:
        with closing(KafkaAdminClient(**admin_options(self._options))) as admin:
            if self._topic in admin.list_topics():
                return
            topic = NewTopic(self._topic, num_partitions=1, replication_factor=-1, topic_configs=COMPACTED)
            with suppress(TopicAlreadyExistsError):  # by another process
                admin.create_topics([topic])

    def _producer_options(self) -> dict[str, Any]:
        known = KafkaProducer.DEFAULT_CONFIG.keys()
        own = {name: value for name, value in self._options.items() if name in known}
        return {**own, "acks": "all", "enable_idempotence": True}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (KafkaError, ValueError) as error:
            raise WitnessAway(f"the topic {self._topic}: {error}") from error
