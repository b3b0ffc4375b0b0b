"""Answers that threads share: made once at a time, kept for a while, and errors are not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from analyzer.server.shared_answers import SharedAnswers
from tests.support.waiting import wait_until


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def test_an_answer_is_kept_for_a_while() -> None:
    clock, numbers = Clock(), count()
    shared = SharedAnswers(10.0, uptime_s=clock)
    assert [shared.get("q", lambda: next(numbers)) for _ in range(3)] == [0, 0, 0]
    assert shared.get("another", lambda: next(numbers)) == 1
    clock.s = 10.0
    assert shared.get("q", lambda: next(numbers)) == 2


def test_threads_that_ask_while_it_is_made_wait_for_one_answer() -> None:
    shared, has_begun_others, calls = SharedAnswers(0.0), threading.Event(), count()
    asked = threading.Semaphore(0)

    def slow() -> int:
        asked.release()
        has_begun_others.wait(10)
        return next(calls)

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(shared.get, "q", slow)
        assert asked.acquire(timeout=10)
        others = [pool.submit(shared.get, "q", slow) for _ in range(3)]
        wait_until(lambda: all(other.running() for other in others))
        has_begun_others.set()
        assert {first.result(10), *(other.result(10) for other in others)} <= {0, 1}
        assert first.result() == 0


def test_an_error_is_raised_and_not_kept() -> None:
    shared = SharedAnswers(10.0)
    with pytest.raises(ZeroDivisionError):
        shared.get("q", lambda: 1 // 0)
    assert shared.get("q", lambda: 5) == 5


def test_the_oldest_answers_go() -> None:
    shared, numbers = SharedAnswers(10.0, most=2), count()
    for question in ("a", "b", "c", "b", "a"):
        shared.get(question, lambda: next(numbers))
    assert next(numbers) == 4  # a, b, c, and a again
