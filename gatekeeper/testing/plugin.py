"""pytest fixtures, which pytest finds by itself where Gatelock is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

try:
    import pytest
except ImportError as missing:
    raise ImportError("gatekeeper.testing.plugin is for pytest: install pytest") from missing

if TYPE_CHECKING:
    from gatekeeper.testing.manual_clock import ManualClock

__all__ = ["fresh_limiters", "lock_callers", "manual_clock"]

# The fixtures import what they need when they are used, so that other runs of pytest do not pay for it.


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that does not move until `advance`."""
    from gatekeeper.testing.manual_clock import ManualClock

    return ManualClock()


@pytest.fixture
def fresh_limiters(manual_clock: ManualClock) -> Iterator[Callable[..., None]]:
    """A function: `fresh_limiters(limiter, ...)` has them start afresh for this test, with `manual_clock`."""
    from gatekeeper.testing.fresh_limiters import fresh

    with ExitStack() as undo:

        def renew(*limiters: Any) -> None:
            undo.enter_context(fresh(*limiters, clock=manual_clock))

        yield renew


@pytest.fixture
def lock_callers() -> Iterator[Callable[..., None]]:
    """A function: `lock_callers(gate, "api_key:acme", ...)` has the gate deny these callers for this test."""
    from gatekeeper.testing.locked_callers import locked

    with ExitStack() as undo:

        def lock(*arguments: Any, **options: Any) -> None:
            undo.enter_context(locked(*arguments, **options))

        yield lock
