"""The queue between requests and the log's sink: with a manual clock, then with threads."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence

import pytest

from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.clock import SYSTEM_CLOCK
from gatekeeper.requestlog.background_writer import (
    GATHER_S,
    IDLE_S,
    RETRY_S_MAX,
    BackgroundWriter,
    WriteOutcome,
)
from gatekeeper.requestlog.log_record import LogEntry, LogLine
from gatekeeper.testing import ManualClock
from tests.support.requestlog import MemorySink


def an_entry(number: int = 0) -> LogEntry:
    return LogEntry(number, 0, 200, 0, "GET", f"/{number}", RequestIdentity())


class World:
    def __init__(self, buffer: int = 100) -> None:
        self.clock = ManualClock()
        self.sink = MemorySink()
        self.writer = BackgroundWriter(self.sink, buffer=buffer, clock=self.clock)

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.writer.put(an_entry(number))

    def stored(self) -> list[int]:
        return [int(record["path"][1:]) for record in self.sink.records()]

    @property
    def sums(self) -> tuple[int, int, int]:
        return self.writer.written, self.writer.dropped, self.writer.waiting


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_runs_before_the_first_record(world: World) -> None:
    world.clock.advance(10)
    assert world.sink.calls == 0
    assert world.writer.healthy


def test_records_are_written_in_order_and_soon(world: World) -> None:
    world.put(1, 2, 3)
    assert world.sums == (0, 0, 3)
    world.clock.advance(0)
    assert world.stored() == [1, 2, 3]
    world.put(4)
    world.clock.advance(GATHER_S)
    assert world.sums == (4, 0, 0)


def test_an_idle_writer_polls_less_often(world: World) -> None:
    world.put(1)
    world.clock.advance(10)
    before = world.sink.calls
    world.clock.advance(10)
    assert world.sink.calls - before == round(10 / IDLE_S)
    world.put(2)
    world.clock.advance(IDLE_S)
    assert world.stored() == [1, 2]


def test_every_record_has_a_unique_id(world: World) -> None:
    other = World()
    for writing in (world, other):
        writing.put(*range(50))
        writing.clock.advance(1)
    ids = [record["id"] for written in (world, other) for record in written.sink.records()]
    assert len(set(ids)) == 100


class TestASinkThatFails:
    def test_gets_waiting_records_in_order_after_its_recovery(self, world: World) -> None:
        world.sink.error = OSError("unavailable")
        world.put(1, 2)
        world.clock.advance(30)
        world.put(3)
        assert world.sums == (0, 0, 3)
        assert not world.writer.healthy
        world.sink.error = None
        world.clock.advance(RETRY_S_MAX)
        assert world.stored() == [1, 2, 3]
        assert world.sums == (3, 0, 0)
        assert world.writer.healthy

    def test_is_retried_with_back_off(self, world: World) -> None:
        world.sink.error = OSError("unavailable")
        world.put(1)
        world.clock.advance(60)
        before = world.sink.calls
        world.clock.advance(60)
        assert world.sink.calls - before == 60 / RETRY_S_MAX

    def test_may_take_some_of_the_records(self, world: World) -> None:
        world.sink.room = 2
        world.put(1, 2, 3, 4, 5)
        world.clock.advance(0)
        assert world.stored() == [1, 2]
        world.clock.advance(1)
        assert world.stored() == [1, 2, 3, 4, 5]
        assert len({record["id"] for record in world.sink.records()}) == 5


class TestNoRoom:
    def test_records_without_room_are_dropped_and_counted(self) -> None:
        world = World(buffer=3)
        world.put(1, 2, 3, 4, 5)
        assert world.sums == (0, 2, 3)
        world.clock.advance(1)
        assert world.stored() == [1, 2, 3]
        assert world.sums == (3, 2, 0)

    def test_every_record_is_written_dropped_or_waiting(self) -> None:
        world = World(buffer=7)
        for number in range(500):
            world.sink.room = number % 3
            world.put(number)
            if number % 5 == 0:
                world.clock.advance(0.05)
            assert sum(world.sums) == number + 1
        world.sink.room = 100
        assert world.writer.flush(60)
        assert world.stored() == sorted(set(world.stored()))
        assert world.sums[2] == 0
        assert world.sums[1] > 0

    def test_memory_is_bounded_while_the_sink_fails(self) -> None:
        world = World(buffer=2_500)
        world.sink.error = OSError("unavailable")
        for number in range(10_000):
            world.put(number)
            if number % 100 == 0:
                world.clock.advance(1)
        assert world.writer.waiting <= 2_500 + 1_000
        assert sum(world.sums) == 10_000

    def test_dropped_records_are_logged_once_a_minute(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World(buffer=1)
        with caplog.at_level(logging.WARNING, "gatekeeper"):
            for number in range(550):
                world.put(number, number)
                world.clock.advance(0.2)
        warnings = [message for message in caplog.messages if "dropped" in message]
        assert len(warnings) == 2
        assert "requests came faster than records could be written" in warnings[0]
        assert not world.writer.healthy
        world.clock.advance(61)
        assert world.writer.healthy


def test_a_record_that_cannot_be_encoded_blocks_no_other(world: World) -> None:
    world.put(1)
    world.writer.put(an_entry(2)._replace(fields={"what": object()}))
    world.put(3)
    world.clock.advance(1)
    assert world.stored() == [1, 3]
    assert world.sums == (2, 1, 0)


def test_the_next_record_restarts_a_thread_that_has_ended(world: World) -> None:
    world.sink.error = SystemExit()  # ends a thread: not a subclass of Exception
    world.put(1)
    world.clock.advance(1)
    assert not world.writer.healthy
    world.sink.error = None
    world.clock.advance(5)
    assert world.stored() == []
    world.put(2)
    world.clock.advance(0)
    assert world.stored() == [1, 2]


def test_closing_writes_waiting_records_and_a_later_record_restarts_the_thread(world: World) -> None:
    world.put(1, 2)
    world.writer.close(1)
    assert (world.stored(), world.sink.closed) == ([1, 2], 1)
    world.clock.advance(10)
    world.put(3)
    world.clock.advance(1)
    assert world.stored() == [1, 2, 3]


def test_closing_gives_up_on_a_failing_sink_and_logs_the_number_of_records(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.sink.error = OSError("unavailable")
    world.put(1)
    world.writer.close(3)
    assert world.clock.uptime_s() <= 4
    assert "closed with 1 records unwritten: OSError('unavailable')" in caplog.text
    assert world.sums == (0, 0, 1)


def test_a_buffer_of_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1 record"):
        World(buffer=0)


# -- with threads --------------------------------------------------------------------------------


class Slow(MemorySink):
    """Blocks in every write until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, lines: Sequence[LogLine]) -> WriteOutcome:
        self.go.wait(10)
        return super().write(lines)


