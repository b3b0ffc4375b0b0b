"""For the tests of applications: time moved by hand, callers that are locked, limiters that count anew."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatekeeper.testing.fresh_limiters import fresh
    from gatekeeper.testing.locked_callers import locked
    from gatekeeper.testing.manual_clock import ManualClock
    from gatekeeper.testing.manual_loop import run

# Loaded when first asked for: pytest imports our plugin, and so this, in every run.
HOMES = {
    "ManualClock": "gatekeeper.testing.manual_clock",
    "fresh": "gatekeeper.testing.fresh_limiters",
    "locked": "gatekeeper.testing.locked_callers",
    "run": "gatekeeper.testing.manual_loop",
}

__all__ = ["ManualClock", "fresh", "locked", "run"]


def __getattr__(name: str) -> object:
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
