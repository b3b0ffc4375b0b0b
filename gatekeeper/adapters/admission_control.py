"""Admission control of requests, for every framework: checks the gate, then the limiters.

A request is charged to limiters in their order. When one of them denies it, fails, or the client disconnects
while a store is awaited, the permits that earlier limiters gave are refunded, so that only an admitted
request costs anything. After the response two things remain: `refund` when the application wants it, and
`leave` for limiters that count requests in flight.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar

from gatekeeper.adapters.caller_extraction import asked_caller
from gatekeeper.adapters.refusal_response import (
    HeaderStyle,
    LimitItem,
    RefusalResponse,
    admission_item,
    limit_headers,
    refusal,
    require_style,
)
from gatekeeper.gate import Gate
from gatekeeper.identity import PREFIX6, address_of
from gatekeeper.log_pace import LogPace
from gatekeeper.model import Decision

log = logging.getLogger("gatekeeper")

# Keys of the request log's notes, in ASGI's state and in WSGI's environment.
NOTES_STATE_KEY = "request_log"
NOTES_ENVIRON_KEY = f"gatelock.{NOTES_STATE_KEY}"

Request = TypeVar("Request")

NamedValues = Mapping[str, str]  # of a request, by name
NO_VALUES: NamedValues = MappingProxyType({})


class GuardLimiter(Protocol):
    """The part of a limiter that a guard uses.

    In an asyncio application a guard calls `check_async` and `refund_async` instead, if the limiter has them.
    It also reads these attributes, which all limiters of `gatekeeper.limits` have; without them it assumes
    the default:

    - `name`: the policy in headers; "".
    - `store`: where the keys are; its `awaited` must fit the application. None.
    - `is_awaited`: whether `check_async` may suspend; if not, `check` is called, which costs less. True for
      a limiter that has `check_async`.
    - `holds_permits`: whether `leave` must be called when the response is complete. True for a limiter that
      has `leave`.
    """

    def check(self, key: str, cost: int, /) -> Decision: ...
    def refund(self, key: str, cost: int, /) -> None: ...


class InFlightLimiter(GuardLimiter, Protocol):
    """A limiter of requests in flight, such as Concurrency.

    `leave` is called when the response is complete; what it returns is awaited, unless it is None.
    """

    def leave(self, key: str, cost: int, /) -> Awaitable[None] | None: ...


class DecisionNotes(Protocol):
    """Notes of a request log, which counts the request under the name that the guard checked."""

    decision: Decision | None

    def note_decision(self, identity: RequestIdentity, decision: Decision, /) -> None: ...


class RequestIdentity(NamedTuple):
    """Names, cost and method of a request."""

    caller: str = ""
    address: str = ""
    resource: str = ""
    tenant: str = ""
    cost: int = 1
    method: str = "GET"  # for the log
    notes: DecisionNotes | None = None
    values: NamedValues = NO_VALUES  # named values

    @property
    def key(self) -> str:
        """The limiters' key: the caller, or the address of a request without one, IPv6 by its /64."""
        return self.caller or self.address_key

    @property
    def address_key(self) -> str:
        """The key of limiters per address, IPv6 by its /64; the caller where no address is known."""
        if not self.address:
            return self.caller
        return f"address:{address_of(self.address, PREFIX6) or self.address}"


class PerAddress:
    """A limiter of a guard that is keyed by the address of the client, with or without a caller.

    A client that sends another key with each request never meets a limiter by caller twice.

    Args:
        limiter: The limiter. Its limit holds for all callers of one address together, such as an office:
            choose it larger than that of one caller. Give the guard another one by caller: requests without a
            caller would be counted in it twice.

    Raises:
        TypeError: `limiter` is not a limiter.

    Example:
        >>> from gatekeeper import SlidingLog
        >>> PerAddress(SlidingLog(limit=200, period=1, name="flood"))
        PerAddress(<SlidingLog 'flood': 200 in any 1 s>)
    """

    __slots__ = ("limiter",)

    def __init__(self, limiter: GuardLimiter) -> None:
        if isinstance(limiter, PerAddress) or not is_limiter(limiter):
            raise TypeError(f"limiter: expected a limiter, got {limiter!r:.80}")
        self.limiter = limiter

    def __repr__(self) -> str:
        return f"PerAddress({self.limiter!r})"


