"""Hooks for forks and for the end of the process, for every object that was registered and still exists."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Owner = TypeVar("Owner")


class LifecycleHooks(NamedTuple):
    """The functions to call for one object."""

    after_fork: Callable[[Any], object]
    at_exit: Callable[[Any], object] | None


_called_in = [os.getpid()]  # the process in which the hooks were called last
_resets: list[Callable[[], object]] = []
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


def on_fork(reset: Callable[[], object]) -> None:
    """Has `reset()` called in each forked child, for as long as the process lives."""
    _resets.append(reset)


def after_fork() -> None:
    """Calls the hooks in a forked child, once.

    Python does so by itself, unless the process was forked by a server that does not tell it.
    """
    if os.getpid() == _called_in[0]:
        return
    _called_in[0] = os.getpid()
    for reset in _resets:
        reset()
    # A child has only the thread that forked; a mutex that another thread held stays locked forever.
    for owner, hooks in list(_hooks.items()):
        hooks.after_fork(owner)


def _at_exit() -> None:
    for owner, hooks in list(_hooks.items()):
        if hooks.at_exit is not None:
            hooks.at_exit(owner)


def _hook_into_uwsgi() -> None:
    """Has uWSGI call the hooks in each worker: without `py-call-osafterfork` it does not call Python's."""
    uwsgi = sys.modules.get("uwsgi")  # exists inside uWSGI alone
    if uwsgi is None:
        return
    earlier_hook = getattr(uwsgi, "post_fork_hook", None)

    def after_fork_of_uwsgi() -> None:
        after_fork()
        if earlier_hook is not None:
            earlier_hook()

    uwsgi.post_fork_hook = after_fork_of_uwsgi  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=after_fork)
_hook_into_uwsgi()
# A daemon thread that is stopped inside a database driver at interpreter exit may crash the process.
atexit.register(_at_exit)
