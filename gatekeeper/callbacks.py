"""The callbacks `on_change` and `on_health` of a gate, called in a separate thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from math import inf
from typing import Generic, Protocol, TypeVar

from gatekeeper.clock import Clock, PeriodicTask
from gatekeeper.model import Cursor

log = logging.getLogger("gatekeeper")


class ObservableGate(Protocol):
    """The part of a gate that callbacks depend on."""

    @property
    def healthy(self) -> bool: ...


G = TypeVar("G", bound=ObservableGate)


class ChangeCallbacks(Generic[G]):
    """Calls `on_change` after the view's version changed, and `on_health` after `healthy` changed.

    Both run in one separate thread, so that a slow one delays neither a request nor a poll. Several changes
    during a call become one call. Exceptions are logged.
    """

    def __init__(
        self,
        gate: G,
        on_change: Callable[[G], object] | None,
        on_health: Callable[[G], object] | None,
        clock: Clock,
    ) -> None:
        for name, callback in (("on_change", on_change), ("on_health", on_health)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name}: expected a function of the gate, got {callback!r:.80}")
        self._gate = gate
        self._on_change = on_change
        self._on_health = on_health
        self._clock = clock
        self._last_cursor: Cursor | None = None
        self._healthy: bool | None = None  # None before the first call
        self.reset_threads()

    def reset_threads(self) -> None:
        """Starts without threads: for the constructor, and for a forked child."""
        self._mutex = threading.Lock()
        self._due: dict[str, Callable[[G], object]] = {}  # by kind, so that each is due at most once
        self._is_working = False
        self._task: PeriodicTask | None = None

    def notify(self, cursor: Cursor | None, stale_in_s: float) -> float:
        """Calls the callbacks that are due, for a view at `cursor` that becomes stale in `stale_in_s`.

        Returns seconds until the next call may be due.
        """
        if cursor != self._last_cursor:
            self._last_cursor = cursor
            self._call("change", self._on_change)
        healthy = self._gate.healthy
        # Not called for a gate that has just started and is not healthy yet.
        if healthy is not self._healthy and (healthy or self._healthy or stale_in_s <= 0):
            self._healthy = healthy
            self._call("health", self._on_health)
        return inf if self._on_health is None or stale_in_s <= 0 else stale_in_s

    def close(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for callbacks that are running."""
        task = self._task
        if task is not None:
            task.stop(timeout)

    def _call(self, kind: str, callback: Callable[[G], object] | None) -> None:
        if callback is None:
            return
        with self._mutex:
            self._due[kind] = callback
            if self._is_working:
                return
            self._is_working = True
        try:
            self._task = self._clock.run(self._work, "gatelock callbacks")
        except RuntimeError as error:
            log.warning("no thread could be started for on_change and on_health: %s", error)
            self._is_working = False

    def _work(self) -> float:
        while True:
            with self._mutex:
                if not self._due:
                    self._is_working = False
                    return inf
                callback = self._due.pop(next(iter(self._due)))
            try:
                callback(self._gate)
            except (Exception, SystemExit):
                log.exception("%r failed; the polling continues", callback)