Charge = tuple[GuardLimiter, str]  # a limiter that gave permits, and the key that it gave them to


class CheckResult(NamedTuple):
    """Decision on a request, the permits that limiters gave for it, and what remains of each limit."""

    decision: Decision
    cost: int = 1
    charged: tuple[Charge, ...] = ()
    limits: tuple[LimitItem, ...] = ()


class AdmissionController:
    """Decides whether requests may pass: checks the gate first, then the limiters in their order.

    A denied request costs nothing: neither after the gate denied it nor after one of the limiters did.

    Args:
        gate: The gate that is checked first.
        limiters: Limiters that are checked after the gate.
        values: Names of the named values that identities have.
        awaited: Whether the application calls `check_async`; stores of limiters then need an asyncio client.
        shadow: Whether to deny no request; those that would have been denied are logged.
        headers: Style of the headers about limits.

    Raises:
        ValueError: `headers` is unknown, the gate does not take one of `values`, or a limiter's store has
            the wrong kind of client.
        TypeError: One of `limiters` is not a limiter.
    """

    def __init__(
        self,
        gate: Gate,
        limiters: Iterable[GuardLimiter | PerAddress] = (),
        *,
        values: Iterable[str] = (),
        awaited: bool = False,
        shadow: bool = False,
        headers: HeaderStyle = "off",
    ) -> None:
        require_style(headers)
        require_values(gate, values)
        limiters = tuple(limiters)
        for limiter in limiters:
            if not is_limiter(limiter):
                raise TypeError(f"limiters: expected limiters, got {limiter!r:.80}")
        self.gate = gate
        self._checks = [
            (limiter.limiter, True) if isinstance(limiter, PerAddress) else (limiter, False)
            for limiter in limiters
        ]
        require_store_client((limiter for limiter, _ in self._checks), awaited=awaited)
        self._async_checks = [(*pair, _suspending_check(pair[0])) for pair in self._checks]
        self._shadow = shadow
        self._headers: HeaderStyle = headers
        # Only then must an adapter follow the response to its end.
        self.holds_permits = any(_holds_permits(limiter) for limiter, _ in self._checks)
        self._shadow_paces: defaultdict[str, LogPace] = defaultdict(LogPace)  # by the reason

    def check(self, identity: RequestIdentity) -> CheckResult:
        """Returns the denial, or the decision with least remaining."""
        self.gate.look_at_poller()
        if self.gate.startup.is_due:
            self.gate.startup.wait()
        decision = self._check_gate(identity)
        if not self._checks or decision.shadow or not decision.allowed:
            return self.gate_result(decision, identity)
        result, own_key, cost = CheckResultBuilder(decision, identity.cost), identity.key, identity.cost
        try:
            for limiter, is_per_address in self._checks:
                key = identity.address_key if is_per_address else own_key
                if not result.add(limiter, key, limiter.check(key, cost)):
                    break
        except BaseException:
            self._refund_charges(result)
            raise
        if result.decision.allowed:
            return self._admit(result, identity)
        self._refund_charges(result)
        return self.gate_result(result.decision, identity)

    async def check_async(self, identity: RequestIdentity) -> CheckResult:
        """Returns the denial, or the decision with least remaining; awaits limiters that may suspend."""
        self.gate.look_at_poller()
        if self.gate.startup.is_due:
            await self.gate.startup.wait_async()
        decision = self._check_gate(identity)
        if not self._checks or decision.shadow or not decision.allowed:
            return self.gate_result(decision, identity)
        result, own_key, cost = CheckResultBuilder(decision, identity.cost), identity.key, identity.cost
        try:
            for limiter, is_per_address, check in self._async_checks:
                key = identity.address_key if is_per_address else own_key
                answer = limiter.check(key, cost) if check is None else await check(key, cost)
                if not result.add(limiter, key, answer):
                    break
        except BaseException:  # also CancelledError: the client disconnected while a store was awaited
            await self._refund_charges_async(result)
            raise
        if result.decision.allowed:
            return self._admit(result, identity)
        await self._refund_charges_async(result)
        return self.gate_result(result.decision, identity)

    async def check_gate_async(self, identity: RequestIdentity) -> CheckResult:
        """Returns the gate's decision alone, which takes nothing from limiters."""
        self.gate.look_at_poller()
        if self.gate.startup.is_due:
            await self.gate.startup.wait_async()
        return self.gate_result(self._check_gate(identity), identity)

    def refund(self, result: CheckResult) -> None:
        """Returns permits to the limiters, except those of requests in flight (`leave`)."""
        for limiter, key in result.charged:
            if not _holds_permits(limiter):
                limiter.refund(key, result.cost)

    async def refund_async(self, result: CheckResult) -> None:
        """Returns permits to the limiters, except those of requests in flight (`leave_async`)."""
        for limiter, key in result.charged:
            if not _holds_permits(limiter):
                await refund_async(limiter, key, result.cost)

    def leave(self, result: CheckResult) -> None:
        """Returns the permits of a request in flight: its response is complete."""
        if self.holds_permits:
            for limiter, key in result.charged:
                if _holds_permits(limiter):
                    limiter.leave(key, result.cost)

    async def leave_async(self, result: CheckResult) -> None:
        """Returns the permits of a request in flight: its response is complete."""
        if self.holds_permits:
            for limiter, key in result.charged:
                leaving = limiter.leave(key, result.cost) if _holds_permits(limiter) else None
                if leaving is not None:
                    await leaving

    def gate_result(self, decision: Decision, identity: RequestIdentity) -> CheckResult:
        """Returns the result of a decision for which no limiter keeps permits.

        Applies shadow mode, logs, and notes the decision for the request log.
        """
        if self._shadow and not decision.allowed:
            decision = decision._replace(allowed=True, shadow=True, retry_after=0.0)
        if decision.shadow and (more := self._shadow_paces[decision.reason].next_line()) is not None:
            log.info(
                "would be denied: %s %s by %s (%s)%s",
                identity.method,
                identity.caller or identity.address,
                decision.policy or "no policy",
                decision.reason,
                more,
            )
        if identity.notes is not None:
            identity.notes.note_decision(identity, decision)
        item = admission_item(decision) if decision.allowed else None
        return CheckResult(decision) if item is None else CheckResult(decision, limits=(item,))

    def denial(self, result: CheckResult) -> RefusalResponse:
        """Returns the response to a denied request."""
        return refusal(result.decision, self._headers)

    def limit_headers(self, result: CheckResult) -> list[tuple[str, str]]:
        """Returns the headers about limits for the response to an admitted request; mostly none.

        They leave quotas out: no process knows what remains of those of a caller without a lock.
        """
        return limit_headers(result.limits, self._headers) if result.limits else []

    def _check_gate(self, identity: RequestIdentity) -> Decision:
        caller = asked_caller(identity.caller, identity.address)
        resource, address, tenant = identity.resource, identity.address, identity.tenant
        if not identity.values:
            return self.gate.check(caller, resource=resource, address=address, tenant=tenant)
        return self.gate.check(caller, resource=resource, address=address, tenant=tenant, **identity.values)

    def _admit(self, result: CheckResultBuilder, identity: RequestIdentity) -> CheckResult:
        if identity.notes is not None:
            identity.notes.note_decision(identity, result.decision)
        return result.build()

    def _refund_charges(self, result: CheckResultBuilder) -> None:
        for limiter, key in result.charged:
            limiter.refund(key, result.cost)

    async def _refund_charges_async(self, result: CheckResultBuilder) -> None:
        for limiter, key in result.charged:
            await refund_async(limiter, key, result.cost)


