"""What every adapter does with a request, whatever the framework: ask the gate, then the limiters."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar

from gatekeeper.gate import Gate
from gatekeeper.identity import address_of
from gatekeeper.model import Decision

log = logging.getLogger("gatekeeper")

PREFIX6 = 64  # one household; by single addresses each of its 2**64 would have a limit of its own

NOTES_STATE_KEY = "request_log"  # in ASGI's state: what a request log outside of us wants to know
NOTES_ENVIRON_KEY = f"gatelock.{NOTES_STATE_KEY}"  # ... and in WSGI's environment

Request = TypeVar("Request")


class GuardLimiter(Protocol):
    """The part of a limiter that a guard needs.

    In an asyncio application `check_async` and `refund_async` are called instead, if there are any. A guard
    also reads these attributes, as all limiters of `gatekeeper.limits` have them; without them it assumes the
    default:

    - `name`: the policy in headers; "".
    - `store`: where the keys are; its `awaited` must fit the application. None.
    - `is_awaited`: whether `check_async` may suspend; if not, `check` is called, which costs less. True for
      a limiter that has `check_async`.
    - `holds_permits`: whether `leave` must be called when the response is over. True for a limiter that has
      `leave`.
    """

    def check(self, key: str, cost: int, /) -> Decision: ...
    def refund(self, key: str, cost: int, /) -> None: ...


class InFlightLimiter(GuardLimiter, Protocol):
    """One that counts what is at work, as Concurrency does: its `leave` is called when the response is over,
    and what that returns is awaited, unless it is None."""

    def leave(self, key: str, cost: int, /) -> Awaitable[None] | None: ...


class DecisionNotes(Protocol):
    """Where a request log wants to hear for whom the gate was asked: it counts under that very name."""

    def saw(self, who: RequestIdentity, decision: Decision, /) -> None: ...


class RequestIdentity(NamedTuple):
    """What a request says of itself."""

    caller: str = ""
    address: str = ""
    resource: str = ""
    tenant: str = ""
    cost: int = 1
    method: str = "GET"  # for the log
    note: DecisionNotes | None = None

    @property
    def key(self) -> str:
        """By what limiters count: the caller, or the address where there is none, IPv6 by its /64."""
        if self.caller or not self.address:
            return self.caller
        return f"address:{address_of(self.address, PREFIX6) or self.address}"


class CheckResult(NamedTuple):
    """The decision, and what a request took of limiters."""

    decision: Decision
    key: str = ""
    cost: int = 1
    spent: tuple[GuardLimiter, ...] = ()
    limiter: str = ""  # the name of that which leaves least


class AdmissionController:
    """A gate, and the limiters behind it.

    The gate is asked first, so that a request of a locked caller takes nothing from a limiter; and what a
    limiter refuses takes nothing from those before it. With `shadow` nothing is refused; what would have
    been is logged.
    """

    def __init__(self, gate: Gate, limiters: Iterable[GuardLimiter] = (), *, shadow: bool = False) -> None:
        self.gate = gate
        self._limiters = tuple(limiters)
        self._awaited = [(limiter, _awaited_form(limiter)) for limiter in self._limiters]
        self._shadow = shadow
        self._holding = [limiter for limiter in self._limiters if _holds(limiter)]
        # Some permits come back when the response is over: only then an adapter has to see it through.
        self.holds = bool(self._holding)

    def ask(self, who: RequestIdentity) -> CheckResult:
        """Whether this request may pass: the refusal, else the decision that leaves least."""
        decision = self._gated(who)
        if not self._limiters or decision.shadow or not decision.allowed:
            return self.shown(decision, who)
        asking = CheckResultBuilder(decision, who)
        try:
            for limiter in self._limiters:
                if not asking.hear(limiter, limiter.check(asking.key, who.cost)):
                    break
        except BaseException:
            self._undo(asking)
            raise
        if asking.decision.allowed:
            return self._clear(asking, who)
        self._undo(asking)
        return self.shown(asking.decision, who)

    async def ask_async(self, who: RequestIdentity) -> CheckResult:
        """The same, where there is a loop."""
        decision = self._gated(who)
        if not self._limiters or decision.shadow or not decision.allowed:
            return self.shown(decision, who)
        asking = CheckResultBuilder(decision, who)
        try:
            for limiter, check in self._awaited:
                key, cost = asking.key, who.cost
                answer = limiter.check(key, cost) if check is None else await check(key, cost)
                if not asking.hear(limiter, answer):
                    break
        except BaseException:  # cancelled, too: who asked has gone away while a store was waited for
            await self._undo_async(asking)
            raise
        if asking.decision.allowed:
            return self._clear(asking, who)
        await self._undo_async(asking)
        return self.shown(asking.decision, who)

    def refund(self, verdict: CheckResult) -> None:
        """Give back what a request took; what is at work comes back when it is over."""
        for limiter in verdict.spent:
            if limiter not in self._holding:
                limiter.refund(verdict.key, verdict.cost)

    async def refund_async(self, verdict: CheckResult) -> None:
        """The same, where there is a loop."""
        for limiter in verdict.spent:
            if limiter not in self._holding:
                await refund_async(limiter, verdict.key, verdict.cost)

    def leave(self, verdict: CheckResult) -> None:
        """The response is over."""
        for limiter in self._holding:
            if limiter in verdict.spent:
                limiter.leave(verdict.key, verdict.cost)

    async def leave_async(self, verdict: CheckResult) -> None:
        """The same, where there is a loop."""
        for limiter in self._holding:
            if limiter in verdict.spent:
                leaving = limiter.leave(verdict.key, verdict.cost)
                if leaving is not None:
                    await leaving

    def _gated(self, who: RequestIdentity) -> Decision:
        return self.gate.check(who.caller, resource=who.resource, address=who.address, tenant=who.tenant)

    def _clear(self, asking: CheckResultBuilder, who: RequestIdentity) -> CheckResult:
        if who.note is not None:
            who.note.saw(who, asking.decision)
        return asking.verdict()

    def _undo(self, asking: CheckResultBuilder) -> None:
        for limiter in asking.spent:
            limiter.refund(asking.key, asking.cost)

    async def _undo_async(self, asking: CheckResultBuilder) -> None:
        for limiter in asking.spent:
            await refund_async(limiter, asking.key, asking.cost)

    def shown(self, decision: Decision, who: RequestIdentity) -> CheckResult:
        """What the gate's `decision` amounts to where nobody else is asked."""
        if self._shadow and not decision.allowed:
            decision = decision._replace(allowed=True, shadow=True, retry_after=0.0)
        if decision.shadow:
            log.info(
                "would be refused: %s %s by %s (%s)",
                who.method,
                who.caller or who.address,
                decision.policy or "no policy",
                decision.reason,
            )
        if who.note is not None:
            who.note.saw(who, decision)
        return CheckResult(decision)


