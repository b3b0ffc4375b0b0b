"""A Kafka that needs no installing: the mock cluster in librdkafka's wheel, in a process of its own.

It speaks the real protocol over real sockets and keeps 5 MB a partition in memory: enough for a
demonstration, no more. Prints its address and lives until its parent is gone.
"""

from __future__ import annotations

import sys

API_VERSION = "2.3"  # what kafka-python must be told: the mock's answer to newer questions cannot be read
CODEC = "lz4"  # and at that version there is no zstd


def main() -> None:
    try:
        from confluent_kafka import Producer
    except ImportError:
        sys.exit(
            "the demonstration's own broker needs confluent-kafka: install gatelock[demo], or give --kafka"
        )
    cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    address = next(iter(cluster.list_topics(timeout=10).brokers.values()))
    sys.stdout.write(f"{address.host}:{address.port}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the other end of the pipe is closed, however that came about


if __name__ == "__main__":
    main()
