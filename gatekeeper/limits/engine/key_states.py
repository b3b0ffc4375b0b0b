"""The state of each key, the mutex that guards it, and forgetting of idle keys.

Keys are kept in two generations. A request writes into the young one; every `forget_after_ns` the young
one becomes the old one and the old one is dropped. All keys in the dropped generation were last written at
least that long ago, so each equals a key that was never seen: no timer, no scan, and no decision changes.

The invariant that this rests on: each write rotates first when a rotation is due, so that a young generation
has no write after its end. The one exception, the quick path of `GcraLimiter.allow`, is declared by
`rotates_on_write=False`, and its generations are kept longer. tests/limits/test_traces.py checks both.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from gatekeeper import lifecycle
from gatekeeper.limits.engine.protocol import Key, NanosecondClock, Overflow, S
from gatekeeper.limits.engine.units import require_callable, require_key, whole_number
from gatekeeper.limits.engine.wait_queue import WaitQueues

T = TypeVar("T")

KEYS_MAX: Final = 1_000_000  # default bound: some 80 MB of token buckets
# The key that all keys without a slot share. Saved states contain it, so it must not change.
SHARED: Final[Key] = ("", 0, "", "shared by the keys that found no room")


class KeyStates(Generic[S]):
    """States of at most `max_keys` keys, in two generations.

    Every reader and writer holds the mutex, in this form and no other:

        mutex = keys.mutex
        try:
            if not mutex.acquire(False):
                keys.acquire_mutex()
            now_ns = keys.clock()
            if now_ns >= keys.rotate_ns:
                keys.rotate(now_ns)
            ...
        finally:
            mutex.release()

    The mutex is polled, never slept on: under the GIL a thread that sleeps on a mutex has to win back the
    GIL as well, which makes each decision two context switches and costs a factor of ten. It is acquired
    inside `try` because a signal handler may raise right after it was acquired. It is re-entrant for two
    reasons: releasing it then checks the owner, and a signal handler or a finaliser that calls the limiter
    while its own thread is inside must not wait for itself. The clock is read inside, or time could run
    backwards between two threads.
    """

    __slots__ = (
        "__weakref__",
        "clock",
        "forget_after_ns",
        "max_keys",
        "max_waiters",
        "mutex",
        "old",
        "overflow",
        "overflowed",
        "retention_ns",
        "rotate_ns",
        "rotates_on_write",
        "waiters",
        "young",
    )

    def __init__(
        self,
        forget_after_ns: int,
        max_keys: int,
        overflow: Overflow,
        clock: NanosecondClock,
        *,
        rotates_on_write: bool = True,  # False: a write may leave out the rotation that is due
    ) -> None:
        if overflow not in ("shared", "deny", "allow"):
            raise ValueError(f"overflow: expected 'shared', 'deny' or 'allow', got {overflow!r}")
        require_callable(clock, "clock")
        self.clock = clock if clock is time.monotonic_ns else monotonic(clock)
        self.max_keys = whole_number(max_keys, "max_keys")
        self.overflow: Overflow = overflow
        self.overflowed = 0  # requests of keys that found no slot
        self.max_waiters: int | None = None  # for one key; None: any number
        self.young: dict[Key, S] = {}
        self.old: dict[Key, S] = {}
        self.forget_after_ns = self.retention_ns = forget_after_ns
        self.rotate_ns = self.clock() + forget_after_ns
        self.rotates_on_write = rotates_on_write
        self.init_process_state()
        init_in_children(self)

    def init_process_state(self) -> None:
        """Starts with a free mutex and no waiters: on creation, and in a forked child."""
        self.waiters = WaitQueues()
        self.mutex = threading.RLock()

    def empty_copy(self, clock: NanosecondClock) -> KeyStates[Any]:
        """Returns the same settings without keys, by another clock."""
        copy: KeyStates[Any] = KeyStates(
            self.forget_after_ns,
            self.max_keys,
            self.overflow,
            clock,
            rotates_on_write=self.rotates_on_write,
        )
        copy.max_waiters = self.max_waiters
        return copy

    def acquire_mutex(self) -> None:
        """Returns with the mutex held, even when a signal handler raises meanwhile."""
        mutex = self.mutex
        try:
            if gil_is_enabled():
                while not mutex.acquire(False):
                    time.sleep(0)  # lets another thread run
            else:
                mutex.acquire()
        except BaseException:
            mutex.acquire()  # the caller's `finally` releases it
            raise

    def exclusively(self, action: Callable[[], T]) -> T:
        """Returns the result of `action`, called with the mutex held: for rare operations."""
        mutex = self.mutex
        try:
            if not mutex.acquire(False):
                self.acquire_mutex()
            return action()
        finally:
            mutex.release()

    def rotate(self, now_ns: int) -> None:
        """Forgets the old generation; the young one becomes the old one.

        Every key of the old generation was last written before the young one began, `retention_ns` ago
        or more, and so equals a key that was never seen. If nothing was written for that long, the young
        generation is forgotten, too; a late rotation shows it only if every write rotates when it is due.
        """
        is_idle = self.rotates_on_write and now_ns >= self.rotate_ns + self.retention_ns
        self.old = {} if is_idle else self.young
        self.young = {}
        self.rotate_ns = now_ns + self.retention_ns
        self.retention_ns = self.forget_after_ns

    def keep_for_booking(self, delay_ns: int) -> None:
        """Keeps what is written now for `delay_ns` longer, because a booking lies that far ahead."""
        self.retention_ns = max(self.retention_ns, self.forget_after_ns + delay_ns)

    def set_retention(self, forget_after_ns: int, now_ns: int) -> None:
        """Keeps states for `forget_after_ns` from now on."""
        self.forget_after_ns = forget_after_ns
        self.retention_ns = max(self.retention_ns, forget_after_ns)
        self.rotate_ns = max(self.rotate_ns, now_ns + forget_after_ns)

    def get(self, key: Key) -> S | None:
        """Returns the state of `key`; None when it was never seen or is forgotten."""
        state = self.young.get(key)
        return self.old.get(key) if state is None else state

    def put(self, key: Key, state: S | None) -> None:
        """Writes the state of a key that `take_slot` returned."""
        if state is None:
            self.drop(key)
        else:
            self.young[key] = state

    def drop(self, key: Key) -> None:
        """Forgets `key` now."""
        self.young.pop(key, None)
        self.old.pop(key, None)

    def take_slot(self, key: Key) -> Key | None:
        """Returns the key under which to count `key`, not in the young generation; None if no slot is free.

        A key of the old generation moves to the young one. When `max_keys` are live, none of them is
        dropped for a new one: new keys share one state, or `overflow` decides about them. Raises TypeError
        for what is not a key: here, because each key comes this way first, and few decisions do.
        """
        if type(key) is not str:
            require_key(key)
        state = self.old.pop(key, None)
        if state is not None:
            self.young[key] = state
            return key
        if len(self.young) + len(self.old) < self.max_keys or key == SHARED:
            return key
        self.overflowed += 1
        if self.overflow != "shared":
            return None
        return SHARED if SHARED in self.young else self.take_slot(SHARED)

    def find_slot(self, key: Key) -> Key | None:
        """Returns what `take_slot` would return, without moving or counting anything."""
        if type(key) is not str:
            require_key(key)
        if key in self.young or key in self.old or len(self.young) + len(self.old) < self.max_keys:
            return key
        return SHARED if self.overflow == "shared" else None


def gil_is_enabled() -> bool:
    """Whether only one thread runs Python at a time, in this process and now."""
    ask: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # since 3.13
    return ask is None or ask()


def monotonic(clock: NanosecondClock) -> NanosecondClock:
    """Returns `clock`, except that its time stops while the original is behind an earlier reading."""
    last_ns = clock()

    def clamped() -> int:
        nonlocal last_ns
        now_ns = clock()
        if now_ns > last_ns:
            last_ns = now_ns
        return last_ns

    if hasattr(clock, "wait"):  # a clock that lets the time pass by itself, see ThreadWaker
        clamped.wait = clock.wait  # type: ignore[attr-defined]  # a function may have one
    return clamped


class ProcessState(Protocol):
    """An object with state that belongs to one process: mutexes, waiters, threads."""

    def init_process_state(self) -> None:
        """Starts with a free mutex and no waiters."""


_in_children: weakref.WeakSet[ProcessState] = weakref.WeakSet()


def init_in_children(holder: ProcessState) -> None:
    """Calls `holder.init_process_state` in each forked child, for as long as `holder` exists.

    A child of fork has one thread: a mutex that another thread of the parent held would stay held forever.
    """
    _in_children.add(holder)


def _after_fork() -> None:
    for holder in list(_in_children):
        holder.init_process_state()


lifecycle.on_fork(_after_fork)
