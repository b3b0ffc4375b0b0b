"""ByPlan: which limiter applies is said with each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from gatekeeper.limits.engine import conveniences
from gatekeeper.limits.engine.conveniences import PermitGuard, Ticks
from gatekeeper.limits.engine.protocol import Key, SavedState
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.model import Decision


class PlanLimiter(Protocol):
    """A limiter of a plan."""

    def allow(self, key: Key = "", cost: int = 1) -> bool: ...
    def check(self, key: Key = "", cost: int = 1) -> Decision: ...
    def peek(self, key: Key = "", cost: int = 1) -> Decision: ...
    def refund(self, key: Key = "", cost: int = 1) -> None: ...
    def reset(self, key: Key = "") -> None: ...
    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation: ...
    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision: ...
    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision: ...
    def leave(self, key: Key, cost: int) -> None: ...
    def dump(self) -> SavedState: ...
    def load(self, saved: SavedState) -> None: ...

    @property
    def configure(self) -> Callable[..., None]: ...


L = TypeVar("L", bound=PlanLimiter)


class ByPlan(Generic[L]):
    """One limiter per plan: `by_plan.allow(key, plan="pro")`, or `by_plan.of("pro")` to keep one.

    Each plan counts for itself, so a caller whose plan changes starts there as a new one. A plan
    that is not known is the `default` one, and a ValueError when there is none.
    """

    __slots__ = ("_default", "_limiters")

    def __init__(self, limiters: Mapping[str, L], default: str | None = None) -> None:
        """Raises ValueError for no plan, or a default that is none of them."""
        self._limiters = dict(limiters)
        if not self._limiters or (default is not None and default not in self._limiters):
            raise ValueError(f"default: expected one of the plans {sorted(self._limiters)}, got {default!r}")
        self._default = default

    def of(self, plan: str | None = None) -> L:
        """The limiter of `plan`. Raises ValueError when it is not known and there is no default."""
        limiter = self._limiters.get("" if plan is None else plan)
        if limiter is None and self._default is not None:
            limiter = self._limiters[self._default]
        if limiter is None:
            raise ValueError(f"plan: expected one of {sorted(self._limiters)}, got {plan!r}")
        return limiter

    def allow(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> bool:
        """Whether `cost` requests of `key` may pass now under `plan`."""
        return self.of(plan).allow(key, cost)

    def check(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """The same, with its fields."""
        return self.of(plan).check(key, cost)

    def peek(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """What `check` would decide now."""
        return self.of(plan).peek(key, cost)

    def refund(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> None:
        """Give `cost` permits back under `plan`."""
        self.of(plan).refund(key, cost)

    def reset(self, key: Key = "") -> None:
        """Forget `key` under every plan."""
        for limiter in self._limiters.values():
            limiter.reset(key)

    def reserve(
        self, key: Key = "", cost: int = 1, max_wait: float | None = None, *, plan: str | None = None
    ) -> Reservation:
        """Permits under `plan` for the first moment at which they are free."""
        return self.of(plan).reserve(key, cost, max_wait)

    def wait(
        self, key: Key = "", cost: int = 1, timeout: float | None = None, *, plan: str | None = None
    ) -> Decision:
        """Allowed once `cost` requests may pass under `plan`; this thread waits."""
        return self.of(plan).wait(key, cost, timeout)

    async def wait_async(
        self, key: Key = "", cost: int = 1, timeout: float | None = None, *, plan: str | None = None
    ) -> Decision:
        """The same for a task; cancelling it spends nothing."""
        return await self.of(plan).wait_async(key, cost, timeout)

    async def allow_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> bool:
        """As `allow`."""
        return self.allow(key, cost, plan=plan)

    async def check_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """As `check`."""
        return self.check(key, cost, plan=plan)

    async def peek_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """As `peek`."""
        return self.peek(key, cost, plan=plan)

    async def reserve_async(
        self, key: Key = "", cost: int = 1, max_wait: float | None = None, *, plan: str | None = None
    ) -> Reservation:
        """As `reserve`."""
        return self.reserve(key, cost, max_wait, plan=plan)

    def enforce(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """As `check`, but a refusal is raised: Refused."""
        return conveniences.enforce(self.of(plan), key, cost)

    async def enforce_async(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Decision:
        """As `enforce`."""
        return self.enforce(key, cost, plan=plan)

    def guard(
        self,
        key: Key | Callable[..., Key] = "",
        cost: int = 1,
        timeout: float | None = None,
        *,
        plan: str | Callable[..., str | None] | None = None,
    ) -> PermitGuard:
        """Permits under `plan` around a block or a function; for a function, `key` and `plan` may be
        functions of the same arguments. Raises Refused when `timeout` seconds will not do."""
        if callable(plan):
            return PermitGuard(
                None, key, cost, timeout, lambda *args, **kwargs: self.of(plan(*args, **kwargs))
            )
        return PermitGuard(self.of(plan), key, cost, timeout)

    def ticks(self, key: Key = "", cost: int = 1, *, plan: str | None = None) -> Ticks:
        """Goes on for ever, each turn when its permits are there under `plan`."""
        return Ticks(self.of(plan), key, cost)

    def configure(self, *, plan: str, **changes: Any) -> None:
        """Another limit for `plan`, as its limiter's own `configure` takes it. Raises ValueError."""
        if plan not in self._limiters:
            raise ValueError(f"plan: expected one of {sorted(self._limiters)}, got {plan!r}")
        self._limiters[plan].configure(**changes)

    def dump(self) -> SavedState:
        """All that is counted under all plans, as json.dumps takes it."""
        return {"limiter": "ByPlan", "plans": {plan: each.dump() for plan, each in self._limiters.items()}}

    def load(self, saved: SavedState) -> None:
        """Count on from what `dump` saved, for each plan that there still is. Raises ValueError."""
        if saved.get("limiter") != "ByPlan":
            raise ValueError(f"saved: expected ByPlan, got {saved!r:.80}")
        for plan, its in saved["plans"].items():
            if plan in self._limiters:
                self._limiters[plan].load(its)
