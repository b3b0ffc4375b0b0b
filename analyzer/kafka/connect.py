"""How a consumer comes about, or in one sentence why it does not."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient

from analyzer.kafka.connection_errors import ConnectionFailures, ConnectionTrouble, cause_of, failures_of
from analyzer.kafka.options import Options


def connect(options: Options) -> tuple[KafkaConsumer, ConnectionFailures]:
    """A consumer that has heard of the cluster, and where its connections say why they fail. Raises Troubled.
    Then nothing of it stays behind: kafka-python leaves a thread and its sockets."""
    made: list[tuple[KafkaNetClient, ConnectionFailures]] = []

    def make(**config: Any) -> KafkaNetClient:
        net = KafkaNetClient(**config)
        made.append((net, failures_of(net)))
        return net

    try:
        consumer = KafkaConsumer(**options, kafka_client=make)
        consumer.bootstrap(timeout_ms=options["bootstrap_timeout_ms"])
    except BaseException as failed:
        for net, _ in made:
            net.close()
        if isinstance(failed, KafkaError):
            known = made[-1][1].last if made else ()
            raise ConnectionTrouble(cause_of(known or [failed], options)) from failed
        raise
    return consumer, made[-1][1]
