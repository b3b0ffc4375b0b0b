"""Answers of blocking calls that many threads ask for: each is made once at a time, and kept for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class KeptAnswer(NamedTuple):
    """An answer, or the call that makes it."""

    future: Future[Any]
    until_s: float


class SharedAnswers:
    """Makes each answer once for all threads that ask while it is made, and `kept_s` seconds from its begin.

    An error is raised in all threads that wait for it, and is not kept.

    Args:
        kept_s: How long an answer is returned.
        most: How many answers are kept; the oldest goes.
        uptime_s: Measures the time.

    Example:
        >>> shared = SharedAnswers(10.0)
        >>> shared.get("a question", lambda: 1), shared.get("a question", lambda: 2)
        (1, 1)
    """

    def __init__(
        self, kept_s: float, most: int = 100, uptime_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept_s = kept_s
        self._most = most
        self._uptime_s = uptime_s
        self._answers: OrderedDict[Hashable, KeptAnswer] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, question: Hashable, call: Callable[[], T]) -> T:
        """Returns the answer to a question: what `call` returns or raises, unless there is one already."""
        with self._mutex:
            now_s = self._uptime_s()
            kept = self._answers.get(question)
            if kept is None or (kept.future.done() and now_s >= kept.until_s):
                kept, is_mine = KeptAnswer(Future(), now_s + self._kept_s), True
                self._answers[question] = kept
                self._answers.move_to_end(question)
                if len(self._answers) > self._most:
                    self._answers.popitem(last=False)
            else:
                is_mine = False
        future: Future[T] = kept.future
        if is_mine:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised again here, and in the others that wait
                with self._mutex:
                    if self._answers.get(question) is kept:
                        del self._answers[question]
                future.set_exception(error)
        return future.result()
