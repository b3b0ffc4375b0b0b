"""Decompression bombs on a real broker: their partitions stop, the others continue, memory stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.bombs import PACKERS, bomb
from tests.support.kafka_log import produce, produce_as_is
from tests.support.servers.kafka import GivenKafka, NativeKafka

# Snappy compresses to 1 in 21 at best, and a broker bounds the size of a batch.
MEGABYTES = {"gzip": 512, "snappy": 96, "lz4": 512, "zstd": 512}
GROWN_MEGABYTES_MAX = 100
GOOD = len(PACKERS)  # the partition without a bomb
LINES = [b'{"ts": 1795216000, "key": "acme"}'] * 10

# The whole analyzer, in a separate process, so that its peak memory can be measured.
ANALYZER = """
import sys, time
from pathlib import Path
import json

from analyzer.build import build, opened
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.config.settings import load
from analyzer.kernel.database.migrate import upgrade

def megabytes(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what)) // 1024

settings = load(Path(sys.argv[1]))
upgrade(settings.database.address)
with opened(settings) as engine:
    health = Health(Metrics("0"), time.monotonic)
    daemon = build(settings, engine, health)
    source = daemon.pipeline.source
    before = 0
    for step in sys.stdin:
        (stopped, *wanted), deadline = json.loads(step), time.monotonic() + 60
        while time.monotonic() < deadline:
            daemon.run_once()
            now = {part.number: offset for part, offset in source.positions().items()}
            problems = dict(source.problems())
            if [now.get(number) for number in range(len(wanted))] == wanted and len(problems) >= stopped:
                break
        print(json.dumps({"at": now, "problems": problems, "grown": megabytes("VmHWM") - before}), flush=True)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present size
        before = megabytes("VmHWM")
    daemon.close()
"""


class Running:
    """A process that reads up to given offsets, and reports its problems and its growth."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read_to(self, *offsets: int, stopped: int = 0) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([stopped, *offsets]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the analyzer has ended"
        result: dict[str, Any] = json.loads(line)
        assert result["at"] == {str(number): offset for number, offset in enumerate(offsets)}, result
        return result


@contextmanager
def analyzer(bootstrap: str, topic: str, folder: Path) -> Iterator[Running]:
    config = folder / "gatelock.toml"
    config.write_text(f"""
        database = {{ url = "sqlite:///{folder}/gatelock.db" }}
        kafka    = {{ bootstrap_servers = "{bootstrap}", assign = "all" }}
        [[sources]]
        topic  = "{topic}"
        fields = {{ time = {{ path = "ts", unit = "s" }}, api_key = "key" }}
    """)
    command = [sys.executable, "-c", ANALYZER, str(config)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Running(process)


def test_a_bomb_stops_only_its_partition_and_takes_little_memory(
    real_kafka: NativeKafka | GivenKafka, tmp_path: Path
) -> None:
    partitions = range(GOOD + 1)
    topic = real_kafka.create_topic(partitions=len(partitions), configs={"max.message.bytes": 8_000_000})
    with analyzer(real_kafka.bootstrap, topic, tmp_path) as running:
        for partition in partitions:
            produce(real_kafka, topic, LINES, partition=partition)
        assert running.read_to(10, 10, 10, 10, 10)["problems"] == {}
        for partition, codec in enumerate(PACKERS):
            produce_as_is(real_kafka, topic, partition, bomb(codec, MEGABYTES[codec]))
        for partition in partitions:
            produce(real_kafka, topic, LINES, partition=partition)
        result = running.read_to(10, 10, 10, 10, 20, stopped=GOOD)
        assert result["grown"] < GROWN_MEGABYTES_MAX
        produce(real_kafka, topic, LINES, partition=GOOD)
        result = running.read_to(10, 10, 10, 10, 30, stopped=GOOD)
        assert result["problems"].keys() == {f"{topic}[{number}]" for number in range(GOOD)}
        for why in result["problems"].values():
            assert "expands beyond" in why
            assert "offset 10" in why