class CheckResultBuilder:
    """One request on its way through the limiters."""

    __slots__ = ("cost", "decision", "key", "limiter", "spent")

    def __init__(self, decision: Decision, who: RequestIdentity) -> None:
        self.decision = decision  # the refusal, else that which leaves least
        self.key, self.cost = who.key, who.cost
        self.spent: list[GuardLimiter] = []
        self.limiter = ""

    def hear(self, limiter: GuardLimiter, answer: Decision) -> bool:
        """Whether to ask the next."""
        if not answer.allowed:
            self.decision = answer
            return False
        self.spent.append(limiter)
        if _left(answer) < _left(self.decision):
            tags = self.decision.tags
            self.decision = answer._replace(tags=tags) if tags else answer
            self.limiter = getattr(limiter, "name", "")
        return True

    def verdict(self) -> CheckResult:
        return CheckResult(self.decision, self.key, self.cost, tuple(self.spent), self.limiter)


def require_store_client(limiters: Iterable[object], *, awaited: bool) -> None:
    """Raises ValueError for a limiter whose store cannot be asked here: rather now than at each request."""
    for limiter in limiters:
        store = getattr(limiter, "store", None)
        if getattr(store, "awaited", awaited) is not awaited:
            client = (
                "redis.asyncio.Redis, not one that blocks"
                if awaited
                else "redis.Redis, as nobody awaits here"
            )
            raise ValueError(f"limiters: expected a store with a client of {client}")


def make_exemption(
    exempt: Iterable[str] | Callable[[Request], bool], path_of: Callable[[Request], str]
) -> Callable[[Request], bool]:
    """Whether a request is let through unasked: its path is one of `exempt`, or begins like one that ends in
    `/*`; or what a function says of it. Raises TypeError for one path instead of several."""
    if callable(exempt):
        return exempt
    if isinstance(exempt, str):
        raise TypeError(f"exempt: expected a list of paths, or a function, got {exempt!r}")
    paths = frozenset(exempt)
    below = tuple(path[:-1] for path in paths if path.endswith("/*"))
    if not paths:
        return lambda request: False
    if not below:
        return lambda request: path_of(request) in paths
    return lambda request: (path := path_of(request)) in paths or path.startswith(below)


def _holds(limiter: GuardLimiter) -> TypeGuard[InFlightLimiter]:
    return bool(getattr(limiter, "holds_permits", hasattr(limiter, "leave")))


def _awaited_form(limiter: Any) -> Callable[[str, int], Awaitable[Decision]] | None:
    """Returns `check_async`; None if the limiter has none, or it would not suspend: `check` costs less."""
    check_async: Callable[[str, int], Awaitable[Decision]] | None = getattr(limiter, "check_async", None)
    return check_async if getattr(limiter, "is_awaited", True) else None


async def refund_async(limiter: Any, key: str, cost: int) -> None:
    """Give `cost` permits back where there is a loop."""
    refund_async = getattr(limiter, "refund_async", None)
    if refund_async is None:
        limiter.refund(key, cost)
    else:
        await refund_async(key, cost)


def _left(decision: Decision) -> float:
    return inf if decision.remaining is None else decision.remaining
