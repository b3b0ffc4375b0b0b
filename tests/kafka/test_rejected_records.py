"""Rejected records, from the broker to the command that counts them, with real processes."""

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

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import buckets, rejects
from tests.support.command_line import run_command
from tests.support.depth import IS_DEEP
from tests.support.kafka_log import produce
from tests.support.running import Analyzer
from tests.support.servers.kafka import GivenKafka, NativeKafka
from tests.support.waiting import wait_until

RealKafka = NativeKafka | GivenKafka
WAIT_S_MAX = 40.0
RETRIED, KILLS = (1_000, 3) if IS_DEEP else (300, 2)  # records of a partition, and retries
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
# Small transactions, so that there is time to kill the command between two.
IN_SMALL_STEPS = """
from analyzer.flush import retry
from analyzer.faces.cli import main
from tests.support.patches import replace

replace(retry, AT_ONCE=20)
main()
"""
CORRECTED, WRONG = "apikey", "ts"  # which is a number


class World:
    """A topic, a database, and analyzers that start and stop. Each record has a different caller."""

    def __init__(self, kafka: RealKafka, database: str, folder: Path, *, partitions: int, most: int) -> None:
        self.topic = kafka.create_topic(partitions=partitions)
        self._kafka, self._database, self._folder, self._most = kafka, database, folder, most
        self.engine = open_engine(database)
        self.written: set[str] = set()
        self.analyzer: Analyzer | None = None

    def write(self, partition: int, count: int, field: str = "key", *, as_numbers: bool = False) -> None:
        names = [f"{partition}-{len(self.written) + n}" for n in range(count)]
        now_ms = int(time.time() * 1000)
        rows = [{"ts": now_ms, field: n if as_numbers else name} for n, name in enumerate(names)]
        values = [json.dumps(row).encode() for row in rows]
        produce(self._kafka, self.topic, values, partition=partition)
        self.written |= set(names)

    def start(self, apikey: str) -> Analyzer:
        """Starts an analyzer whose mapping reads `apikey` from the field CORRECTED or WRONG."""
        # Under one name: a corrected file is an edit, and comes in force.
        self.analyzer = Analyzer(self._folder, "analyzer", self._configuration(apikey), self._database)
        return self.analyzer

    def _configuration(self, apikey: str) -> str:
        return CONFIGURATION.format(
            kafka=self._kafka.bootstrap, topic=self.topic, apikey=apikey, most=self._most
        )

    def counted(self) -> set[str]:
        with self.engine.connect() as db:
            rows = db.execute(sa.select(buckets.c.key, buckets.c.value_0))
            found = [(key.partition(":")[2], value) for key, value in rows]
        assert all(value == 1 for _, value in found), "nothing is counted twice"
        return {name for name, _ in found}

    def rejected(self) -> int:
        with self.engine.connect() as db:
            return int(db.execute(sa.select(sa.func.count()).select_from(rejects)).scalar_one())

    def wait(self, counted: int, rejected: int) -> None:
        def found() -> tuple[int, int]:
            return len(self.counted()), self.rejected()

        wait_until(
            lambda: found() == (counted, rejected),
            WAIT_S_MAX,
            lambda: (found(), self.analyzer and self.analyzer.log[-5:]),
        )

    @property
    def config(self) -> str:
        """The corrected configuration, for commands."""
        file = self._folder / "commands.toml"
        file.write_text(f'database = {{ url = "{self._database}" }}' + self._configuration(CORRECTED))
        return str(file)

    def begin_retry(self) -> subprocess.Popen[str]:
        words = ["--config", self.config, "upkeep", "rejects", "retry", "--why", "renamed"]
        return subprocess.Popen(
            [sys.executable, "-c", IN_SMALL_STEPS, *words], stdout=subprocess.PIPE, text=True
        )

    def wait_for_progress(self, retry: subprocess.Popen[str]) -> None:
        """Waits until a retry has counted some records, or has ended."""
        before = self.rejected()
        wait_until(lambda: self.rejected() != before or retry.poll() is not None, WAIT_S_MAX, every_s=0.001)

    def run(self, *words: str) -> tuple[int, str]:
        ran = run_command(["--config", self.config, *words])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran.exit_code, ran.stdout

    def gatelock(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        code, output = self.run(*words, "--json")
        return code, [json.loads(line) for line in output.splitlines()]

    def retry(self) -> tuple[int, dict[str, int]]:
        """Returns how many rejected records a retry has counted, and those that are left, by reason."""
        code, [outcome] = self.gatelock("upkeep", "rejects", "retry", "--why", "renamed")
        assert code == 0
        return outcome["counted"], outcome["left"]

    def gap(self, start: int) -> dict[str, Any]:
        """Waits until the only open gap begins at `start`; returns its JSON."""
        found: list[dict[str, Any]] = []

        def is_listed() -> bool:
            code, found[:] = self.gatelock("upkeep", "sources", "list", "--gaps")
            assert code == (1 if found else 0)
            return [row["start"] for row in found] == [start]

        wait_until(
            is_listed, WAIT_S_MAX, lambda: (found, self.analyzer and self.analyzer.problems()), every_s=0.1
        )
        return found[0]

    def audit(self) -> dict[str, Any]:
        code, (audit,) = self.gatelock("billing", "audit")
        assert (code, audit["equal"]) == (0, True)
        return audit

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
    for created in worlds:
        created.close()


@pytest.mark.parametrize("database", ["postgresql"])
def test_too_many_rejected_records_stop_their_partition_until_the_mapping_is_corrected(world: New) -> None:
    """The number in a row is counted across analyzers: the first one is killed after 30.

    Other partitions, of which a record was read, stop for no number of them.
    """
    here = world(partitions=3, most=50)
    for partition in (0, 2):
        here.write(partition, 20)
    first = here.start(WRONG)
    here.write(1, 30, "apikey")
    here.wait(counted=40, rejected=30)
    first.kill()

    here.write(1, 40, "apikey")
    here.write(0, 20)
    second = here.start(WRONG)
    sentence = second.wait_for_problem(f"{here.topic}[1]")
    assert "up to offset 50; the first, at offset 30: bad-caller: b'{" in sentence, "30 and 20 are 50"
    assert "correct the mapping in the configuration" in sentence
    assert f"gatelock upkeep sources resume '{here.topic}[1]' --to next" in sentence
    here.write(2, 60, "apikey")
    here.write(2, 20)
    here.wait(counted=80, rejected=90)
    gap = here.gap(start=30)
    assert (gap["partition"], gap["kind"], gap["end"]) == (f"{here.topic}[1]", "too-many-rejected", 50)
    second.end()

    third = here.start(CORRECTED)
    here.wait(counted=120, rejected=90)
    third.wait_until_ready()
    assert here.gatelock("upkeep", "sources", "list", "--gaps") == (0, [])
    assert here.retry() == (90, {})
    assert here.retry() == (0, {})
    assert here.counted() == here.written
    assert sum(part["counted"] for part in here.audit()["partitions"]) == len(here.written)


@pytest.mark.parametrize("database", ["sqlite"])
def test_records_that_cannot_be_read_are_rejected_once_an_operator_accepts_them(world: New) -> None:
    here = world(partitions=2, most=20)
    here.write(0, 10)
    here.write(1, 45, as_numbers=True)
    here.write(1, 10)
    analyzer = here.start(CORRECTED)
    accept = ["upkeep", "sources", "resume", f"{here.topic}[1]", "--reason", "their mistake", "--yes"]
    assert "up to offset 20; the first, at offset 0" in analyzer.wait_for_problem(f"{here.topic}[1]")
    here.wait(counted=10, rejected=0)
    here.gap(start=0)
    code, output = here.run(*accept, "--to", "next")
    assert code == 0
    assert "reading again; unreadable records up to 20 are rejected one by one" in output
    here.gap(start=20)
    assert "up to offset 40; the first, at offset 20" in analyzer.problems()[f"{here.topic}[1]"]
    here.wait(counted=10, rejected=20)
    assert here.run(*accept, "--to", "45")[0] == 0
    here.wait(counted=20, rejected=45)
    analyzer.wait_until_ready()
    parts = here.audit()["partitions"]
    assert [(part["dead"], part["skipped"]) for part in parts] == [(0, 0), (45, 0)]


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_retry_that_is_killed_again_and_again_counts_each_record_once(world: New) -> None:
    """While an analyzer counts and another retry runs."""
    here = world(partitions=3, most=1_000_000)
    bad = 3 * RETRIED
    for partition in range(3):
        here.write(partition, RETRIED, "apikey")
    here.start(WRONG)
    here.wait(counted=0, rejected=bad)
    assert here.run("policies", "apply")[0] == 0, "a retry counts by the mapping in force"
    killed = 0
    while killed < KILLS:
        process = here.begin_retry()
        here.wait_for_progress(process)
        process.kill()
        process.communicate(timeout=20)
        killed += process.returncode == -9
        here.write(killed % 3, 5)
    assert killed > 1
    for process in [here.begin_retry() for _ in range(2)]:
        process.communicate(timeout=60)
        assert process.returncode == 0
    here.wait(counted=len(here.written), rejected=0)
    assert here.counted() == here.written
    here.audit()
    assert here.retry() == (0, {})
