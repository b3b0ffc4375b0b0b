"""Writes records straight to the broker, and remembers what it wrote: the truth."""

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

MINUTE_S = 60
FUTURE_S, PAST_S = 5 * 60, 35 * 86_400  # ahead of its Kafka time, or behind it, a record is not counted
ADMIN_S = 30.0  # for a broker that was killed to be back


class Place(NamedTuple):
    """What a record is counted under."""

    caller: str
    denied: bool
    minute_s: int


@dataclass(slots=True)
class Truth:
    """What must be found in the end: counted, dead and late."""

    counts: Counter[Place] = field(default_factory=Counter)
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

    def add(self, other: Truth) -> None:
        self.counts.update(other.counts)
        self.dead += other.dead
        self.late += other.late


class Line(NamedTuple):
    value: bytes
    kafka_ms: int


@dataclass(slots=True)
class Traffic:
    """One shipper with a clock that may be wrong. It writes as many records as were released, at most
    `rate` of them a second; or without end, when none were ever asked to be released."""

    bootstrap: str
    topic: str
    partitions: int
    random: Random
    rate: int = 1_500
    callers: int = 300
    ours: Truth = field(default_factory=Truth)
    others: list[Truth] = field(default_factory=list)  # of shippers in other threads than ours
    clock_off_s: float = 0.0  # how far the clock of the requests is ahead of the one of the records
    both_off_s: float = 0.0  # how far both are
    released: float = float("inf")
    written: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _refused: list[str] = field(default_factory=list)

    @property
    def truth(self) -> Truth:
        """What must have been counted, once nobody writes any more."""
        whole = Truth()
        for part in (self.ours, *self.others):
            whole.add(part)
        return whole

    def start(self) -> None:
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing more is written, and everything written has been acknowledged."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        assert not self._refused, self._refused[:3]

    def release(self, records: int) -> None:
        """Let so many more be written."""
        self.released = records if self.released == float("inf") else self.released + records

    def wait_until_written(self, within_s: float = 120.0) -> None:
        until_s = time.monotonic() + within_s
        while self.written < self.released:
            assert time.monotonic() < until_s, f"{self.written} of {self.released} written"
            time.sleep(0.01)

    def _write(self) -> None:
        producer = self.producer({
            "linger.ms": 20,
            "enable.idempotence": True,  # retries must not write twice: our truth counts once
        })  # fmt: skip
        looked_s = time.monotonic()
        may = 0.0
        while not self._stop.is_set():
            now_s = time.monotonic()
            may, looked_s = min(may + (now_s - looked_s) * self.rate, self.rate / 5), now_s
            for _ in range(int(min(may, self.released - self.written))):
                self.send(producer, self.line(self.ours, self.random), self.random)
                self.written += 1
                may -= 1
            producer.poll(0)
            time.sleep(0.01)
        assert producer.flush(60) == 0

    def producer(self, more: dict[str, object]) -> Producer:
        quick = {"reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 500, "log_level": 0}
        return Producer({"bootstrap.servers": self.bootstrap, "compression.type": "zstd", **quick, **more})

    def send(self, producer: Producer, line: Line, random: Random) -> None:
        to = random.randrange(self.partitions)
        producer.produce(
            self.topic, line.value, partition=to, timestamp=line.kafka_ms, on_delivery=self._said
        )

    def _said(self, error: object, _message: object) -> None:
        if error is not None:
            self._refused.append(str(error))

    def line(self, truth: Truth, random: Random) -> Line:
        """One record of now, entered into `truth` as it must be counted."""
        # Of every other request: a partition stops at a thousand rejected records without one between them.
        off_s = self.clock_off_s if random.random() < 0.5 else 0.0
        kafka_s = time.time() + self.both_off_s
        kafka_ms, event_ms = int(kafka_s * 1000), int((kafka_s + off_s) * 1000)
        if random.random() < 0.001:
            truth.dead += 1
            return Line(b"\xff not a record", kafka_ms)
        key = f"caller-{int(self.callers * random.random() ** 3):03}"
        denied = random.random() < 0.05
        if off_s > FUTURE_S:
            truth.dead += 1
        elif off_s < -PAST_S:
            truth.late += 1
        else:
            minute_s = event_ms // 1000 // MINUTE_S * MINUTE_S
            truth.counts[Place(f"api_key:{key}", denied, minute_s)] += 1
        value = {"ts": event_ms, "key": key, "status": 429 if denied else 200}
        return Line(json.dumps(value).encode(), kafka_ms)

    # --------------------------------------------------------------------------- what other shippers do

    @contextmanager
    def transaction(self, records: int, random: Random, *, commit: bool) -> Iterator[None]:
        """Records that are to be counted when their transaction was committed, at the end, and never if it
        is aborted."""
        producer = self.producer({"transactional.id": f"shipper-{random.randrange(10**9)}", "linger.ms": 5})
        producer.init_transactions(ADMIN_S)
        producer.begin_transaction()
        truth = Truth()
        for _ in range(records):
            self.send(producer, self.line(truth, random), random)
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
            self.others.append(truth)

    def send_again(self, records: int, random: Random) -> None:
        """A shipper that was restarted writes its last lines twice; to Kafka these are other records, and
        each record is counted."""
        truth = Truth()
        lines = [self.line(truth, random) for _ in range(records)]
        for _ in range(2):
            self._send_all(lines, truth, random)

    def send_unreadable(self, records: int, random: Random) -> None:
        line = Line(b'{"ts": "soon", "key": ', int(time.time() * 1000))
        self._send_all([line] * records, Truth(dead=records), random)

    def _send_all(self, lines: Sequence[Line], truth: Truth, random: Random) -> None:
        producer = self.producer({"linger.ms": 5, "enable.idempotence": True})
        for line in lines:
            self.send(producer, line, random)
        assert producer.flush(ADMIN_S) == 0
        self.others.append(truth)
