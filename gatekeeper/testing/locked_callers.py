"""Locks on callers for the duration of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from gatekeeper.callbacks import ChangeCallbacks
from gatekeeper.gate import Gate
from gatekeeper.gate_options import GateOptions
from gatekeeper.gate_runtime import GateRuntime
from gatekeeper.model import Lock
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing.manual_clock import ManualClock

__all__ = ["locked"]


@contextmanager
def locked(
    gate: Gate,
    *callers: str,
    policy: str = "test",
    status: int = 429,
    reason: str = "quota-exceeded",
    seconds: float = 3600.0,
) -> Iterator[None]:
    """Has `gate` deny exactly these callers inside a `with` statement, on a clock that does not move.

    The gate's source is not asked meanwhile. Afterwards the gate continues as before.

    Args:
        gate: The gate of the application that is tested.
        *callers: The typed names of the callers, such as "api_key:acme".
        policy: The name of the policy in the decisions.
        status: The HTTP status of the refusals.
        reason: The reason in the decisions.
        seconds: The time until a retry.

    Example:
        >>> gate = Gate("https://gatelock.example:8080")  # is not connected to
        >>> with locked(gate, "api_key:acme"):
        ...     gate.allow("api_key:acme"), gate.allow("api_key:bob")
        (False, True)
    """
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
    options, runtime = gate._options, gate._runtime
    was_started = runtime.is_started
    if was_started:
        gate.close()
    gate._options = GateOptions(FixedSource(*locks), clock, shadow=options.shadow)
    gate._set_runtime(
        GateRuntime(gate._options, gate._set_fast_path, ChangeCallbacks(gate, None, None, clock))
    )
    gate.ready(0)
    try:
        yield
    finally:
        gate.close()  # leaves requests on the slow path, which the former runtime expects, too
        gate._options = options
        gate._set_runtime(runtime)
        if was_started:
            gate.start()
