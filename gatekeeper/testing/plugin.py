"""Fixtures that pytest finds by itself once Gatelock is installed."""

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

# Each imports what it needs by itself: a run that uses none of them pays for none.


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until `advance`."""
    from gatekeeper.testing.manual_clock import ManualClock

    return ManualClock()


@pytest.fixture
def fresh_limiters(manual_clock: ManualClock) -> Iterator[Callable[..., None]]:
    """`fresh_limiters(limiter, ...)`: for this test they have counted nothing, and go by `manual_clock`."""
    from gatekeeper.testing.fresh_limiters import fresh

    with ExitStack() as undo:

        def renew(*limiters: Any) -> None:
            undo.enter_context(fresh(*limiters, clock=manual_clock))

        yield renew


@pytest.fixture
def lock_callers() -> Iterator[Callable[..., None]]:
    """`lock_callers(gate, "api_key:acme", ...)`: for this test the gate refuses exactly these callers."""
    from gatekeeper.testing.locked_callers import locked

    with ExitStack() as undo:

        def lock(*arguments: Any, **how: Any) -> None:
            undo.enter_context(locked(*arguments, **how))

        yield lock
