"""Types that all limiters share: what callers use, what an algorithm provides, what a store provides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, Protocol, Self, TypeVar

from gatekeeper.model import Decision

Key = str | tuple[str | int, ...]
NanosecondClock = Callable[[], int]  # whole nanoseconds since any fixed moment
Period = float | timedelta  # seconds, whole or not
Overflow = Literal["shared", "deny", "allow"]
SavedState = dict[str, Any]  # accepted by json.dumps

S = TypeVar("S")
L = TypeVar("L")


class Limiter(Protocol):
    """Decides whether a request may pass. A refusal is a value, not an error.

    All limiters of this package follow it. In this process a decision is made at once, in memory; with a
    store it takes one round trip.
    """

    @property
    def name(self) -> str:
        """The policy that refusals name, "" unless given."""

    @property
    def store(self) -> LimiterStore | None:
        """The store that holds the keys for several processes; None when this process holds them."""

    @property
    def is_awaited(self) -> bool:
        """Whether decisions must be awaited (`check_async`), because the store's client is an asyncio one."""

    @property
    def holds_permits(self) -> bool:
        """Whether a permit stays in use until the work is over, so that `leave` must follow."""

    @property
    def overflowed(self) -> int:
        """Requests so far whose key found `max_keys` live keys, and so shared a limit or got `overflow`."""

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        A refusal changes nothing, and neither does a cost of 0. Raises ValueError when `cost` is negative.
        """

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `allow`; returns limit, remaining, retry_after and reset_after of that moment, too."""

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision that `check` would make now; counts nothing."""

    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Gives `cost` permits back, at most as many as are counted."""

    def reset(self, key: Key = "") -> None:
        """Forgets `key`: its next request is its first."""


class LimiterStore(Protocol):
    """Holds the keys of limiters outside this process: `gatekeeper.limits.redis.RedisStore`."""

    @property
    def awaited(self) -> bool:
        """Whether its client is an asyncio one, so that decisions must be awaited."""

    def class_for(self, kind: type[L]) -> type[L]:
        """Returns the subclass of `kind` whose keys are in this store, or `kind` if it is one.

        Raises TypeError for a limiter that no store can hold.
        """


# What one key has left if no further request comes: the requests that may pass now, and the nanoseconds until
# it equals a key that was never seen. A plain tuple for speed; each decision creates one.
KeyStatus = tuple[int, int]


class Rule(Protocol[S]):
    """An algorithm: pure functions of one key's state, frozen parameters, whole nanoseconds.

    `now_ns` never goes back. States compare by value. A state is either immutable (spending returns
    another one) or changed in place and returned, and then has a `__copy__`. None in place of a state
    stands for a key that was never seen.
    """

    @property
    def limit(self) -> int: ...

    @property
    def decision_limit(self) -> int:
        """The value of `Decision.limit`: the most that can remain, or a bound above it."""

    @property
    def forget_after_ns(self) -> int:
        """Time after which a state without bookings ahead equals None, counted from its last write."""

    @property
    def max_ahead_ns(self) -> int | None:
        """Longest time that a reservation may lie ahead; None: any time."""

    @property
    def description(self) -> str:
        """The limit as text, for the detail of a refusal."""

    def wait_ns(self, state: S | None, now_ns: int, cost: int) -> int | None:
        """Returns the time until `cost` may pass if nothing else comes; 0 is now, None is never."""

    def admit(self, state: S | None, now_ns: int, cost: int) -> S | None:
        """Returns the state that `spend` returns for a `cost` from 1 if `wait_ns` is 0, else None.

        In one call, for speed. Changes nothing: `state` itself, if it is changed in place, means that the
        cost passes, and `spend` must follow.
        """

    def spend(self, state: S | None, at_ns: int, cost: int) -> S:
        """Returns the state after `cost` passed at `at_ns`, which is now plus `wait_ns`, or later."""

    def refund(self, state: S, now_ns: int, cost: int) -> S | None:
        """Returns the state after a refund of `cost`."""

    def status(self, state: S | None, now_ns: int) -> KeyStatus:
        """Returns what the key has left."""

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> Self:
        """Returns this rule with other numbers; None keeps one. Raises ValueError."""

    def convert(self, old: Self, state: S, now_ns: int) -> S | None:
        """Returns a state of the rule `old` as a state of this one: permits that were used stay used."""

    def pack(self, state: S) -> list[int]:
        """Returns the state as whole numbers."""

    def unpack(self, numbers: list[int], shift_ns: int) -> S:
        """Returns a packed state, by a clock that is `shift_ns` ahead of the one it was packed by."""
