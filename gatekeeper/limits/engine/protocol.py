"""What every limiter offers to its users, and what every algorithm offers to a limiter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

from gatekeeper.model import Decision

Key = str | tuple[str | int, ...]
NanosecondClock = Callable[[], int]  # whole nanoseconds since any fixed moment
Period = float | timedelta  # seconds, whole or not
Overflow = Literal["shared", "deny", "allow"]
SavedState = dict[str, Any]  # what json.dumps takes

S = TypeVar("S")


class Limiter(Protocol):
    """Decides at once, in memory, whether a request may pass. A refusal is a value, not an error."""

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; they are counted when they may.

        A refusal changes nothing, and neither does a cost of 0. Raises ValueError when `cost` is negative.
        """

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """The same, with limit, remaining, retry_after and reset_after of that very moment."""

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """What `check` would say now; nothing is counted."""

    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Give `cost` permits back, at most what is counted."""

    def reset(self, key: Key = "") -> None:
        """Forget `key`: its next request is its first."""


class KeyStatus(NamedTuple):
    """Where a key stands when nothing more comes."""

    remaining: int  # what may pass now
    reset_ns: int  # until it equals a key that was never seen


class Rule(Protocol[S]):
    """An algorithm: pure functions of a key's state, frozen parameters, whole nanoseconds.

    `now_ns` never goes back. States compare by value. A state is either never written to (spending
    returns another one) or changed in place and returned, and then has a `__copy__`. None in place
    of a state is a key that was never seen.
    """

    @property
    def limit(self) -> int: ...

    @property
    def forget_after_ns(self) -> int:
        """This long after it was last written, a state without bookings ahead equals None."""

    @property
    def max_ahead_ns(self) -> int | None:
        """How far ahead a reservation may lie; None: any distance."""

    @property
    def description(self) -> str:
        """The limit, for a person."""

    def wait_ns(self, state: S | None, now_ns: int, cost: int) -> int | None:
        """How long until `cost` may pass if nothing else comes; 0 is now, None is never."""

    def spend(self, state: S | None, at_ns: int, cost: int) -> S:
        """The state after `cost` passed at `at_ns`: now plus what `wait_ns` said, or later."""

    def give_back(self, state: S, now_ns: int, cost: int) -> S | None:
        """The state after a refund of `cost`."""

    def status(self, state: S | None, now_ns: int) -> KeyStatus:
        """Where the key stands."""

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> Self:
        """This rule with other numbers; None leaves one as it is. Raises ValueError."""

    def convert(self, old: Self, state: S, now_ns: int) -> S | None:
        """The state under this rule, when it was one under `old`: what was used stays used."""

    def pack(self, state: S) -> list[int]:
        """The state as whole numbers."""

    def unpack(self, numbers: list[int], shift_ns: int) -> S:
        """The state again, by a clock that is `shift_ns` ahead of the one it was packed by."""


class AdmittingRule(Rule[S], Protocol[S]):
    """One that has both in one, for speed."""

    def admit(self, state: S | None, now_ns: int, cost: int) -> S | None:
        """What `spend` returns where `wait_ns` says 0, else None."""
