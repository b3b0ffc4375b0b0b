"""A simple counter with kafka-python and SQLAlchemy: poll, decode, add up, upsert each second.

No checks; offsets are committed to Kafka, and a crash loses or repeats a second.

Usage: kafka_python_sqlalchemy.py BOOTSTRAP TOPIC PARTITIONS RECORDS URL
"""

from __future__ import annotations

import sys
import time

import msgspec
import sqlalchemy as sa
from kafka import KafkaConsumer, TopicPartition
from sqlalchemy.dialects.postgresql import insert

FLUSH_EVERY_S = 1.0

counts_table = sa.Table(
    "counts",
    sa.MetaData(),
    sa.Column("caller", sa.Text, primary_key=True),
    sa.Column("minute", sa.BigInteger, primary_key=True),
    sa.Column("n", sa.BigInteger),
    sa.Column("bytes", sa.BigInteger),
)


class Request(msgspec.Struct):
    ts: int
    key: str
    bytes: int


def flush(engine: sa.Engine, counts: dict[tuple[str, int], list[int]]) -> None:
    added = insert(counts_table)
    joined = {name: counts_table.c[name] + added.excluded[name] for name in ("n", "bytes")}
    rows = [
        {"caller": caller, "minute": minute, "n": entry[0], "bytes": entry[1]}
        for (caller, minute), entry in counts.items()
    ]
    with engine.begin() as db:
        db.execute(added.on_conflict_do_update(index_elements=counts_table.primary_key, set_=joined), rows)
    counts.clear()


def main() -> None:
    bootstrap, topic, partitions, records, url = (
        *sys.argv[1:3],
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5],
    )
    engine = sa.create_engine(url)
    counts_table.create(engine)
    decode = msgspec.json.Decoder(Request).decode
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    parts = [TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    counts: dict[tuple[str, int], list[int]] = {}
    seen, cpu_s, flushed_s = 0, 0.0, time.monotonic()
    while seen < records:
        for batch in consumer.poll(timeout_ms=200).values():
            cpu_s = cpu_s or time.process_time()  # from the first record on: starting up is not measured
            for record in batch:
                request = decode(record.value)
                entry = counts.setdefault((request.key, request.ts // 60_000), [0, 0])
                entry[0] += 1
                entry[1] += request.bytes
            seen += len(batch)
        if counts and time.monotonic() - flushed_s >= FLUSH_EVERY_S:
            flush(engine, counts)
            flushed_s = time.monotonic()
    if counts:
        flush(engine, counts)
    took_s = time.process_time() - cpu_s
    with engine.connect() as db:
        print(took_s, db.execute(sa.select(sa.func.sum(counts_table.c.n))).scalar_one())


if __name__ == "__main__":
    main()
