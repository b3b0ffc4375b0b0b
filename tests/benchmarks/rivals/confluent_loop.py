"""A simple counter with confluent-kafka: counts and offsets in one transaction, and no checks.

No CRC, no protection against a second copy; one unreadable record stops it.

Usage: confluent_loop.py BOOTSTRAP TOPIC PARTITIONS RECORDS DSN
"""

from __future__ import annotations

import sys
import time

import msgspec
import psycopg
from confluent_kafka import Consumer, TopicPartition

TABLES = """
create table counts (caller text, minute bigint, n bigint, bytes bigint, primary key (caller, minute));
create table positions (part int primary key, next bigint)
"""
ADD = """
insert into counts select * from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
on conflict (caller, minute) do update set n = counts.n + excluded.n, bytes = counts.bytes + excluded.bytes
"""
MOVE = """
insert into positions select * from unnest(%s::int[], %s::bigint[])
on conflict (part) do update set next = excluded.next
"""


class Request(msgspec.Struct):
    ts: int
    key: str
    bytes: int


def flush(db: psycopg.Connection, counts: dict[tuple[str, int], list[int]], moved: dict[int, int]) -> None:
    with db.transaction():
        columns = [
            [key for key, _ in counts], [minute for _, minute in counts],
            [entry[0] for entry in counts.values()], [entry[1] for entry in counts.values()],
        ]  # fmt: skip
        db.execute(ADD, columns)
        db.execute(MOVE, [list(moved), list(moved.values())])


def main() -> None:
    bootstrap, topic, partitions, records, dsn = (
        *sys.argv[1:3],
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5],
    )
    decode = msgspec.json.Decoder(Request).decode
    db = psycopg.connect(dsn, autocommit=True)
    db.execute(TABLES)
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 5,  # its default sleeps for a second whenever the queue is full
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    counts: dict[tuple[str, int], list[int]] = {}
    moved: dict[int, int] = {}
    seen, cpu_s, due_s = 0, 0.0, time.monotonic() + 1
    while seen < records or counts:
        for message in consumer.consume(1000, 0.1):
            cpu_s = cpu_s or time.process_time()
            request = decode(message.value())
            at = (request.key, request.ts // 60_000)
            entry = counts.get(at)
            if entry is None:
                counts[at] = [1, request.bytes]
            else:
                entry[0] += 1
                entry[1] += request.bytes
            moved[message.partition()] = message.offset() + 1
            seen += 1
        if counts and (time.monotonic() >= due_s or seen >= records):
            flush(db, counts, moved)
            counts, moved, due_s = {}, {}, time.monotonic() + 1
    total = db.execute("select sum(n) from counts").fetchone()
    print(time.process_time() - cpu_s, total[0] if total else 0)


if __name__ == "__main__":
    main()
