"""Forks, and the end of the process: what both do to every gate there is."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

G = TypeVar("G")
LifecycleHook = Callable[[Any], None]

_owners: weakref.WeakKeyDictionary[Any, tuple[LifecycleHook, LifecycleHook]] = weakref.WeakKeyDictionary()


def register(gate: G, begin_anew: Callable[[G], None], close: Callable[[G], None]) -> None:
    """See to it that `gate` begins anew in a forked child, and is closed when the process ends."""
    _owners[gate] = begin_anew, close


def _after_fork() -> None:
    # A child of fork has only the thread that forked, and a mutex held by another is held for ever.
    for gate, (begin_anew, _) in list(_owners.items()):
        begin_anew(gate)


def _at_exit() -> None:
    for gate, (_, close) in list(_owners.items()):
        close(gate)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)  # a daemon thread that is stopped inside a driver may take the process down with it
