"""Denies requests inside applications: gates that know the locks, and exact limiters for short periods.

The analyzer, which counts requests and raises locks, is another package. Nothing here imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatekeeper.gate import Gate
    from gatekeeper.limits import (
        AllOf,
        AsyncKeyedScheduler,
        ByPlan,
        Concurrency,
        FirstRefusal,
        FixedWindow,
        KeyedScheduler,
        LeakyBucket,
        LeakyQueue,
        Limiter,
        Paced,
        PriorityScheduler,
        Sharded,
        SlidingCounter,
        SlidingLog,
        TokenBucket,
    )
    from gatekeeper.model import ALLOWED, Decision, Lock, LockSource, Refused, SourceError

# Each name is imported when first used, so that an application loads only what it uses. Type checkers read
# the imports above, `import *` reads `__all__`; a test keeps the three lists equal.
MODULES = {
    "gatekeeper.gate": ("Gate",),
    "gatekeeper.limits": (
        "AllOf",
        "AsyncKeyedScheduler",
        "ByPlan",
        "Concurrency",
        "FirstRefusal",
        "FixedWindow",
        "KeyedScheduler",
        "LeakyBucket",
        "LeakyQueue",
        "Limiter",
        "Paced",
        "PriorityScheduler",
        "Sharded",
        "SlidingCounter",
        "SlidingLog",
        "TokenBucket",
    ),
    "gatekeeper.model": ("ALLOWED", "Decision", "Lock", "LockSource", "Refused", "SourceError"),
}

__all__ = [
    "ALLOWED",
    "AllOf",
    "AsyncKeyedScheduler",
    "ByPlan",
    "Concurrency",
    "Decision",
    "FirstRefusal",
    "FixedWindow",
    "Gate",
    "KeyedScheduler",
    "LeakyBucket",
    "LeakyQueue",
    "Limiter",
    "Lock",
    "LockSource",
    "Paced",
    "PriorityScheduler",
    "Refused",
    "Sharded",
    "SlidingCounter",
    "SlidingLog",
    "SourceError",
    "TokenBucket",
]


def __getattr__(name: str) -> object:
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