class CheckResultBuilder:
    """Collects the decisions of the limiters on one request."""

    __slots__ = ("charged", "cost", "decision", "limits")

    def __init__(self, decision: Decision, cost: int) -> None:
        self.decision = decision  # the denial, or the decision with least remaining
        self.cost = cost
        self.charged: list[Charge] = []
        of_lock = None if decision.limit is None else admission_item(decision)  # of one that slows
        self.limits = [] if of_lock is None else [of_lock]

    def add(self, limiter: GuardLimiter, key: str, decision: Decision) -> bool:
        """Adds a limiter's decision; returns whether it allows the request, so that the next is checked."""
        if not decision.allowed:
            self.decision = decision
            return False
        self.charged.append((limiter, key))
        if decision.limit is not None:
            item = admission_item(decision, getattr(limiter, "name", ""))
            if item is not None:
                self.limits.append(item)
        if _remaining(decision) < _remaining(self.decision):
            tags = self.decision.tags
            self.decision = decision._replace(tags=tags) if tags else decision
        return True

    def build(self) -> CheckResult:
        return CheckResult(self.decision, self.cost, tuple(self.charged), tuple(self.limits))


def require_values(gate: Gate, values: Iterable[str]) -> None:
    """Raises ValueError for a named value that the gate does not take.

    Checked when a guard is made, because otherwise each request would fail.

    Args:
        gate: The gate of the guard.
        values: Names of the named values that the guard passes to it.
    """
    unknown = sorted({*values} - {*getattr(gate, "values", ())})
    if unknown:
        raise ValueError(f"values: the gate does not take {unknown[0]}: write Gate(..., values={unknown})")


