"""Callers that are locked, for as long as a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from gatekeeper.gate import Gate
from gatekeeper.model import Lock
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing.manual_clock import ManualClock


@contextmanager
def locked(
    gate: Gate,
    *callers: str,
    policy: str = "test",
    status: int = 429,
    reason: str = "quota-exceeded",
    seconds: float = 3600.0,
) -> Iterator[None]:
    """Inside, `gate` refuses exactly these callers, for so many seconds of a clock that stands
    still, and asks no source."""
    clock = ManualClock(datetime.now(UTC))
    until = clock.now() + timedelta(seconds=seconds)
    locks = [
        Lock(
            "caller",
            caller,
            policy,
            clock.now(),
            until,
            status=status,
            reason=reason,
            detail="locked by a test",
        )
        for caller in callers
    ]
    was_running, before = gate._running is not None, dict(vars(gate))
    gate.close()
    vars(gate).update(vars(Gate(FixedSource(*locks), shadow=gate._shadow, clock=clock)))
    gate.ready(0)
    try:
        yield
    finally:
        gate.close()
        vars(gate).update(before)
        if was_running:
            gate.start()
