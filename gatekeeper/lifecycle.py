"""Hooks for forks and for the end of the process, for every object that was registered and still exists."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Owner = TypeVar("Owner")


class LifecycleHooks(NamedTuple):
    """The functions to call for one object."""

    after_fork: Callable[[Any], object]
    at_exit: Callable[[Any], object] | None


_hooks: weakref.WeakKeyDictionary[Any, LifecycleHooks] = weakref.WeakKeyDictionary()


def register(
    owner: Owner,
    after_fork: Callable[[Owner], object],
    at_exit: Callable[[Owner], object] | None = None,
) -> None:
    """Has `after_fork(owner)` called in each forked child and `at_exit(owner)` at the end of the process.

    `owner` is not kept alive.
    """
    _hooks[owner] = LifecycleHooks(after_fork, at_exit)


def _after_fork() -> None:
    # A child has only the thread that forked; a mutex that another thread held stays locked forever.
    for owner, hooks in list(_hooks.items()):
        hooks.after_fork(owner)


def _at_exit() -> None:
    for owner, hooks in list(_hooks.items()):
        if hooks.at_exit is not None:
            hooks.at_exit(owner)


os.register_at_fork(after_in_child=_after_fork)
# A daemon thread that is stopped inside a database driver at interpreter exit may crash the process.
atexit.register(_at_exit)
