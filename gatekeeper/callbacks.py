"""Tells an application when a gate learns of something, or stops learning."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Generic, Protocol, TypeVar

from gatekeeper.clock import Clock, PeriodicTask
from gatekeeper.model import Cursor

log = logging.getLogger("gatekeeper")


class ObservableGate(Protocol):
    """A gate, as far as it is watched."""

    @property
    def healthy(self) -> bool: ...


G = TypeVar("G", bound=ObservableGate)


class ChangeCallbacks(Generic[G]):
    """Calls `on_change` after the view has become another, and `on_health` after the gate has become
    healthy or ceased to be: never while a request waits, and in a thread of its own, so that one that
    takes its time holds up neither the polling nor what depends on it. What came meanwhile is told once.
    What they raise is logged."""

    def __init__(
        self,
        on_change: Callable[[G], object] | None,
        on_health: Callable[[G], object] | None,
        clock: Clock,
    ) -> None:
        self._on_change = on_change
        self._on_health = on_health
        self._clock = clock
        self._at: Cursor | None = None
        self._healthy: bool | None = None  # None: nothing was told yet
        self.forget_threads()

    def forget_threads(self) -> None:
        """Begin without any: at birth, and in a forked child."""
        self._mutex = threading.Lock()
        self._due: dict[str, Callable[[G], object]] = {}  # each once: they look at the gate themselves
        self._telling = False
        self._running: PeriodicTask | None = None

    def look(self, gate: G, at: Cursor | None, patient_s: float) -> float:
        """Tell what there is to tell of `gate`, whose view is at `at`. Seconds until there may be more: it
        has `patient_s` until it is stale."""
        if at != self._at:
            self._at = at
            self._tell("change", self._on_change, gate)
        healthy = gate.healthy
        # Who has just begun is not yet unhealthy.
        if healthy is not self._healthy and (healthy or self._healthy or patient_s <= 0):
            self._healthy = healthy
            self._tell("health", self._on_health, gate)
        return inf if self._on_health is None or patient_s <= 0 else patient_s

    def close(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for what is being told."""
        running = self._running
        if running is not None:
            running.stop(timeout)

    def _tell(self, what: str, tell: Callable[[G], object] | None, gate: G) -> None:
        if tell is None:
            return
        with self._mutex:
            self._due[what] = tell
            if self._telling:
                return
            self._telling = True
        try:
            self._running = self._clock.run(partial(self._work, gate), "gatelock tells")
        except RuntimeError as error:  # no thread to be had
            log.warning("nobody can be told of news of the lock feed: %s", error)
            self._telling = False

    def _work(self, gate: G) -> float:
        while True:
            with self._mutex:
                if not self._due:
                    self._telling = False
                    return inf
                tell = self._due.pop(next(iter(self._due)))
            try:
                tell(gate)
            except (Exception, SystemExit):
                log.exception("%r failed; the polling goes on", tell)