def test_no_request_waits_for_a_sink_that_hangs() -> None:
    sink = Slow()
    writer = BackgroundWriter(sink, buffer=1_000, clock=SYSTEM_CLOCK)
    began_s = time.monotonic()
    for number in range(5_000):
        writer.put(an_entry(number))
    assert time.monotonic() - began_s < 5.0  # the sink hangs for ten
    assert writer.dropped >= 3_000
    sink.go.set()
    writer.close(10)
    assert writer.written + writer.dropped == 5_000
    assert len(sink.lines) == writer.written


def test_records_that_several_threads_drop_are_all_counted() -> None:
    sink = Slow()
    writer = BackgroundWriter(sink, buffer=10, clock=SYSTEM_CLOCK)
    threads = [
        threading.Thread(target=lambda: [writer.put(an_entry(number)) for number in range(2_000)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.go.set()
    writer.close(10)
    assert writer.written + writer.dropped == 16_000


def test_a_forked_child_writes_its_records_and_not_its_parents() -> None:
    sink = Slow()
    writer = BackgroundWriter(sink, buffer=100, clock=SYSTEM_CLOCK)
    writer.put(an_entry(1))
    while not writer._lines:  # until the thread is inside the sink, and holds the mutex
        time.sleep(0.001)
    writer.put(an_entry(2))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        sink.go.set()
        writer.put(an_entry(3))
        written = writer.flush(5)
        report = f"{written} {writer.written} {sink.forks} {[record['path'] for record in sink.records()]}"
        os.write(writing, report.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "True 1 1 ['/3']"
    sink.go.set()
    writer.close(5)
    assert [record["path"] for record in sink.records()] == ["/1", "/2"]
