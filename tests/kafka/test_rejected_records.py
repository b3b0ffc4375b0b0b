"""Records that cannot be read, from the broker to the command that counts them, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from analyzer.cli import app
from analyzer.store.database.engine import open_engine
from analyzer.store.database.schema import buckets, rejects
from tests.support.kafka_log import produce
from tests.support.running import Analyzer
from tests.support.servers.kafka import GivenKafka, NativeKafka

RealKafka = NativeKafka | GivenKafka
WAIT_S_MAX = 40.0
CONFIGURATION = """
[kafka]
bootstrap_servers = "{kafka}"
group_id = "{topic}"
[[sources]]
topic = "{topic}"
caller = ["key", "apikey"]
stop_after_rejected = {most}
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
key = "key"
apikey = "{apikey}"
"""
# So that there is time to kill it.
IN_SMALL_STEPS = (
    "import analyzer.store.operations.rejects as it; it.AT_ONCE = 20; from analyzer.cli import main; main()"
)
MENDED, WRONG = "apikey", "no such field"


class World:
    """A topic, a database, and analyzers that come and go. Each record has a caller of its own."""

    def __init__(self, kafka: RealKafka, database: str, folder: Path, *, partitions: int, most: int) -> None:
        self.topic = kafka.create_topic(partitions=partitions)
        self._kafka, self._database, self._folder, self._most = kafka, database, folder, most
        self.engine = open_engine(database)
        self.written: set[str] = set()
        self.analyzer: Analyzer | None = None

    def write(self, partition: int, count: int, field: str = "key") -> None:
        names = [f"{partition}-{len(self.written) + n}" for n in range(count)]
        now_ms = int(time.time() * 1000)
        values = [json.dumps({"ts": now_ms, field: name}).encode() for name in names]
        produce(self._kafka, self.topic, values, partition=partition)
        self.written |= set(names)

    def start(self, apikey: str) -> Analyzer:
        """Which field is called apikey: WRONG or MENDED."""
        name = apikey.replace(" ", "-")
        self.analyzer = Analyzer(self._folder, name, self._configuration(apikey), self._database)
        return self.analyzer

    def _configuration(self, apikey: str) -> str:
        return CONFIGURATION.format(
            kafka=self._kafka.bootstrap, topic=self.topic, apikey=apikey, most=self._most
        )

    def counted(self) -> set[str]:
        with self.engine.connect() as db:
            rows = db.execute(sa.select(buckets.c.key, buckets.c.value).where(buckets.c.grouping == "caller"))
            found = [(key.partition(":")[2], value) for key, value in rows]
        assert all(value == 1 for _, value in found), "nothing is counted twice"
        return {name for name, _ in found}

    def set_aside(self) -> int:
        with self.engine.connect() as db:
            return int(db.execute(sa.select(sa.func.count()).select_from(rejects)).scalar_one())

    def wait(self, counted: int, set_aside: int) -> None:
        end_s = time.monotonic() + WAIT_S_MAX
        while (now := (len(self.counted()), self.set_aside())) != (counted, set_aside):
            assert time.monotonic() < end_s, (now, self.analyzer and self.analyzer.log[-5:])
            time.sleep(0.05)

    @property
    def config(self) -> str:
        """The mended configuration, of whoever types commands."""
        file = self._folder / "commands.toml"
        file.write_text(f'database = {{ url = "{self._database}" }}' + self._configuration(MENDED))
        return str(file)

    def begin_retry(self) -> subprocess.Popen[str]:
        words = ["--config", self.config, "rejects", "retry", "--why", "renamed"]
        return subprocess.Popen(
            [sys.executable, "-c", IN_SMALL_STEPS, *words], stdout=subprocess.PIPE, text=True
        )

    def typed(self, *words: str) -> tuple[int, str]:
        ran = CliRunner().invoke(app, ["--config", self.config, *words])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran.exit_code, ran.stdout

    def gatelock(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        code, told = self.typed(*words, "--json")
        return code, [json.loads(line) for line in told.splitlines()]

    def waits(self, start: int) -> dict[str, Any]:
        """What `gaps list` says once it is written down that a partition waits there."""
        end_s = time.monotonic() + WAIT_S_MAX
        while True:
            code, rows = self.gatelock("gaps", "list")
            if [row["start"] for row in rows] == [start]:
                assert code == 1
                return rows[0]
            assert time.monotonic() < end_s, (rows, self.analyzer and self.analyzer.problems())
            time.sleep(0.1)

    def audit(self) -> dict[str, Any]:
        code, (told,) = self.gatelock("audit")
        assert (code, told["equal"]) == (0, True)
        return told

    def close(self) -> None:
        if self.analyzer is not None:
            self.analyzer.end()
        self.engine.dispose()


New = Callable[..., World]


@pytest.fixture
def world(real_kafka: RealKafka, migrated_url: str, tmp_path: Path) -> Iterator[New]:
    worlds = []

    def world(**given: int) -> World:
        worlds.append(World(real_kafka, migrated_url, tmp_path, **given))
        return worlds[-1]

    yield world
    for each in worlds:
        each.close()


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_run_stops_its_partition_until_the_mapping_is_mended_and_nothing_is_lost(world: New) -> None:
    """The run is as long as it is, whoever counts: the first analyzer is killed in the midst of it."""
    here = world(partitions=3, most=50)
    for partition in range(3):
        here.write(partition, 20)
    first = here.start(WRONG)
    here.write(1, 30, "apikey")
    here.wait(counted=60, set_aside=30)
    first.kill()

    here.write(1, 40, "apikey")
    here.write(0, 20)
    second = here.start(WRONG)
    sentence = second.named(f"{here.topic}[1]")
    assert "up to offset 70; the first, at offset 50: bad-caller: b'{" in sentence, "30 and 20 are 50"
    assert "mend the mapping and start the analyzer again" in sentence
    assert f"gatelock gaps accept '{here.topic}[1]' --to next" in sentence
    here.write(2, 20)  # the others go on
    here.wait(counted=100, set_aside=30)
    gap = here.waits(start=50)
    assert (gap["partition"], gap["kind"], gap["end"]) == (f"{here.topic}[1]", "too-many-rejected", 70)
    second.end()

    third = here.start(MENDED)
    here.wait(counted=140, set_aside=30)
    third.well()
    assert here.gatelock("gaps", "list") == (0, [])
    assert here.gatelock("rejects", "retry", "--why", "renamed") == (0, [{"counted": 30, "left": {}}])
    assert here.gatelock("rejects", "retry", "--why", "renamed") == (0, [{"counted": 0, "left": {}}])
    assert here.counted() == here.written
    assert sum(part["counted"] for part in here.audit()["partitions"]) == len(here.written)


@pytest.mark.parametrize("database", ["sqlite"])
def test_what_nobody_can_read_is_set_aside_by_a_decision(world: New) -> None:
    here = world(partitions=2, most=20)
    here.write(0, 10)
    here.write(1, 45, "ap.key")
    here.write(1, 10)
    analyzer = here.start(MENDED)
    accept = ["gaps", "accept", f"{here.topic}[1]", "--reason", "their mistake"]
    assert "up to offset 20; the first, at offset 0" in analyzer.named(f"{here.topic}[1]")
    here.wait(counted=10, set_aside=0)
    here.waits(start=0)
    code, told = here.typed(*accept, "--to", "next")
    assert code == 0
    assert "reading again; unreadable records up to 20 are rejected one by one" in told
    here.waits(start=20)
    assert "up to offset 40; the first, at offset 20" in analyzer.problems()[f"{here.topic}[1]"]
    here.wait(counted=10, set_aside=20)
    assert here.typed(*accept, "--to", "45")[0] == 0
    here.wait(counted=20, set_aside=45)
    analyzer.well()
    parts = here.audit()["partitions"]
    assert [(part["dead"], part["skipped"]) for part in parts] == [(0, 0), (45, 0)]


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_retry_that_is_killed_again_and_again_counts_each_record_once(world: New) -> None:
    """Beside an analyzer that counts, and another retry."""
    here = world(partitions=3, most=1_000_000)
    bad = 3 * 1_000
    for partition in range(3):
        here.write(partition, 1_000, "apikey")
    here.start(WRONG)
    here.wait(counted=0, set_aside=bad)
    killed = 0
    while killed < 3:
        before = here.set_aside()
        process = here.begin_retry()
        while here.set_aside() == before and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        process.communicate(timeout=20)
        killed += process.returncode == -9
        here.write(killed % 3, 5)
    assert killed > 1
    for process in [here.begin_retry() for _ in range(2)]:
        process.communicate(timeout=60)
        assert process.returncode == 0
    here.wait(counted=len(here.written), set_aside=0)
    assert here.counted() == here.written
    here.audit()
    assert here.gatelock("rejects", "retry", "--why", "renamed") == (0, [{"counted": 0, "left": {}}])
