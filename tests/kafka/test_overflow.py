"""More callers than the cardinality limit:

the log alone decides which are counted by name, not on the analyzers.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.counting.counter.caller_budget import OVERFLOW
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.model import Partition, Record, Records
from analyzer.kernel.tables.schema import buckets
from analyzer.maintenance.audit import audit
from tests.oracle.counter.slow_counter import SlowCounter
from tests.support.configured import daily, source
from tests.support.counting import mapping_of
from tests.support.kafka_log import produce
from tests.support.running import Analyzer
from tests.support.servers.kafka import GivenKafka, NativeKafka
from tests.support.waiting import wait_until

RealKafka = NativeKafka | GivenKafka
PARTITIONS, STEPS, RECORDS = 4, 6, 1_200  # records per partition and step
NAMES_MAX = 60
HOUR_MS = 3_600_000
WAIT_S_MAX = 120.0
KAFKA = """
[kafka]
bootstrap_servers = "{kafka}"
group_id = "{topic}"
session_timeout = "2s"
"""


def values_of_steps(now_ms: int, chance: random.Random) -> list[list[bytes]]:
    """Returns what each step writes to one partition: three hours, regular callers, many that call once."""
    steps: list[list[bytes]] = []
    for step in range(STEPS):
        at_ms = now_ms - (STEPS - step) * HOUR_MS // 2
        regulars = [f"regular-{n}" for n in range(step * 10, step * 10 + 80)]
        callers = [
            chance.choice(regulars) if chance.random() < 0.4 else f"once-{chance.getrandbits(48)}"
            for _ in range(RECORDS)
        ]
        times_ms = [at_ms - chance.choice([0, 0, 0, HOUR_MS]) for _ in callers]
        steps.append([
            json.dumps({"ts": ms, "key": caller}).encode()
            for ms, caller in zip(times_ms, callers, strict=True)
        ])  # fmt: skip
    return steps


def reference_counts(partitions: Sequence[Sequence[bytes]], now_ms: int) -> Tally[tuple[str, int]]:
    """Returns the counts of the slow counter, which is fed each partition at once."""
    rows: Tally[tuple[str, int]] = Tally()
    for number, values in enumerate(partitions):
        part = Partition("c", "t", number, "log", "log")
        counter = SlowCounter({"log": mapping_of(callers_max=NAMES_MAX)}, ["caller"], [])
        items = [Record(offset, now_ms, value) for offset, value in enumerate(values)]
        counter.feed(Records.of(part, 0, len(items), items))
        for row in counter.drain().rows:
            rows[row.key, row.bucket_s] += row.value
    return rows


@pytest.fixture
def start(real_kafka: RealKafka, migrated_url: str, tmp_path: Path) -> Iterator[Callable[[str], Analyzer]]:
    started: list[Analyzer] = []

    def start(topic: str) -> Analyzer:
        text = KAFKA.format(kafka=real_kafka.bootstrap, topic=topic)
        text += source(topic, callers_per_hour=NAMES_MAX) + daily(500)
        started.append(Analyzer(tmp_path, f"analyzer-{len(started)}", text, migrated_url))
        return started[-1]

    yield start
    for analyzer in started:
        analyzer.end()


@pytest.mark.deep("four analyzers that are killed and stopped")
@pytest.mark.parametrize("database", ["postgresql"])
def test_analyzers_that_die_and_freeze_name_the_same_callers_as_one_alone(
    real_kafka: RealKafka, migrated_url: str, start: Callable[[str], Analyzer]
) -> None:
    seed = random.Random().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    now_ms = int(time.time() * 1000)
    written = [values_of_steps(now_ms, chance) for _ in range(PARTITIONS)]
    topic = real_kafka.create_topic(partitions=PARTITIONS)
    engine = open_engine(migrated_url)
    first, second = start(topic), start(topic)

    def wait_for(counted: int) -> None:
        wait_until(
            lambda: audit(engine).counted >= counted,
            WAIT_S_MAX,
            lambda: (audit(engine).counted, first.log[-3:], second.log[-3:]),
        )

    for step in range(STEPS):
        for partition in range(PARTITIONS):
            produce(real_kafka, topic, written[partition][step], partition)
        wait_for(PARTITIONS * RECORDS * step + RECORDS // 2)
        if step in (1, 3):
            first.kill()
            first = start(topic)
        elif step == 2:
            second.process.send_signal(signal.SIGSTOP)
        elif step == 4:
            second.process.send_signal(signal.SIGCONT)
    wait_for(PARTITIONS * STEPS * RECORDS)

    with engine.connect() as db:
        found = db.execute(sa.select(buckets.c.key, buckets.c.bucket_s, buckets.c.value_0))
        rows = Tally({(key, bucket_s): value for key, bucket_s, value in found})
    ledger = audit(engine)
    engine.dispose()
    expected = reference_counts([[value for step in steps for value in step] for steps in written], now_ms)
    assert rows == expected
    assert ledger.equal
    assert rows.total() == PARTITIONS * STEPS * RECORDS
    overflow = sum(value for (key, _), value in rows.items() if key == OVERFLOW)
    assert ledger.overflow == overflow > rows.total() // 10, "the budget was used up"
    named = len({(key, bucket_s // 3600) for key, bucket_s in rows if key != OVERFLOW})
    assert named < 3 * NAMES_MAX * PARTITIONS * (STEPS // 2 + 2)
