"""Seconds from a SIGKILL until records are counted again, at default settings.

Counted either by the killed analyzer, restarted, or by the others of its consumer group.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from confluent_kafka import Producer

from tests.benchmarks.analyzers import Analyzer, Watched, running, watched
from tests.benchmarks.ingest import Shape, configuration
from tests.benchmarks.producers import producing
from tests.benchmarks.servers import Servers

COUNTED_MAX_S = 40.0
PARTITIONS = Shape().partitions


def run(servers: Servers, rounds: int = 5) -> None:
    alone = [_gap_s(servers, 1, _restart) for _ in range(rounds)]
    group = [_gap_s(servers, 3, _kill_first) for _ in range(rounds)]
    print("from SIGKILL until every partition is counted again, s; session time-out 6 s")
    print(f"  one analyzer, restarted at once    {_summary(alone)}")
    print(f"  the others of a group of three     {_summary(group)}")


def _summary(gaps_s: list[float]) -> str:
    return f"max {max(gaps_s):.1f}   each {', '.join(f'{gap:.1f}' for gap in sorted(gaps_s))}"


def _restart(analyzers: list[Analyzer], start: Callable[[], Analyzer]) -> None:
    analyzers[0].kill()
    analyzers[0] = start()


def _kill_first(analyzers: list[Analyzer], _start: Callable[[], Analyzer]) -> None:
    analyzers.pop(0).kill()


def _gap_s(servers: Servers, count: int, kill: Callable[..., None]) -> float:
    """Returns the time from the kill until a record written after it is counted in every partition."""
    database, topic = servers.postgres.new_database(), servers.kafka.create_topic(partitions=PARTITIONS)
    config = servers.folder / f"takeover-{time.time_ns()}.toml"
    config.write_text(configuration(Shape(), database, servers.kafka.bootstrap, topic))
    with producing(servers) as producer, running(config, count) as analyzers, watched(database) as store:
        written = _one_each(producer, topic)
        store.wait_for(written, COUNTED_MAX_S)
        _settle(store, producer, topic)
        written = store.total()
        began_s = time.monotonic()
        kill(analyzers, lambda: Analyzer(config))
        written += _one_each(producer, topic)
        store.wait_for(written, COUNTED_MAX_S)
        return time.monotonic() - began_s


def _settle(store: Watched, producer: Producer, topic: str) -> None:
    """Returns once three rounds of records were counted quickly: the group is stable."""
    quick = 0
    while quick < 3:
        took_s = store.wait_for(store.total() + _one_each(producer, topic), COUNTED_MAX_S)
        quick = quick + 1 if took_s < 1 else 0
        time.sleep(1.0)


def _one_each(producer: Producer, topic: str) -> int:
    record = json.dumps({"ts": int(time.time() * 1000), "key": "acct", "bytes": 1})
    for number in range(PARTITIONS):
        producer.produce(topic, record, partition=number)
    producer.flush()
    return PARTITIONS
