"""Locks and changes as plain tuples of plain values.

These are nothing to the garbage collector. As objects, 100,000 locks make it stop everybody for 20 ms,
several times while they are taken over, and now and then for ever after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, overload

from gatekeeper.model import Change, Clear, Lock, LockKey, Rate, Set
from gatekeeper.pieces import in_pieces

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The fields of Lock in their order, its rate plain too, then its end in nanoseconds since 1970.
Held = tuple[Any, ...]
At = tuple[str, str, str, str]  # scope, key, resource, policy: a LockKey, or a change that clears one

SCOPE, KEY, POLICY, BEGAN, UNTIL, RESOURCE, KIND = range(7)
ACTION, STATUS, REASON, DETAIL, ON_STALE, SLOW, END = range(7, 14)


def end_ns(lock: Lock) -> int:
    """When the lock ends, nanoseconds since 1970; exact, where a float would not be."""
    past = lock.until - EPOCH
    return ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 1_000


def held_of(lock: Lock) -> Held:
    """The lock as a plain tuple."""
    slow = None if lock.slow is None else (lock.slow.limit, lock.slow.period)
    return (lock.scope, lock.key, lock.policy, lock.began, lock.until, lock.resource, lock.kind, lock.action,
            lock.status, lock.reason, lock.detail, lock.on_stale, slow, end_ns(lock))  # fmt: skip


def lock_of(held: Held) -> Lock:
    """The lock again."""
    return Lock(*held[:SLOW], None if held[SLOW] is None else Rate(*held[SLOW]))  # type: ignore[call-arg]  # all of them


def at_of(held: Held) -> At:
    """What the lock is found by."""
    return held[SCOPE], held[KEY], held[RESOURCE], held[POLICY]


def row_of(change: Change) -> Held | At:
    """The change as a plain tuple: a lock, or what is cleared."""
    if isinstance(change, Set):
        return held_of(change.lock)
    scope, key, resource, policy = change.at
    return scope, key, resource, policy


class Packed(Sequence[Change]):
    """Changes, kept as plain tuples. Equal to a tuple of the same changes."""

    __slots__ = ("rows",)

    def __init__(self, changes: Iterable[Change]) -> None:
        self.rows: list[Held | At] = [row_of(change) for change in in_pieces(changes)]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Change, ...]: ...
    def __getitem__(self, index: int | slice) -> Change | tuple[Change, ...]:
        if isinstance(index, slice):
            return tuple(map(_change_of, self.rows[index]))
        return _change_of(self.rows[index])

    def __iter__(self) -> Iterator[Change]:
        return map(_change_of, self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | Packed) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def sets(row: Held | At) -> bool:
    """Whether this sets a lock, rather than clear one."""
    return len(row) > len(LockKey._fields)


def rows_in(changes: Iterable[Change]) -> Iterable[Held | At]:
    """The changes as plain tuples, in their order."""
    return changes.rows if isinstance(changes, Packed) else map(row_of, changes)


def _change_of(row: Held | At) -> Change:
    return Set(lock_of(row)) if sets(row) else Clear(LockKey(*row))