def read_values(extractors: Mapping[str, Callable[[Request], str]] | None, request: Request) -> NamedValues:
    """Returns the named values of a request.

    Args:
        extractors: An extractor for each; None: there are none.
        request: The request.
    """
    if not extractors:
        return NO_VALUES
    return {name: extract(request) for name, extract in extractors.items()}


def require_store_client(limiters: Iterable[object], *, awaited: bool) -> None:
    """Raises ValueError for a limiter whose store has the wrong kind of client.

    Checked when a guard is made, because otherwise each request would fail.

    Args:
        limiters: The limiters of a guard.
        awaited: Whether the application awaits, and so needs an asyncio client.
    """
    for limiter in limiters:
        store = getattr(limiter, "store", None)
        if getattr(store, "awaited", awaited) is not awaited:
            client = (
                "redis.asyncio.Redis, because the application must not block"
                if awaited
                else "redis.Redis, because the application does not await"
            )
            raise ValueError(f"limiters: expected a store with a client of {client}")


def make_exemption(
    exempt: Iterable[str] | Callable[[Request], bool], path_of: Callable[[Request], str]
) -> Callable[[Request], bool]:
    """Returns a function that returns whether a request passes without a check.

    Args:
        exempt: Paths, exact, or all below one that ends in `/*`; or the function itself.
        path_of: Returns the path of a request.

    Raises:
        TypeError: `exempt` is one string instead of several.
    """
    if callable(exempt):
        return exempt
    if isinstance(exempt, str):
        raise TypeError(f"exempt: expected a list of paths, or a function, got {exempt!r}")
    paths = frozenset(exempt)
    prefixes = tuple(path[:-1] for path in paths if path.endswith("/*"))
    if not paths:
        return lambda request: False
    if not prefixes:
        return lambda request: path_of(request) in paths
    return lambda request: (path := path_of(request)) in paths or path.startswith(prefixes)


def is_limiter(value: object) -> bool:
    """Whether a guard can take `value` as a limiter; a class is none."""
    return isinstance(value, PerAddress) or (
        callable(getattr(value, "check", None)) and not isinstance(value, type)
    )


def _holds_permits(limiter: GuardLimiter) -> TypeGuard[InFlightLimiter]:
    return bool(getattr(limiter, "holds_permits", hasattr(limiter, "leave")))


def _suspending_check(limiter: Any) -> Callable[[str, int], Awaitable[Decision]] | None:
    """Returns `check_async`; None if the limiter has none, or it would not suspend: `check` costs less."""
    check_async: Callable[[str, int], Awaitable[Decision]] | None = getattr(limiter, "check_async", None)
    return check_async if getattr(limiter, "is_awaited", True) else None


async def refund_async(limiter: Any, key: str, cost: int) -> None:
    """Returns `cost` permits to a limiter, by its `refund_async` if it has one."""
    refund = getattr(limiter, "refund_async", None)
    if refund is None:
        limiter.refund(key, cost)
    else:
        await refund(key, cost)


def _remaining(decision: Decision) -> float:
    return inf if decision.remaining is None else decision.remaining
