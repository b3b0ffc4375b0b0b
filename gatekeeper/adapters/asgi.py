"""Guards an ASGI application: one class around it, for Starlette, FastAPI, Litestar, Quart and the like."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple

from gatekeeper.adapters.guarding import Checkpoint, Limits, Verdict, Who
from gatekeeper.adapters.http import Refusal, Style, allowance, refusal, require_style
from gatekeeper.adapters.naming import Kind, Proxies, named, require_kind
from gatekeeper.gate import Gate
from gatekeeper.identity import address_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Extractor = Callable[[Scope], str]  # what a request says of itself; "" when it says nothing

FORWARDED_FOR = b"x-forwarded-for"
POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1


class Answer(NamedTuple):
    """How the application answered, for `refund_when`."""

    status: int
    headers: list[tuple[bytes, bytes]]


def header(name: str, kind: Kind = "api_key") -> Extractor:
    """The caller by a request header, as a name of this kind: `api_key:...` by default.

    Of several headers of that name the first counts, as in most frameworks. Bytes are read as
    latin-1, as servers and frameworks do. What cannot be a caller's name is no caller. Raises
    ValueError for an unknown kind.
    """
    require_kind(kind)
    wanted = name.lower().encode("latin-1")

    def caller(scope: Scope) -> str:
        for found, value in scope["headers"]:
            if found == wanted:
                return named(kind, value.decode("latin-1"))
        return ""

    return caller


def user(read: Callable[[Scope], str | None] | None = None) -> Extractor:
    """The caller as `user:...`: by what `read` makes of the scope, else by the authenticated user
    that Starlette's AuthenticationMiddleware has put there. Put the Guard inside of that one."""
    return lambda scope: named("user", (read or _authenticated)(scope) or "")


def address(trusted_proxies: Iterable[str] = (), prefix6: int = 128) -> Extractor:
    """The caller as `address:...`, by the other end of the connection; by X-Forwarded-For only as far as
    it was written by `trusted_proxies`, addresses and networks, read from right to left. IPv6 is cut to
    its first `prefix6` bits: give the number that the log's mapping has."""
    peer_of = behind(trusted_proxies)
    return lambda scope: named("address", peer_of(scope), prefix6)


def behind(trusted_proxies: Iterable[str]) -> Extractor:
    """The address of whoever asks, without a kind, for `Guard(address=...)`: as `address` has it."""
    proxies = Proxies(trusted_proxies)

    def client(scope: Scope) -> str:
        here = scope.get("client")
        if not here:
            return ""
        if not proxies:
            return address_of(here[0]) or ""
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED_FOR]
        return proxies.client(here[0], forwarded)

    return client


peer = behind(())  # the other end of the connection; "" when it has no address (a Unix socket)


def _authenticated(scope: Scope) -> str | None:
    someone = scope.get("user")
    return someone.display_name if someone is not None and someone.is_authenticated else None


API_KEY = header("x-api-key")


class Guard:
    """`app`, but refusing requests, HTTP and WebSocket, that `gate` or one of the limiters does not let pass.

    The gate is asked first, so that a request of a locked caller takes nothing from a limiter. It is
    asked for the caller, and the tenant and the resource if an extractor for it is given, and for the
    address. A limiter counts by the caller, or by the address where a request has none, `cost(scope)`
    for each request.

    The decision stands in the request's state, as `request.state.gatelock` in Starlette: the refusal
    in shadow, else that which leaves least. Paths in `exempt` are let through unasked. With `shadow`
    nothing is refused; what would have been is logged. `headers` tells callers what limiters leave them.
    `refund_when` sees how the application answered; when it says so the limiters get the request's cost
    back. A WebSocket is asked about once, at its handshake.

    Raises ValueError for a setting that cannot be.
    """

    def __init__(
        self,
        app: App,
        gate: Gate,
        *limiters: Limits,
        caller: Extractor = API_KEY,
        resource: Extractor | None = None,
        tenant: Extractor | None = None,
        address: Extractor = peer,
        cost: Callable[[Scope], int] | None = None,
        exempt: Iterable[str] = (),
        shadow: bool = False,
        headers: Style = "draft",
        refund_when: Callable[[Answer], bool] | None = None,
    ) -> None:
        require_style(headers)
        self._app = app
        self._gate = gate
        self._checkpoint = Checkpoint(gate, limiters, shadow=shadow)
        self._caller = caller
        self._resource = resource
        self._tenant = tenant
        self._address = address
        self._cost = cost
        self._exempt = frozenset(exempt)
        self._style: Style = headers
        self._refund_when = refund_when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            if scope["type"] == "lifespan":
                self._gate.start()  # in the process that serves: its first request finds the locks known
            await self._app(scope, receive, send)
        elif scope["path"] in self._exempt:
            await self._app(scope, receive, send)
        else:
            await self._guarded(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        verdict = await self._checkpoint.ask_async(self._who(scope))
        if not verdict.decision.allowed:
            await _refuse(refusal(verdict.decision, self._style), scope, receive, send)
            return
        scope = {**scope, "state": {**scope.get("state", {}), "gatelock": verdict.decision}}
        await self._app(scope, receive, self._telling(verdict, send))

    def _who(self, scope: Scope) -> Who:
        return Who(
            caller=self._caller(scope),
            address=self._address(scope),
            resource="" if self._resource is None else self._resource(scope),
            tenant="" if self._tenant is None else self._tenant(scope),
            cost=1 if self._cost is None else self._cost(scope),
            method=scope.get("method", "WEBSOCKET"),
        )

    def _telling(self, verdict: Verdict, send: Send) -> Send:
        """`send`, with what is left among the headers, and an eye on the answer."""
        more = encoded(allowance(verdict.decision, self._style))
        wanted = self._refund_when if verdict.spent else None
        if not more and wanted is None:
            return send

        async def telling(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                headers = [*message.get("headers", ()), *more]
                message = {**message, "headers": headers}
                if wanted is not None and wanted(Answer(message.get("status", 101), headers)):
                    await self._checkpoint.refund_async(verdict)
            await send(message)

        return telling


def encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def _refuse(answer: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    headers = encoded(answer.headers)
    if scope["type"] == "http":
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return
    await receive()  # the handshake
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # which a client sees as 403
        return
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": answer.body})
