"""The witness of the chain in a topic of a real broker."""

from __future__ import annotations

from uuid import uuid4

import pytest

from analyzer.kernel.database.chain import Tip
from analyzer.kernel.errors import WitnessAway
from analyzer.sources.kafka.witness_topic import KEYS, TopicWitness
from tests.support.servers.kafka import GivenKafka, NativeKafka


def test_the_newest_tip_is_seen_in_any_order_of_writing(
    real_kafka: NativeKafka | GivenKafka,
) -> None:
    options = {"bootstrap_servers": [real_kafka.bootstrap], **real_kafka.client}
    topic = f"witness-{uuid4().hex[:8]}"
    assert TopicWitness(topic, options).seen() is None
    for tip, newest in [
        (Tip(1, "a"), 1),
        (Tip(3, "c"), 3),
        (Tip(2, "b"), 3),
        (Tip(3 + KEYS, "d"), 3 + KEYS),
        (Tip(2, "e", restored=1), 2),
    ]:
        TopicWitness(topic, options).note(tip)
        seen = TopicWitness(topic, options).seen()
        assert seen is not None
        assert seen.number == newest


def test_a_broker_that_does_not_answer_is_a_sentence() -> None:
    with pytest.raises(WitnessAway, match="the topic witness"):
        TopicWitness("witness", {"bootstrap_servers": ["127.0.0.1:9"]}).seen()
