"""Tells an application when a gate learns of something, or stops learning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Generic, Protocol, TypeVar

from gatekeeper.model import Cursor

log = logging.getLogger("gatekeeper")


class Watched(Protocol):
    """A gate, as far as it is watched."""

    @property
    def healthy(self) -> bool: ...


G = TypeVar("G", bound=Watched)


class Watching(Generic[G]):
    """Calls `on_change` after the view has become another, and `on_health` after the gate has become
    healthy or ceased to be. Called by the poller alone, so never while a request waits; what they raise
    is logged, and the polling goes on."""

    def __init__(
        self, on_change: Callable[[G], object] | None, on_health: Callable[[G], object] | None
    ) -> None:
        self._on_change = on_change
        self._on_health = on_health
        self._at: Cursor | None = None
        self._healthy: bool | None = None  # None: nothing was told yet

    def look(self, gate: G, at: Cursor | None, patient_s: float) -> float:
        """Tell what there is to tell of `gate`, whose view is at `at`. Seconds until there may be more: it
        has `patient_s` until it is stale."""
        if at != self._at:
            self._at = at
            self._call(self._on_change, gate)
        healthy = gate.healthy
        # Who has just begun is not yet unhealthy.
        if healthy is not self._healthy and (healthy or self._healthy or patient_s <= 0):
            self._healthy = healthy
            self._call(self._on_health, gate)
        return inf if self._on_health is None or patient_s <= 0 else patient_s

    def _call(self, tell: Callable[[G], object] | None, gate: G) -> None:
        if tell is None:
            return
        try:
            tell(gate)
        except (Exception, SystemExit):
            log.exception("%r failed; the polling goes on", tell)
