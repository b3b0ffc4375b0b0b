"""One clock and one queue of events for everything that is simulated.

Time moves from event to event. Each event belongs to a process, which may be paused, so that its events come
later, or dead, so that they never come. Processes run in one thread: an event is not interrupted.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.step_faults import Killed


@dataclass
class Process:
    """One process, or one thread of a process that may end alone."""

    name: str
    is_alive: bool = True
    paused_until_s: float = 0.0
    on_death: Callable[[], None] = lambda: None

    def die(self) -> None:
        """Ends the process: none of its events happens any more."""
        if self.is_alive:
            self.is_alive = False
            self.on_death()


@dataclass(order=True)
class Event:
    """A step of a process at a moment."""

    at_s: float
    number: int  # of events at one moment the one that was made first comes first
    process: Process = field(compare=False)
    name: str = field(compare=False)
    action: Callable[[], object] = field(compare=False)
    is_cancelled: bool = field(compare=False, default=False)


class Scheduler:
    """Runs events in the order of their times."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s = 0.0  # of `now_s`: while the whole installation was suspended
        self.events = 0  # that happened
        self.trace: list[str] = []
        self.current: Process | None = None
        self.after_event: Callable[[], None] = lambda: None
        self._queue: list[Event] = []
        self._numbers = itertools.count()

    @property
    def uptime_s(self) -> float:
        """Seconds in which the installation was not suspended."""
        return self.now_s - self.slept_s

    def after(self, delay_s: float, process: Process, name: str, action: Callable[[], object]) -> Event:
        """Has `process` do `action` when `delay_s` seconds have passed."""
        event = Event(self.now_s + max(0.0, delay_s), next(self._numbers), process, name, action)
        heapq.heappush(self._queue, event)
        return event

    def sleep(self, seconds: float) -> None:
        """Lets time pass while nothing happens, as when machines are suspended."""
        self.now_s += seconds
        self.slept_s += seconds
        for event in self._queue:
            event.at_s += seconds  # keeps the order

    def run_until(self, end_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Runs what happens up to `end_s`, or until `stop` is true after an event.

        An event may call it, to let others happen while its process waits.
        """
        slept_s = self.slept_s
        while not stop() and self._queue and self._queue[0].at_s <= end_s + self.slept_s - slept_s:
            event = heapq.heappop(self._queue)
            if event.is_cancelled or not event.process.is_alive:
                continue
            if event.process.paused_until_s > event.at_s:
                event.at_s = event.process.paused_until_s
                heapq.heappush(self._queue, event)
                continue
            self.now_s = max(self.now_s, event.at_s)
            self._happen(event)
        if not stop():
            self.now_s = max(self.now_s, end_s + self.slept_s - slept_s)

    def _happen(self, event: Event) -> None:
        self.events += 1
        self.trace.append(f"{self.now_s:.6f} {event.process.name}: {event.name}")
        before, self.current = self.current, event.process
        try:
            event.action()
        except Killed:
            event.process.die()
        finally:
            self.current = before
        self.after_event()
