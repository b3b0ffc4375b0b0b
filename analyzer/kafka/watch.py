"""How a connection to Kafka fares. kafka-python is silent where it should shout: time spent waiting tells."""

from __future__ import annotations

from collections.abc import Callable

OPEN_AGAIN_FIRST_S = 0.5
OPEN_AGAIN_MAX_S = 10.0
SILENT_S = 10.0  # a fetch is answered within a fraction of a second, also when there is nothing


class Watch:
    """Notes what goes wrong, and when to connect again."""

    def __init__(self, uptime_s: Callable[[], float]) -> None:
        self._uptime_s = uptime_s
        self._failures = 0
        self._opened_s = float("-inf")
        self._opens_s = uptime_s()  # not before
        self._answers = 0
        self.trouble = ""  # what the last connection was given up for, until a broker answers
        self.silent_s = 0.0  # spent waiting for records since a broker last answered
        self.idle_s = 0.0  # ... without having a partition

    @property
    def wait_s(self) -> float:
        """How long to wait before connecting; 0.0 when it is time."""
        return max(0.0, self._opens_s - self._uptime_s())

    @property
    def connected_s(self) -> float:
        """Since when there is a connection; 0.0 when there is none."""
        return 0.0 if self._opens_s > self._opened_s else self._uptime_s() - self._opened_s

    def opened(self) -> None:
        self._opened_s = self._uptime_s()
        self._answers, self.silent_s, self.idle_s = 0, 0.0, 0.0

    def failed(self, failed: Exception, *, at_once: bool = False) -> float:
        """The connection is given up; how many seconds to wait before the next one."""
        if self.connected_s > 2 * OPEN_AGAIN_MAX_S:
            self._failures = 0
        pause_s = min(OPEN_AGAIN_MAX_S, OPEN_AGAIN_FIRST_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._opens_s = self._uptime_s() + (0.0 if at_once else pause_s)
        self.trouble = f"{type(failed).__name__}: {failed}"
        return self.wait_s

    def waited(self, seconds: float, answers: int, *, reading: bool, idle: bool) -> None:
        """A poll came back after so long; `answers` brokers had answered until then."""
        if answers != self._answers:
            self._answers, self.silent_s, self.trouble = answers, 0.0, ""
        elif reading:
            self.silent_s += seconds
        self.idle_s = self.idle_s + seconds if idle else 0.0

    def spare(self) -> None:
        """It is right that we have nothing to read."""
        self.idle_s, self.trouble = 0.0, ""

    @property
    def problem(self) -> str:
        if self.trouble:
            return self.trouble
        return f"no broker has answered for {self.silent_s:.0f} s" if self.silent_s >= SILENT_S else ""
