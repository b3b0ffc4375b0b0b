"""For the tests of applications: time moved by hand, callers that are locked, limiters that count anew."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatekeeper.testing.clock import ManualClock
    from gatekeeper.testing.limits import fresh
    from gatekeeper.testing.locks import locked
    from gatekeeper.testing.loop import run

# Loaded when first asked for: pytest imports our plugin, and so this, in every run.
HOMES = {
    "ManualClock": "gatekeeper.testing.clock",
    "fresh": "gatekeeper.testing.limits",
    "locked": "gatekeeper.testing.locks",
    "run": "gatekeeper.testing.loop",
}

__all__ = ["ManualClock", "fresh", "locked", "run"]


def __getattr__(name: str) -> object:
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
