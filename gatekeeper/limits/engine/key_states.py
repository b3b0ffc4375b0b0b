"""The state of each key, the mutex around it, and forgetting those that are idle."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from gatekeeper.limits.engine.protocol import Key, NanosecondClock, Overflow, S
from gatekeeper.limits.engine.wait_queue import WaitQueues

T = TypeVar("T")

KEYS_MAX: Final = 1_000_000  # some 80 MB of token buckets; a limiter never holds more unless told to
SHARED: Final[Key] = ("", 0, "", "shared by the keys that found no room")


class KeyStates(Generic[S]):
    """The states of at most `max_keys` keys, in two generations.

    Whoever reads or writes holds the mutex, in this form and no other:

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

    The mutex is tried, never slept on: under the GIL a thread that sleeps on a mutex must win
    back the GIL too, which makes each decision two context switches and costs a factor of ten.
    It is taken inside `try` because a signal handler may raise right after it was taken. It is
    re-entrant because then giving it back checks the owner, and because a signal handler or a
    finaliser that asks the limiter, while its own thread is inside, must not wait for itself.
    The clock is read inside, or time could run backwards between two threads.
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
        "waiters",
        "young",
    )

    def __init__(
        self, forget_after_ns: int, max_keys: int, overflow: Overflow, clock: NanosecondClock
    ) -> None:
        if overflow not in ("shared", "deny", "allow"):
            raise ValueError(f"overflow: expected 'shared', 'deny' or 'allow', got {overflow!r}")
        self.clock = clock if clock is time.monotonic_ns else monotonic(clock)
        self.max_keys = max_keys
        self.overflow: Overflow = overflow
        self.overflowed = 0  # requests of keys that found no room
        self.max_waiters: int | None = None  # how many may wait for one key; None: any number
        self.young: dict[Key, S] = {}
        self.old: dict[Key, S] = {}
        self.forget_after_ns = self.retention_ns = forget_after_ns
        self.rotate_ns = self.clock() + forget_after_ns
        self.renew()
        forked_registry.add(self)

    def renew(self) -> None:
        """Start with a mutex that nobody holds and nobody in line: at birth, and in a forked child."""
        self.waiters = WaitQueues()
        self.mutex = threading.RLock()

    def acquire_mutex(self) -> None:
        """Return with the mutex held, also when a signal handler raises meanwhile."""
        mutex = self.mutex
        try:
            if gil_is_enabled():
                while not mutex.acquire(False):
                    time.sleep(0)  # lets another thread run
            else:
                mutex.acquire()
        except BaseException:
            mutex.acquire()  # the caller's `finally` gives it back
            raise

    def exclusively(self, do: Callable[[], T]) -> T:
        """What `do` returns, called with the mutex held: for what is rare enough to be called."""
        mutex = self.mutex
        try:
            if not mutex.acquire(False):
                self.acquire_mutex()
            return do()
        finally:
            mutex.release()

    def rotate(self, now_ns: int) -> None:
        """Forget the old generation, and let the young one be the old.

        Every key in it was last written before the young generation began, `retention_ns` ago or more,
        and so equals a key that was never seen.
        """
        nobody_came = now_ns >= self.rotate_ns + self.retention_ns
        self.old = {} if nobody_came else self.young
        self.young = {}
        self.rotate_ns = now_ns + self.retention_ns
        self.retention_ns = self.forget_after_ns

    def keep_for_booking(self, delay_ns: int) -> None:
        """Keep what is written now for `delay_ns` longer: a booking lies that far ahead."""
        self.retention_ns = max(self.retention_ns, self.forget_after_ns + delay_ns)

    def set_retention(self, forget_after_ns: int, now_ns: int) -> None:
        """Keep states for `forget_after_ns` from now on."""
        self.forget_after_ns = forget_after_ns
        self.retention_ns = max(self.retention_ns, forget_after_ns)
        self.rotate_ns = max(self.rotate_ns, now_ns + forget_after_ns)

    def get(self, key: Key) -> S | None:
        """The state of `key`; None when it was never seen or is forgotten."""
        state = self.young.get(key)
        return self.old.get(key) if state is None else state

    def put(self, key: Key, state: S | None) -> None:
        """Write the state of a key that `slot` has given its place."""
        if state is None:
            self.drop(key)
        else:
            self.young[key] = state

    def drop(self, key: Key) -> None:
        """Forget `key` now."""
        self.young.pop(key, None)
        self.old.pop(key, None)

    def take_slot(self, key: Key) -> Key | None:
        """Under which key to count `key`, which is not among the young; None for not at all.

        A key of the old generation moves to the young. When there is no room, nobody's debt is
        forgotten: strangers share one state, or `overflow` answers for them.
        """
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
        """What `slot` would answer, without moving or counting anything."""
        if key in self.young or key in self.old or len(self.young) + len(self.old) < self.max_keys:
            return key
        return SHARED if self.overflow == "shared" else None


def gil_is_enabled() -> bool:
    """Whether only one thread runs Python at a time, in this process and now."""
    ask: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # since 3.13
    return ask is None or ask()


def monotonic(clock: NanosecondClock) -> NanosecondClock:
    """`clock`, but status still while the original is behind what it has already said."""
    last_ns = clock()

    def clamped() -> int:
        nonlocal last_ns
        now_ns = clock()
        if now_ns > last_ns:
            last_ns = now_ns
        return last_ns

    if hasattr(clock, "wait"):  # it lets the time pass itself
        clamped.wait = clock.wait  # type: ignore[attr-defined]  # a function may have one
    return clamped


class RenewableMutex(Protocol):
    """Holds a mutex."""

    def renew(self) -> None:
        """Start with a mutex that nobody holds."""


# A child of fork has one thread: a mutex that another thread of the parent held would stay
# held for ever.
forked_registry: weakref.WeakSet[RenewableMutex] = weakref.WeakSet()


def _renew_in_child() -> None:
    for holder in list(forked_registry):
        holder.renew()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_in_child)
