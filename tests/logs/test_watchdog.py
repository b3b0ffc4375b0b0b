"""The watchdog ends a process whose loop hangs, and no other."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from analyzer.watchdog import END_AFTER_S, WARN_AFTER_S, Watchdog


def watch(completions: Iterator[float | None]) -> list[str]:
    """Runs the watchdog on a loop whose time of completion is the next of `completions` at each tick, until
    they end; returns what the watchdog did."""
    ended: list[str] = []
    last: list[float | None] = [None]

    def wait(_seconds: float) -> bool:
        try:
            last[0] = next(completions)
        except StopIteration:
            return True
        return False

    Watchdog(lambda: last[0], wait, lambda: ended.append("ended"), lambda: {"kafka-hung": "it hangs"}).run()
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
