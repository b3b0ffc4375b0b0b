"""A Kafka broker without an installation: the mock cluster in librdkafka's wheel, in a separate process.

It speaks the real protocol over real sockets and keeps 5 MB a partition in memory: enough for a demo, and for
nothing else. Prints its address and ends with its parent.
"""

from __future__ import annotations

import sys

API_VERSION = "2.3"  # has to be set in kafka-python: it cannot read the mock's answers to newer requests
CODEC = "lz4"  # that version has no zstd


def main() -> None:
    try:
        from confluent_kafka import Producer
    except ImportError:
        sys.exit(
            "the demo's broker needs confluent-kafka: pip install 'gatelock[demo]', or give --kafka HOST:PORT"
        )
    cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    address = next(iter(cluster.list_topics(timeout=10).brokers.values()))
    sys.stdout.write(f"{address.host}:{address.port}\n")
    sys.stdout.flush()
    sys.stdin.read()  # returns when the parent closes the pipe, or has ended in any other way


if __name__ == "__main__":
    main()
