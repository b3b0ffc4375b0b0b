"""A simple counter with kafka-python: poll, decode, add up in a dict. No database.

Usage: kafka_python_loop.py BOOTSTRAP TOPIC PARTITIONS RECORDS
"""

from __future__ import annotations

import sys
import time

import msgspec
from kafka import KafkaConsumer, TopicPartition


class Request(msgspec.Struct):
    ts: int
    key: str
    bytes: int


def main() -> None:
    bootstrap, topic, partitions, records = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    decode = msgspec.json.Decoder(Request).decode
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    parts = [TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    counts: dict[tuple[str, int], list[int]] = {}
    seen, cpu_s = 0, 0.0
    while seen < records:
        for batch in consumer.poll(timeout_ms=200).values():
            cpu_s = (
                cpu_s or time.process_time()
            )  # from the first record on: starting up is not what is measured
            for record in batch:
                request = decode(record.value)
                at = (request.key, request.ts // 60_000)
                entry = counts.get(at)
                if entry is None:
                    counts[at] = [1, request.bytes]
                else:
                    entry[0] += 1
                    entry[1] += request.bytes
            seen += len(batch)
    print(time.process_time() - cpu_s, sum(entry[0] for entry in counts.values()))


if __name__ == "__main__":
    main()
