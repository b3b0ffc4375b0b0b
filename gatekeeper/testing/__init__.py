"""Helpers for the tests of applications: a clock moved by hand, locked callers, limiters that start afresh.

pytest finds the fixtures in `gatekeeper.testing.plugin` by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatekeeper.testing.fresh_limiters import fresh
    from gatekeeper.testing.locked_callers import locked
    from gatekeeper.testing.manual_clock import ManualClock
    from gatekeeper.testing.manual_loop import run

# Imported when first used: pytest loads the plugin, and so this package, in every run.
MODULES = {
    "ManualClock": "gatekeeper.testing.manual_clock",
    "fresh": "gatekeeper.testing.fresh_limiters",
    "locked": "gatekeeper.testing.locked_callers",
    "run": "gatekeeper.testing.manual_loop",
}

__all__ = ["ManualClock", "fresh", "locked", "run"]


def __getattr__(name: str) -> object:
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
