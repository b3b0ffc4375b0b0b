"""Locks, and what was done with them."""

from __future__ import annotations

from gatekeeper.feed.feed_json import change_fields
from gatekeeper.model import Lock, Set


def lock_fields(lock: Lock) -> dict[str, object]:
    """Returns a lock as the feed has it."""
    return {name: value for name, value in change_fields(Set(lock)).items() if name != "op"}


def changed_fields(lock: Lock, act: str, *, is_changed: bool) -> dict[str, object]:
    """Returns a lock, what an operator did with it, and whether it was done or only shown."""
    return lock_fields(lock) | {"done": act, "changed": is_changed}


def describe_action(lock: Lock) -> str:
    """The lock's action with its status or rate.

    >>> from datetime import UTC, datetime
    >>> from gatekeeper.model import Lock, Rate
    >>> now = datetime.now(UTC)
    >>> describe_action(Lock("caller", "user:ann", "p", now, now))
    'deny 429'
    >>> describe_action(Lock("caller", "user:ann", "p", now, now, action="slow", slow=Rate(10, 60.0)))
    'slow 10/60s'
    """
    if lock.action == "deny":
        return f"deny {lock.status}"
    return lock.action if lock.slow is None else f"slow {lock.slow.limit:,}/{lock.slow.period:g}s"
