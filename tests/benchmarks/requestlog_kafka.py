"""CPU of one request under uvicorn: an application that does nothing, with a guard, and a log to Kafka."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import psutil
from confluent_kafka import Consumer, TopicPartition

from tests.benchmarks.http_load import one_round
from tests.benchmarks.servers import Servers
from tests.support.servers.child import accepts, free_port

APPS = ("bare", "Guard", "Guard + RequestLog, KafkaSink", "Guard + RequestLog, ConfluentSink")
PARTITIONS = 4


@contextmanager
def served(name: str, kafka: str, topic: str) -> Iterator[tuple[psutil.Process, int]]:
    """Starts the application, and stops it so that it writes the records that wait."""
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.logged_apps", name, str(port), kafka, topic]
    child = subprocess.Popen(command)
    try:
        end_s = time.monotonic() + 30
        while not accepts(port):
            assert child.poll() is None, f"{name} did not start"
            assert time.monotonic() < end_s, f"{name} did not start"
            time.sleep(0.05)
        yield psutil.Process(child.pid), port
    finally:
        child.terminate()
        child.wait(15)


def records_in(kafka: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "count"})
    parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts]
    consumer.close()
    return sum(ends)


def run(servers: Servers, rounds: int = 7, seconds: float = 3.0) -> None:
    kafka = servers.kafka.bootstrap
    topics = {name: servers.kafka.create_topic(partitions=PARTITIONS) for name in APPS}
    took: dict[str, list[float]] = {name: [] for name in APPS}
    requests = dict.fromkeys(APPS, 0)
    with ExitStack() as stack:
        running = {name: stack.enter_context(served(name, kafka, topics[name])) for name in APPS}
        for number in range(1 + rounds):  # in turn, so that a busy moment hits them alike
            for name, (process, port) in running.items():
                seen = one_round(process, port, seconds if number else 1.0)
                requests[name] += seen.responses + 1  # a load begins with a request for the size of responses
                if number:  # the first round connects the producers
                    took[name].append(seen.cpu_us)
    print(f"CPU of one request under uvicorn, all threads, median of {rounds} rounds of {seconds:g} s")
    for name, each_us in took.items():
        ratio = median(us / bare for us, bare in zip(each_us, took["bare"], strict=True))
        lost = requests[name] - records_in(kafka, topics[name]) if "Log" in name else 0
        print(f"  {name:34} {median(each_us):6.0f} us   of bare: {ratio:.2f}   records lost: {lost}")
