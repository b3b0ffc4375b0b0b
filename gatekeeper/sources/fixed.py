"""A fixed list of locks: for tests, and for callers that a configuration file locks."""

from __future__ import annotations

from datetime import UTC, datetime

from gatekeeper.model import Cursor, Lock, Set, Update

__all__ = ["FixedSource"]

NEXT_POLL_S = 10.0  # nothing changes; polling only keeps the gate's age low


class FixedSource:
    """A LockSource with a list of locks that does not change. Each lock ends at its `until`.

    Args:
        *locks: The locks.

    Example:
        >>> from datetime import UTC, datetime, timedelta
        >>> from gatekeeper import Gate, Lock
        >>> now = datetime.now(UTC)
        >>> lock = Lock("caller", "api_key:acme", policy="unpaid", began=now, until=now + timedelta(days=1))
        >>> with Gate(FixedSource(lock)) as gate:
        ...     gate.ready(timeout=5), gate.allow("api_key:acme"), gate.allow("api_key:bob")
        (True, False, True)
    """

    def __init__(self, *locks: Lock) -> None:
        self._changes = tuple(Set(lock) for lock in locks)
        # Another list has another mark, so that a gate that holds version 1 of this one fetches again.
        self._at = Cursor(1, f"{hash(locks) & 0xFFFF_FFFF:08x}")

    def fetch(self, since: Cursor | None) -> Update:
        """Returns all locks, or no changes if the gate has them. Never raises."""
        is_known = since == self._at
        return Update(
            at=self._at,
            since=self._at.version if is_known else None,
            snapshot=not is_known,
            now=datetime.now(UTC),
            behind=0.0,
            next_poll=NEXT_POLL_S,
            changes=() if is_known else self._changes,
        )

    def close(self) -> None:
        """Does nothing: a list holds no resources."""
