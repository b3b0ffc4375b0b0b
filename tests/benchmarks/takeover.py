"""Seconds from a SIGKILL until records are counted again: by the same analyzer, started anew, and by the
others of its group. At default settings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from confluent_kafka import Producer

from tests.benchmarks.analyzers import Analyzer, Watched, running, watched
from tests.benchmarks.servers import Servers
from tests.benchmarks.throughput import CONFIGURATION, PARTITIONS

ANSWER_MAX_S = 40.0


def run(servers: Servers, rounds: int = 5) -> None:
    alone = [_gap(servers, 1, _again) for _ in range(rounds)]
    group = [_gap(servers, 3, _leave) for _ in range(rounds)]
    print("counting again after SIGKILL, s, every partition; session time-out 6 s")
    print(f"  a lone analyzer, started at once   {_told(alone)}")
    print(f"  by the rest of a group of three    {_told(group)}")


def _told(gaps_s: list[float]) -> str:
    return f"max {max(gaps_s):.1f}   each {', '.join(f'{gap:.1f}' for gap in sorted(gaps_s))}"


def _again(analyzers: list[Analyzer], start: Callable[[], Analyzer]) -> None:
    analyzers[0].kill()
    analyzers[0] = start()


def _leave(analyzers: list[Analyzer], _start: Callable[[], Analyzer]) -> None:
    analyzers.pop(0).kill()


def _gap(servers: Servers, count: int, kill: Callable[..., None]) -> float:
    """From the kill to the moment when a record that was written after it is counted in every partition."""
    database, topic = servers.postgres.new_database(), servers.kafka.create_topic(partitions=PARTITIONS)
    config = servers.folder / f"takeover-{time.time_ns()}.toml"
    config.write_text(
        CONFIGURATION.format(
            database=database, kafka=servers.kafka.bootstrap, topic=topic, group=f"takeover-{time.time_ns()}"
        )
    )
    producer = Producer({"bootstrap.servers": servers.kafka.bootstrap, "linger.ms": 0})
    with running(config, count) as analyzers, watched(database) as store:
        made = _one_each(producer, topic)
        store.wait_for(made, ANSWER_MAX_S)
        _settle(store, producer, topic)
        made = store.total()
        began_s = time.monotonic()
        kill(analyzers, lambda: Analyzer(config))
        made += _one_each(producer, topic)
        store.wait_for(made, ANSWER_MAX_S)
        return time.monotonic() - began_s


def _settle(store: Watched, producer: Producer, topic: str) -> None:
    """Until a round of records is counted at once three times: nobody is joining any more."""
    quick = 0
    while quick < 3:
        took_s = store.wait_for(store.total() + _one_each(producer, topic), ANSWER_MAX_S)
        quick = quick + 1 if took_s < 1 else 0
        time.sleep(1.0)


def _one_each(producer: Producer, topic: str) -> int:
    record = json.dumps({"ts": int(time.time() * 1000), "key": "acct", "bytes": 1})
    for number in range(PARTITIONS):
        producer.produce(topic, record, partition=number)
    producer.flush()
    return PARTITIONS
