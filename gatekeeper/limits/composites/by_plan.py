"""A limiter per plan; each request names its plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from gatekeeper.limits.engine.conveniences import PermitGuard, Ticks, permit_guard, raise_refusal
from gatekeeper.limits.engine.protocol import Key, LimiterStore, NanosecondClock, SavedState
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.model import Decision


class PlanLimiter(Protocol):
    """The part of a limiter of a rate, or of `AllOf`, that `ByPlan` and `Sharded` need."""

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> LimiterStore | None: ...
    @property
    def is_awaited(self) -> bool: ...
    @property
    def holds_permits(self) -> bool: ...
    @property
    def overflowed(self) -> int: ...
    def allow(self, key: Key = "", cost: int = 1) -> bool: ...
    def check(self, key: Key = "", cost: int = 1) -> Decision: ...
    def peek(self, key: Key = "", cost: int = 1) -> Decision: ...
    def refund(self, key: Key = "", cost: int = 1) -> None: ...
    async def refund_async(self, key: Key = "", cost: int = 1) -> None: ...
    def reset(self, key: Key = "") -> None: ...
    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation: ...
    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision: ...
    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision: ...
    async def allow_async(self, key: Key = "", cost: int = 1) -> bool: ...
    async def check_async(self, key: Key = "", cost: int = 1) -> Decision: ...
    async def peek_async(self, key: Key = "", cost: int = 1) -> Decision: ...
    async def reserve_async(
        self, key: Key = "", cost: int = 1, max_wait: float | None = None
    ) -> Reservation: ...
    def leave(self, key: Key, cost: int) -> Awaitable[None] | None: ...
    def dump(self) -> SavedState: ...
    def load(self, saved: SavedState) -> None: ...
    def start_over(self, clock: NanosecondClock) -> Callable[[], None]: ...

    @property
    def configure(self) -> Callable[..., None]: ...


L = TypeVar("L", bound=PlanLimiter)


def start_over_all(limiters: Iterable[PlanLimiter], clock: NanosecondClock) -> Callable[[], None]:
    """Lets all `limiters` count from zero by `clock`, until the function that it returns is called."""
    restore_all = [limiter.start_over(clock) for limiter in limiters]

    def restore() -> None:
        for restore_one in restore_all:
            restore_one()

    return restore


def require_limiter(limiter: L, name: str) -> L:
    """Returns `limiter`. Raises TypeError unless it decides about requests."""
    if not callable(getattr(limiter, "check", None)) or isinstance(limiter, type):
        raise TypeError(f"{name}: expected a limiter, got {limiter!r:.80}")
    return limiter


class ByPlan(Generic[L]):
    """A limiter per plan: `by_plan.allow(key, plan="pro")`, or `by_plan.of("pro")` to keep the limiter.

    Each plan counts separately, so a caller whose plan changes starts there as a new one. A request whose
    plan is unknown or missing is decided by the default plan; without a default it raises ValueError. Costs
    one look-up more than the plan's limiter.

    Args:
        limiters: The limiter of each plan, by the plan's name; one or more.
        default: The plan of requests whose plan is unknown or None; None, the default, raises for them.

    Raises:
        ValueError: No plan, or a default that is not one of them.
        TypeError: What is not a mapping, or a value in it that is not a limiter.

    Example:
        >>> from gatekeeper.limits import SlidingLog
        >>> plans = ByPlan({"free": SlidingLog(10, 60), "pro": SlidingLog(1000, 60)}, default="free")
        >>> plans.check("acme", plan="pro").limit, plans.check("initech").limit
        (1000, 10)
    """

    __slots__ = ("_default", "_limiters")

    def __init__(self, limiters: Mapping[str, L], default: str | None = None) -> None:
        if not isinstance(limiters, Mapping):
            raise TypeError(f"limiters: expected a limiter per plan, such as a dict, got {limiters!r:.80}")
        self._limiters = {plan: require_limiter(limiter, plan) for plan, limiter in limiters.items()}
        if not self._limiters or (default is not None and default not in self._limiters):
            raise ValueError(f"default: expected one of the plans {sorted(self._limiters)}, got {default!r}")
        self._default = default

    def __repr__(self) -> str:
        return f"<ByPlan {self._limiters!r}, default={self._default!r}>"

    def of(self, plan: str | None = None) -> L:
        """Returns the limiter of `plan`. Raises ValueError when it is unknown and no default is set."""
        limiter = self._limiters.get("" if plan is None else plan)
        if limiter is None and self._default is not None:
            limiter = self._limiters[self._default]
        if limiter is None:
            raise ValueError(f"plan: expected one of {sorted(self._limiters)}, got {plan!r}")
        return limiter

    @property
    def name(self) -> str:
        """The name of the default plan's limiter, "" without a default."""
        return "" if self._default is None else self.of().name

    @property
    def store(self) -> LimiterStore | None:
        """The store of the default plan's limiter; None without a default."""
        return None if self._default is None else self.of().store

    @property
    def is_awaited(self) -> bool:
        """Whether decisions of the default plan must be awaited; False without a default."""
        return self._default is not None and self.of().is_awaited

    @property
    def holds_permits(self) -> bool:
        """Whether a permit of the default plan stays in use until `leave`; False without a default."""
        return self._default is not None and self.of().holds_permits

    @property
    def overflowed(self) -> int:
        """Requests so far whose key found no room; the sum over the plans."""
        return sum(limiter.overflowed for limiter in self._limiters.values())

    def allow(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> bool:
        """Whether `cost` requests of `key` may pass now under `plan`; if so they are counted."""
        return self.of(plan).allow(key, cost)

    def check(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """Decides as `allow` does; returns the decision with its numbers."""
        return self.of(plan).check(key, cost)

    def peek(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """Returns the decision that `check` would make now; counts nothing."""
        return self.of(plan).peek(key, cost)

    def refund(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> None:
        """Gives `cost` permits of `key` back under `plan`."""
        self.of(plan).refund(key, cost)

    def reset(self, key: Key = "") -> None:
        """Forgets `key` under every plan."""
        for limiter in self._limiters.values():
            limiter.reset(key)

    def reserve(
        self, key: Key = "", cost: int = 1, max_wait: float | None = None, *, plan: str | None = None
    ) -> Reservation:
        """Books `cost` permits of `key` under `plan`, for the first moment at which they are free."""
        return self.of(plan).reserve(key, cost, max_wait)

    def wait(
        self, key: Key = "", cost: int = 1, timeout: float | None = None, *, plan: str | None = None
    ) -> Decision:
        """Returns an allowed decision once `cost` requests may pass under `plan`; this thread waits.

        Returns a refusal when `timeout` seconds do not suffice.
        """
        return self.of(plan).wait(key, cost, timeout)

    async def wait_async(
        self, key: Key = "", cost: int = 1, timeout: float | None = None, *, plan: str | None = None
    ) -> Decision:
        """Waits as `wait` does, as an asyncio task; cancelling it spends nothing."""
        return await self.of(plan).wait_async(key, cost, timeout)

    def leave(self, key: Key, cost: int, *, plan: str | None = None) -> Awaitable[None] | None:
        """Ends the work that permits of `key` were taken for under `plan`."""
        return self.of(plan).leave(key, cost)

    async def allow_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> bool:
        """Decides as `allow` does."""
        return await self.of(plan).allow_async(key, cost)

    async def check_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """Decides as `check` does."""
        return await self.of(plan).check_async(key, cost)

    async def peek_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """Returns the decision as `peek` does."""
        return await self.of(plan).peek_async(key, cost)

    async def refund_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> None:
        """Gives permits back under `plan`, as `refund` does."""
        await self.of(plan).refund_async(key, cost)

    async def reserve_async(
        self, key: Key = "", cost: int = 1, max_wait: float | None = None, *, plan: str | None = None
    ) -> Reservation:
        """Books as `reserve` does."""
        return await self.of(plan).reserve_async(key, cost, max_wait)

    def enforce(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """Decides as `check` does. Raises Refused, which carries the decision, if refused."""
        return raise_refusal(self.check(key, cost, plan=plan))

    async def enforce_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """Decides as `enforce` does. Raises Refused."""
        return raise_refusal(await self.of(plan).check_async(key, cost))

    def guard(
        self,
        positional: Key = "",
        /,
        cost: int = 1,
        timeout: float | None = None,
        *,
        key: Key | Callable[..., Key] | None = None,
        plan: str | Callable[..., str | None] | None = None,
    ) -> PermitGuard:
        """Returns permits under `plan` around a block or a function.

        For a function, `key` and `plan` may be functions of the same arguments. Entering raises Refused when
        `timeout` seconds do not suffice.
        """
        if callable(plan):
            return permit_guard(
                None, positional, key, cost, timeout, lambda *args, **kwargs: self.of(plan(*args, **kwargs))
            )
        return permit_guard(self.of(plan), positional, key, cost, timeout)

    def ticks(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Ticks:
        """Returns an endless iterator, each turn of which waits for its permits under `plan`."""
        return Ticks(self.of(plan), key, cost)

    def configure(self, *, plan: str, **changes: Any) -> None:
        """Applies another limit to `plan`; `changes` are those of its limiter's `configure`.

        Raises ValueError for an unknown plan.
        """
        if plan not in self._limiters:
            raise ValueError(f"plan: expected one of {sorted(self._limiters)}, got {plan!r}")
        self._limiters[plan].configure(**changes)

    def dump(self) -> SavedState:
        """Returns all that is counted under all plans, as json.dumps accepts it."""
        plans = {plan: limiter.dump() for plan, limiter in self._limiters.items()}
        return {"limiter": "ByPlan", "plans": plans}

    def load(self, saved: SavedState) -> None:
        """Continues from what `dump` saved, for each plan that still exists. Raises ValueError."""
        if saved.get("limiter") != "ByPlan":
            raise ValueError(f"saved: expected ByPlan, got {saved!r:.80}")
        for plan, saved_plan in saved["plans"].items():
            if plan in self._limiters:
                self._limiters[plan].load(saved_plan)

    def start_over(self, clock: NanosecondClock) -> Callable[[], None]:
        """Counts from zero, by another clock, until the function that it returns is called: for tests."""
        return start_over_all(self._limiters.values(), clock)
