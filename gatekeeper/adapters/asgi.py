"""Guards an ASGI application: one class around it, for Starlette, FastAPI, Litestar, Quart and the like."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from math import inf
from typing import Any, Literal

from gatekeeper.adapters.http import Refusal, refusal
from gatekeeper.gate import Checks, Gate
from gatekeeper.identity import address_of, caller_of
from gatekeeper.model import Decision

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Extractor = Callable[[Scope], str]  # what a request says of itself; "" when it says nothing

NAMES: dict[str, Callable[[str], str]] = {
    "api_key": lambda text: caller_of(api_key=text),
    "user": lambda text: caller_of(user=text),
    "address": lambda text: caller_of(address=text),
}

log = logging.getLogger("gatekeeper")


def header(name: str, kind: Literal["api_key", "user", "address"] = "api_key") -> Extractor:
    """The caller by a request header, as a name of this kind: `api_key:...` by default.

    Of several headers of that name the first counts, as in most frameworks. Bytes are read as
    latin-1, as servers and frameworks do. What cannot be a caller's name is no caller. Raises
    ValueError for an unknown kind.
    """
    if kind not in NAMES:
        raise ValueError(f"kind: expected one of {', '.join(NAMES)}, got {kind!r}")
    wanted = name.lower().encode("latin-1")

    def caller(scope: Scope) -> str:
        for found, value in scope["headers"]:
            if found == wanted:
                return _named(kind, value.decode("latin-1"))
        return ""

    return caller


def user(read: Callable[[Scope], str | None] | None = None) -> Extractor:
    """The caller as `user:...`: by what `read` makes of the scope, else by the authenticated user
    that Starlette's AuthenticationMiddleware has put there. Put the Guard inside of that one."""
    return lambda scope: _named("user", (read or _authenticated)(scope) or "")


def address() -> Extractor:
    """The caller as `address:...`, by the other end of the connection; never by a header."""
    return lambda scope: _named("address", peer(scope))


def peer(scope: Scope) -> str:
    """The IP address at the other end of the connection; "" when it is not one (a Unix socket)."""
    client = scope.get("client")
    return (address_of(client[0]) or "") if client else ""


def _named(kind: str, text: str) -> str:
    try:
        return NAMES[kind](text)
    except ValueError:
        return ""


def _authenticated(scope: Scope) -> str | None:
    someone = scope.get("user")
    return someone.display_name if someone is not None and someone.is_authenticated else None


API_KEY = header("x-api-key")


class Guard:
    """`app`, but refusing HTTP requests that `gate`, or one of the limiters, does not let pass.

    The gate is asked first, so that a request of a locked caller takes nothing from a limiter. It is
    asked for the caller, for the resource if an extractor for it is given, and for the address. A
    limiter counts by the caller, or by the address where a request has none.

    The decision stands in the request's state, as `request.state.gatelock` in Starlette: the refusal
    in shadow, else that which leaves least. Paths in `exempt` are let through unasked, as is what is
    not HTTP. With `shadow` nothing is refused; what would have been is logged.
    """

    def __init__(
        self,
        app: App,
        gate: Gate,
        *limiters: Checks,
        caller: Extractor = API_KEY,
        resource: Extractor | None = None,
        address: Extractor = peer,
        exempt: Iterable[str] = (),
        shadow: bool = False,
    ) -> None:
        self._app = app
        self._gate = gate
        self._limiters = limiters
        self._caller = caller
        self._resource = resource
        self._address = address
        self._exempt = frozenset(exempt)
        self._shadow = shadow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._exempt:
            decision = self._decide(scope)
            if not decision.allowed:
                await _send(refusal(decision), scope["method"], send)
                return
            scope = {**scope, "state": {**scope.get("state", {}), "gatelock": decision}}
        elif scope["type"] == "lifespan":
            self._gate.start()  # in the process that serves: its first request finds the locks known
        await self._app(scope, receive, send)

    def _decide(self, scope: Scope) -> Decision:
        caller, address = self._caller(scope), self._address(scope)
        decision = self._asked(caller, address, self._resource(scope) if self._resource else "")
        if self._shadow and not decision.allowed:
            decision = decision._replace(allowed=True, shadow=True, retry_after=0.0)
        if decision.shadow:
            log.info(
                "would be refused: %s %s by %s (%s)",
                scope["method"],
                caller or address,
                decision.policy or "no policy",
                decision.reason,
            )
        return decision

    def _asked(self, caller: str, address: str, resource: str) -> Decision:
        decision = self._gate.check(caller, address=address, resource=resource)
        if decision.shadow or not decision.allowed:
            return decision
        key = caller or (f"address:{address}" if address else "")
        for limiter in self._limiters:
            another = limiter.check(key)
            if not another.allowed:
                return another
            decision = min(decision, another, key=_left)
        return decision


def _left(decision: Decision) -> float:
    return inf if decision.remaining is None else decision.remaining


async def _send(answer: Refusal, method: str, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})
