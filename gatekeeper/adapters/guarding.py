"""What every adapter does with a request, whatever the framework: ask the gate, then the limiters."""

from __future__ import annotations

import logging
from collections.abc import Generator
from math import inf
from typing import Any, NamedTuple, Protocol

from gatekeeper.gate import Gate
from gatekeeper.model import Decision

log = logging.getLogger("gatekeeper")


class Limits(Protocol):
    """A limiter, as far as a guard needs one. Where there is a loop its async forms are asked, if it has
    any: `check_async` and `refund_async`."""

    def check(self, key: str, cost: int, /) -> Decision: ...
    def refund(self, key: str, cost: int, /) -> None: ...


class Who(NamedTuple):
    """What a request says of itself."""

    caller: str = ""
    address: str = ""
    resource: str = ""
    tenant: str = ""
    cost: int = 1
    method: str = "GET"  # for the log

    @property
    def key(self) -> str:
        """By what limiters count: the caller, or the address where there is none."""
        return self.caller or (f"address:{self.address}" if self.address else "")


class Verdict(NamedTuple):
    """The decision, and what a request took that may be given back."""

    decision: Decision
    key: str = ""
    cost: int = 1
    spent: tuple[Limits, ...] = ()


Asking = Generator[Limits, Decision, Verdict]


class Checkpoint:
    """A gate, and the limiters behind it.

    The gate is asked first, so that a request of a locked caller takes nothing from a limiter; and what a
    limiter refuses takes nothing from those before it. With `shadow` nothing is refused; what would have
    been is logged.
    """

    def __init__(self, gate: Gate, limiters: tuple[Limits, ...] = (), *, shadow: bool = False) -> None:
        self.gate = gate
        self._limiters = limiters
        self._shadow = shadow

    def ask(self, who: Who) -> Verdict:
        """Whether this request may pass: the refusal, else the decision that leaves least."""
        asking = self._asking(who)
        try:
            limiter = next(asking)
            while True:
                limiter = asking.send(limiter.check(who.key, who.cost))
        except StopIteration as end:
            verdict: Verdict = end.value
        if not verdict.decision.allowed or verdict.decision.shadow:
            self.refund(verdict)
            return self._shown(verdict, who)
        return verdict

    async def ask_async(self, who: Who) -> Verdict:
        """The same, where there is a loop."""
        asking = self._asking(who)
        try:
            limiter = next(asking)
            while True:
                limiter = asking.send(await _checked(limiter, who.key, who.cost))
        except StopIteration as end:
            verdict: Verdict = end.value
        if not verdict.decision.allowed or verdict.decision.shadow:
            await self.refund_async(verdict)
            return self._shown(verdict, who)
        return verdict

    def refund(self, verdict: Verdict) -> None:
        """Give back what a request took of the limiters."""
        for limiter in verdict.spent:
            limiter.refund(verdict.key, verdict.cost)

    async def refund_async(self, verdict: Verdict) -> None:
        """The same, where there is a loop."""
        for limiter in verdict.spent:
            refund_async = getattr(limiter, "refund_async", None)
            if refund_async is None:
                limiter.refund(verdict.key, verdict.cost)
            else:
                await refund_async(verdict.key, verdict.cost)

    def _asking(self, who: Who) -> Asking:
        decision = self.gate.check(who.caller, resource=who.resource, address=who.address, tenant=who.tenant)
        if decision.shadow or not decision.allowed:
            return Verdict(decision)
        spent: list[Limits] = []
        for limiter in self._limiters:
            answer = yield limiter
            if not answer.allowed:
                return Verdict(answer, who.key, who.cost, tuple(spent))
            spent.append(limiter)
            decision = min(decision, answer, key=_left)._replace(tags=decision.tags)
        return Verdict(decision, who.key, who.cost, tuple(spent))

    def _shown(self, verdict: Verdict, who: Who) -> Verdict:
        decision = verdict.decision
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
        return Verdict(decision)


async def _checked(limiter: Any, key: str, cost: int) -> Decision:
    check_async = getattr(limiter, "check_async", None)
    decision: Decision = limiter.check(key, cost) if check_async is None else await check_async(key, cost)
    return decision


def _left(decision: Decision) -> float:
    return inf if decision.remaining is None else decision.remaining
