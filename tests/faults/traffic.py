"""A shipper that writes records to the broker and keeps the counts that must result."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from confluent_kafka import KafkaException, Producer

from tests.support.waiting import wait_until

MINUTE_S = 60
# A record further ahead of its Kafka time, or further behind, is not counted.
FUTURE_S, PAST_S = 5 * 60, 35 * 86_400
ADMIN_S = 30.0  # until a killed broker is back


class CountKey(NamedTuple):
    """Key under which requests are counted."""

    caller: str
    denied: bool
    minute_s: int


@dataclass(slots=True)
class ExpectedCounts:
    """Counts that must be found in the end: counted, dead and late."""

    counts: Counter[CountKey] = field(default_factory=Counter)
    # Of requests that were not denied: by caller and second, and the items that each caller asked for.
    seconds: Counter[tuple[str, int]] = field(default_factory=Counter)
    items: set[tuple[str, str, int]] = field(default_factory=set)  # caller, item, minute
    dead: int = 0
    late: int = 0

    @property
    def records(self) -> int:
        return self.counts.total() + self.dead + self.late

    def by_caller(self) -> Counter[tuple[str, bool]]:
        found: Counter[tuple[str, bool]] = Counter()
        for place, n in self.counts.items():
            found[place.caller, place.denied] += n
        return found

    def add(self, other: ExpectedCounts) -> None:
        self.counts.update(other.counts)
        self.seconds.update(other.seconds)
        self.items |= other.items
        self.dead += other.dead
        self.late += other.late


class LogRecord(NamedTuple):
    value: bytes
    kafka_ms: int


@dataclass(slots=True)
class Traffic:
    """One shipper, whose clock may be wrong. It writes as many records as were released, at most `rate` a
    second; without end if `release` is never called."""

    bootstrap: str
    topic: str
    partitions: int
    random: Random
    rate: int = 1_500
    callers: int = 300
    own: ExpectedCounts = field(default_factory=ExpectedCounts)
    extra: list[ExpectedCounts] = field(default_factory=list)  # of other shippers, in other threads
    event_clock_offset_s: float = 0.0  # how far the clock of the requests is ahead of Kafka's
    clock_offset_s: float = 0.0  # how far both clocks are ahead
    released: float = float("inf")
    written: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _failed: list[str] = field(default_factory=list)

    @property
    def expected(self) -> ExpectedCounts:
        """Returns the counts of all shippers, once none of them writes any more."""
        total = ExpectedCounts()
        for part in (self.own, *self.extra):
            total.add(part)
        return total

    def start(self) -> None:
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops writing; every written record has been acknowledged."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        assert not self._failed, self._failed[:3]

    def release(self, records: int) -> None:
        """Allows `records` more to be written."""
        self.released = records if self.released == float("inf") else self.released + records

    def wait_until_written(self, within_s: float = 120.0) -> None:
        wait_until(
            lambda: self.written >= self.released,
            within_s,
            lambda: f"{self.written} of {self.released} written",
        )

    def _write(self) -> None:
        producer = self.producer({
            "linger.ms": 20,
            "enable.idempotence": True,  # retries must not write a record twice
        })  # fmt: skip
        last_s, allowance = time.monotonic(), 0.0
        while not self._stop.is_set():
            now_s = time.monotonic()
            allowance, last_s = min(allowance + (now_s - last_s) * self.rate, self.rate / 5), now_s
            for _ in range(int(min(allowance, self.released - self.written))):
                self.send(producer, self.line(self.own, self.random), self.random)
                self.written += 1
                allowance -= 1
            producer.poll(0)
            time.sleep(0.01)
        assert producer.flush(60) == 0

    def producer(self, more: dict[str, object]) -> Producer:
        quick = {"reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 500, "log_level": 0}
        return Producer({"bootstrap.servers": self.bootstrap, "compression.type": "zstd", **quick, **more})

    def send(self, producer: Producer, line: LogRecord, random: Random) -> None:
        to = random.randrange(self.partitions)
        producer.produce(
            self.topic, line.value, partition=to, timestamp=line.kafka_ms, on_delivery=self._on_delivery
        )

    def _on_delivery(self, error: object, _message: object) -> None:
        if error is not None:
            self._failed.append(str(error))

    def line(self, expected: ExpectedCounts, random: Random) -> LogRecord:
        """Returns one record of now and adds it to `expected` as it must be counted."""
        # Every other record is right: a partition stops at a thousand rejected records in a row.
        off_s = self.event_clock_offset_s if random.random() < 0.5 else 0.0
        kafka_s = time.time() + self.clock_offset_s
        kafka_ms, event_ms = int(kafka_s * 1000), int((kafka_s + off_s) * 1000)
        if random.random() < 0.001:
            expected.dead += 1
            return LogRecord(b"\xff not a record", kafka_ms)
        key = f"caller-{int(self.callers * random.random() ** 3):03}"
        denied, item = random.random() < 0.05, f"item-{int(20 * random.random() ** 2)}"
        if off_s > FUTURE_S:
            expected.dead += 1
        elif off_s < -PAST_S:
            expected.late += 1
        else:
            minute_s = event_ms // 1000 // MINUTE_S * MINUTE_S
            expected.counts[CountKey(f"api_key:{key}", denied, minute_s)] += 1
            if not denied:
                expected.seconds[f"api_key:{key}", event_ms // 1000] += 1
                expected.items.add((f"api_key:{key}", item, minute_s))
        value = {"ts": event_ms, "key": key, "status": 429 if denied else 200, "item": item}
        return LogRecord(json.dumps(value).encode(), kafka_ms)

    # Other shippers

    @contextmanager
    def transaction(self, records: int, random: Random, *, commit: bool) -> Iterator[None]:
        """Writes records in a transaction that ends with the block: counted only if it is committed."""
        producer = self.producer({"transactional.id": f"shipper-{random.randrange(10**9)}", "linger.ms": 5})
        producer.init_transactions(ADMIN_S)
        producer.begin_transaction()
        expected = ExpectedCounts()
        for _ in range(records):
            self.send(producer, self.line(expected, random), random)
        assert producer.flush(ADMIN_S) == 0
        yield
        end = producer.commit_transaction if commit else producer.abort_transaction
        until_s = time.monotonic() + ADMIN_S
        while True:
            try:
                end(ADMIN_S)
                break
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until_s:
                    raise
        if commit:
            self.extra.append(expected)

    def send_again(self, records: int, random: Random) -> None:
        """Writes records twice, as a restarted shipper does: for Kafka these are different records, and each
        one is counted."""
        expected = ExpectedCounts()
        lines = [self.line(expected, random) for _ in range(records)]
        for _ in range(2):
            self._send_all(lines, expected, random)

    def send_unreadable(self, records: int, random: Random) -> None:
        line = LogRecord(b'{"ts": "soon", "key": ', int(time.time() * 1000))
        self._send_all([line] * records, ExpectedCounts(dead=records), random)

    def _send_all(self, lines: Sequence[LogRecord], expected: ExpectedCounts, random: Random) -> None:
        producer = self.producer({"linger.ms": 5, "enable.idempotence": True})
        for line in lines:
            self.send(producer, line, random)
        assert producer.flush(ADMIN_S) == 0
        self.extra.append(expected)
