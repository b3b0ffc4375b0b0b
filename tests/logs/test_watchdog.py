"""A loop that hangs ends its process; one that works, or that was stopped for a while, does not."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from analyzer.watchdog import END_AFTER_S, WARN_AFTER_S, Watchdog


def watched(turns: Iterator[float | None]) -> list[str]:
    """What becomes of a loop that says at each look when it last turned; told to stop at the end of them."""
    ended: list[str] = []
    last: list[float | None] = [None]

    def wait(_seconds: float) -> bool:
        try:
            last[0] = next(turns)
        except StopIteration:
            return True
        return False

    Watchdog(lambda: last[0], wait, lambda: ended.append("ended"), lambda: {"kafka-hung": "it hangs"}).run()
    return ended


def test_a_loop_that_turns_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert watched(float(number) for number in range(1000)) == []
    slow = (float(number // int(WARN_AFTER_S - 1)) for number in range(1000))
    assert watched(slow) == []
    assert caplog.records == []


def test_a_loop_that_hangs_is_told_of_and_then_ended(caplog: pytest.LogCaptureFixture) -> None:
    assert watched(7.0 for _ in range(int(END_AFTER_S))) == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert caplog.records[0].message == "kafka-hung: it hangs"
    assert watched(7.0 for _ in range(int(END_AFTER_S) + 1)) == ["ended"]
    assert caplog.records[-1].levelno == logging.CRITICAL
    assert "MainThread" not in caplog.records[-1].message, "not at what the watchdog itself is"


def test_a_loop_that_never_turned_hangs_too() -> None:
    assert watched(None for _ in range(int(END_AFTER_S) + 1)) == ["ended"]
