"""Alerts as CloudEvents in a topic of a real broker."""

from __future__ import annotations

import json
from contextlib import closing
from uuid import uuid4

import pytest
from kafka import KafkaConsumer

from analyzer.alerts.channels.cloud_events import ContentMode, KafkaChannel
from tests.alerts.test_channels import HOSTILE, event, message
from tests.support.servers.kafka import GivenKafka, NativeKafka

Broker = NativeKafka | GivenKafka


def records(broker: Broker, topic: str, number: int) -> list[tuple[bytes, bytes, dict[str, str]]]:
    """Returns key, value and headers of the first records of a topic."""
    options = {"bootstrap_servers": [broker.bootstrap], **broker.client, "auto_offset_reset": "earliest"}
    found = []
    with closing(KafkaConsumer(topic, consumer_timeout_ms=20_000, **options)) as consumer:
        for record in consumer:
            headers = {name: value.decode() for name, value in record.headers}
            found.append((record.key, record.value, headers))
            if len(found) == number:
                break
    return found


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_messages_are_cloud_events_with_any_name(real_kafka: Broker, mode: ContentMode) -> None:
    topic = f"alerts-{uuid4().hex[:8]}"
    real_kafka.create_topic(topic, partitions=1)
    options = {"bootstrap_servers": [real_kafka.bootstrap], **real_kafka.client}
    channel = KafkaChannel(topic, "gatelock", mode, options)
    for name in HOSTILE:
        result = channel.send(message(event(name)), 0)
        assert result.is_accepted, result.text
    channel.close()
    for (key, value, headers), name in zip(records(real_kafka, topic, len(HOSTILE)), HOSTILE, strict=True):
        assert key.decode() == name
        document = json.loads(value)
        if mode == "binary":
            assert (headers["ce_specversion"], headers["ce_id"]) == ("1.0", "msg_1")
            assert headers["ce_subject"] == name
        else:
            assert headers["content-type"].startswith("application/cloudevents+json")
            assert document["id"] == "msg_1"
        data = document if mode == "binary" else document["data"]
        assert data["events"][0]["about"] == name


def test_a_broker_that_is_away_is_a_result_within_seconds() -> None:
    channel = KafkaChannel("alerts", "gatelock", "binary", {"bootstrap_servers": ["127.0.0.1:9"]})
    result = channel.send(message(event()), 0)
    assert not result.is_accepted
    assert "the topic alerts" in result.text
