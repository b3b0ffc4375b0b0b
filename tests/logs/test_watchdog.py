"""The watchdog ends a process whose loop hangs, and no other."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator

import pytest

from analyzer.kernel.thread_clocks import WorkClock, own_cpu_clock
from analyzer.watchdog import END_AFTER_S, WARN_AFTER_S, Watchdog
from tests.support.waiting import wait_until


def watch(completions: Iterator[float | None], used_s: float = 0.0) -> list[str]:
    """Runs the watchdog on a loop whose time of completion is the next of `completions` at each tick, until
    they end, and that uses `used_s` of CPU time in each; returns what the watchdog did."""
    ended: list[str] = []
    last: list[float | None] = [None]
    ticks = itertools.count()

    def wait(_seconds: float) -> bool:
        try:
            last[0] = next(completions)
        except StopIteration:
            return True
        return False

    Watchdog(
        lambda: last[0],
        wait,
        lambda: ended.append("ended"),
        lambda: {"kafka-hung": "it hangs"},
        lambda: used_s * next(ticks),
    ).run()
    return ended


def test_a_loop_that_completes_now_and_then_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert watch(float(number) for number in range(1000)) == []
    slow = (float(number // int(WARN_AFTER_S - 1)) for number in range(1000))
    assert watch(slow) == []
    assert caplog.records == []


def test_a_loop_that_hangs_is_logged_and_then_its_process_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    assert watch(7.0 for _ in range(int(END_AFTER_S))) == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert caplog.records[0].message == "kafka-hung: it hangs"
    assert watch(7.0 for _ in range(int(END_AFTER_S) + 1)) == ["ended"]
    assert caplog.records[-1].levelno == logging.CRITICAL
    assert "MainThread" not in caplog.records[-1].message, "the stack of the watchdog itself is left out"


def test_a_loop_that_never_completes_hangs_too() -> None:
    assert watch(None for _ in range(int(END_AFTER_S) + 1)) == ["ended"]


def test_a_loop_that_computes_at_a_twentieth_of_a_core_does_not_hang(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert watch((7.0 for _ in range(300)), used_s=0.05) == []
    assert caplog.records == []


def test_a_loop_that_computes_without_an_end_hangs() -> None:
    assert watch((7.0 for _ in range(int(END_AFTER_S) + 1)), used_s=1.0) == ["ended"]
    assert watch((7.0 for _ in range(int(END_AFTER_S / 0.05) + 2)), used_s=0.05) == ["ended"]


def test_a_loop_that_wakes_up_now_and_then_inside_one_call_hangs() -> None:
    assert watch((7.0 for _ in range(int(END_AFTER_S) + 1)), used_s=0.004) == ["ended"]


def test_a_thread_reads_the_cpu_time_of_another_one_which_stands_while_that_waits() -> None:
    clock, release = WorkClock(), threading.Event()

    def compute_and_wait() -> None:
        clock.add(own_cpu_clock())
        sum(range(300_000))
        release.wait(30)

    thread = threading.Thread(target=compute_and_wait)
    thread.start()
    wait_until(lambda: clock() > 0.001 and clock() == clock())
    release.set()
    thread.join()
    assert clock() >= 0.0, "a thread that has ended is asked without harm"
