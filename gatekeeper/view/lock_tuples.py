"""Locks and changes as tuples of plain values, as the view and its tables hold them.

The garbage collector stops tracking a tuple that holds only strings, numbers and times. Objects it would keep
tracking: 100,000 locks as objects make it stop all threads for 20 ms, several times while they are applied
and now and then afterwards. Sources therefore build these tuples directly from rows or JSON; the public
`Lock`, `Set` and `Clear` are made only when a caller looks at one.

A lock is a `LockTuple` of 14 values, the key that clears one a `LockKeyTuple` of 4; `is_set` tells them apart
by length. SCOPE and KEY are valid in both, the other positions only in a `LockTuple`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, overload

from gatekeeper.model import Change, Clear, Lock, LockKey, Rate, Set
from gatekeeper.view.cooperative import in_batches, with_pauses

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The fields of Lock in their order, its rate as (limit, period in seconds), then `until` in nanoseconds since
# 1970.
LockTuple = tuple[Any, ...]
LockKeyTuple = tuple[str, str, str, str]  # scope, key, resource, policy: the fields of LockKey
ChangeTuple = LockTuple | LockKeyTuple

SCOPE, KEY, POLICY, BEGAN, UNTIL, RESOURCE, KIND = range(7)
ACTION, STATUS, REASON, DETAIL, ON_STALE, SLOW, END = range(7, 14)


def epoch_ns(time: datetime) -> int:
    """Nanoseconds since 1970; exact, where a float would not be."""
    since = time - EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def pack_lock(lock: Lock) -> LockTuple:
    """The lock as a tuple."""
    slow = None if lock.slow is None else (lock.slow.limit, lock.slow.period)
    return (lock.scope, lock.key, lock.policy, lock.began, lock.until, lock.resource, lock.kind, lock.action,
            lock.status, lock.reason, lock.detail, lock.on_stale, slow, epoch_ns(lock.until))  # fmt: skip


def unpack_lock(lock: LockTuple) -> Lock:
    """The `Lock` that was packed."""
    rate = None if lock[SLOW] is None else Rate(*lock[SLOW])
    return Lock(*lock[:SLOW], rate)  # type: ignore[call-arg]  # the slice holds the other twelve fields


def tuple_key(lock: LockTuple) -> LockKeyTuple:
    """The key under which a lock is set and cleared."""
    return lock[SCOPE], lock[KEY], lock[RESOURCE], lock[POLICY]


def is_set(change: ChangeTuple) -> bool:
    """Whether the change sets a lock; otherwise it clears one."""
    return len(change) > len(LockKey._fields)


def pack_change(change: Change) -> ChangeTuple:
    """The change as a tuple: the lock that it sets, or the key that it clears."""
    if isinstance(change, Set):
        return pack_lock(change.lock)
    scope, key, resource, policy = change.at
    return scope, key, resource, policy


def unpack_change(change: ChangeTuple) -> Change:
    """The `Set` or `Clear` that was packed."""
    return Set(unpack_lock(change)) if is_set(change) else Clear(LockKey(*change))


class PackedChanges(Sequence[Change]):
    """Changes kept as tuples: a sequence of `Set` and `Clear`, equal to a tuple of the same changes."""

    __slots__ = ("_batches",)

    def __init__(self, changes: Iterable[ChangeTuple]) -> None:
        # In tuples of tuples, which the collector stops tracking; a list of 100,000 costs it 5 ms each time.
        self._batches: list[tuple[ChangeTuple, ...]] = list(in_batches(with_pauses(changes)))

    def tuples(self) -> Iterator[ChangeTuple]:
        """The changes as tuples, in their order."""
        return chain.from_iterable(self._batches)

    def __len__(self) -> int:
        return sum(map(len, self._batches))

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Change, ...]: ...
    def __getitem__(self, index: int | slice) -> Change | tuple[Change, ...]:
        selected = tuple(self.tuples())[index]
        return tuple(map(unpack_change, selected)) if isinstance(index, slice) else unpack_change(selected)

    def __iter__(self) -> Iterator[Change]:
        return map(unpack_change, self.tuples())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | PackedChanges) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def packed(changes: Iterable[Change]) -> Iterable[ChangeTuple]:
    """The changes as tuples, in their order."""
    return changes.tuples() if isinstance(changes, PackedChanges) else map(pack_change, changes)
