"""A list of locks that does not change: for tests, and for what is closed by configuration."""

from __future__ import annotations

from datetime import UTC, datetime

from gatekeeper.model import Cursor, Lock, Set, Update

NEXT_POLL_S = 10.0  # nothing will be new; asking keeps the gate's age low


class FixedSource:
    """Always the same locks; each ends by its `until` as any other does."""

    def __init__(self, *locks: Lock) -> None:
        self._changes = tuple(Set(lock) for lock in locks)
        # Another list is another history, also for a gate that holds version 1 of this one.
        self._at = Cursor(1, f"{hash(locks) & 0xFFFF_FFFF:08x}")

    def fetch(self, since: Cursor | None) -> Update:
        known = since == self._at
        return Update(
            at=self._at,
            since=self._at.version if known else None,
            snapshot=not known,
            now=datetime.now(UTC),
            behind=0.0,
            next_poll=NEXT_POLL_S,
            changes=() if known else self._changes,
        )

    def close(self) -> None:
        """Nothing is held."""
