"""Locks and changes as plain tuples of plain values.

These are nothing to the garbage collector. As objects, 100,000 locks make it stop everybody for 20 ms,
several times while they are taken over, and now and then for ever after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, overload

from gatekeeper.model import Change, Clear, Lock, LockKey, Rate, Set
from gatekeeper.view.cooperative import in_batches, with_pauses

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The fields of Lock in their order, its rate plain too, then its end in nanoseconds since 1970.
LockTuple = tuple[Any, ...]
LockKeyTuple = tuple[
    str, str, str, str
]  # scope, key, resource, policy: a LockKey, or a change that clears one

SCOPE, KEY, POLICY, BEGAN, UNTIL, RESOURCE, KIND = range(7)
ACTION, STATUS, REASON, DETAIL, ON_STALE, SLOW, END = range(7, 14)


def end_ns(lock: Lock) -> int:
    """When the lock ends, nanoseconds since 1970; exact, where a float would not be."""
    past = lock.until - EPOCH
    return ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 1_000


def pack_lock(lock: Lock) -> LockTuple:
    """The lock as a plain tuple."""
    slow = None if lock.slow is None else (lock.slow.limit, lock.slow.period)
    return (lock.scope, lock.key, lock.policy, lock.began, lock.until, lock.resource, lock.kind, lock.action,
            lock.status, lock.reason, lock.detail, lock.on_stale, slow, end_ns(lock))  # fmt: skip


def unpack_lock(held: LockTuple) -> Lock:
    """The lock again."""
    return Lock(*held[:SLOW], None if held[SLOW] is None else Rate(*held[SLOW]))  # type: ignore[call-arg]  # all of them


def key_of(held: LockTuple) -> LockKeyTuple:
    """What the lock is found by."""
    return held[SCOPE], held[KEY], held[RESOURCE], held[POLICY]


def pack_change(change: Change) -> LockTuple | LockKeyTuple:
    """The change as a plain tuple: a lock, or what is cleared."""
    if isinstance(change, Set):
        return pack_lock(change.lock)
    scope, key, resource, policy = change.at
    return scope, key, resource, policy


class PackedChanges(Sequence[Change]):
    """Changes, kept as plain tuples. Equal to a tuple of the same changes."""

    __slots__ = ("_parts",)

    def __init__(self, changes: Iterable[Change]) -> None:
        # In tuples of tuples, which the collector forgets about; a list of 100,000 costs it 5 ms each time.
        self._parts: list[tuple[LockTuple | LockKeyTuple, ...]] = list(
            in_batches(map(pack_change, with_pauses(changes)))
        )

    def rows(self) -> Iterator[LockTuple | LockKeyTuple]:
        """The changes as plain tuples, in their order."""
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Change, ...]: ...
    def __getitem__(self, index: int | slice) -> Change | tuple[Change, ...]:
        rows = tuple(self.rows())
        return (
            tuple(map(unpack_change, rows[index])) if isinstance(index, slice) else unpack_change(rows[index])
        )

    def __iter__(self) -> Iterator[Change]:
        return map(unpack_change, self.rows())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | PackedChanges) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def is_set(row: LockTuple | LockKeyTuple) -> bool:
    """Whether this sets a lock, rather than clear one."""
    return len(row) > len(LockKey._fields)


def packed(changes: Iterable[Change]) -> Iterable[LockTuple | LockKeyTuple]:
    """The changes as plain tuples, in their order."""
    return changes.rows() if isinstance(changes, PackedChanges) else map(pack_change, changes)


def unpack_change(row: LockTuple | LockKeyTuple) -> Change:
    return Set(unpack_lock(row)) if is_set(row) else Clear(LockKey(*row))
