"""Guards an ASGI application: one class around it, for Starlette, FastAPI, Litestar, Quart and the like."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple

from gatekeeper.adapters.admission_control import (
    NOTES_STATE_KEY,
    AdmissionController,
    CheckResult,
    DecisionNotes,
    GuardLimiter,
    RequestIdentity,
    make_exemption,
    require_store_client,
)
from gatekeeper.adapters.caller_extraction import (
    CallerKind,
    TrustedProxies,
    caller_name,
    name_from_header,
    peer_address,
    require_kind,
)
from gatekeeper.adapters.refusal_response import (
    HeaderStyle,
    RefusalResponse,
    limit_headers,
    refusal,
    require_style,
)
from gatekeeper.adapters.route_patterns import RoutePatterns
from gatekeeper.gate import Gate
from gatekeeper.model import ALLOWED

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]

Extractor = Callable[[Scope], str]  # what a request says of itself; "" when it says nothing

FORWARDED_FOR = b"x-forwarded-for"
POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1

# By what a response begins, and its status where the message names none. A handshake that is closed
# before it was accepted is answered with 403.
RESPONSE_STARTS = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
    "websocket.close": 403,
}


class AppResponse(NamedTuple):
    """How the application answered, for `refund_when`."""

    status: int
    headers: Headers


def header(name: str, kind: CallerKind = "api_key") -> Extractor:
    """The caller by a request header, as a name of this kind: `api_key:...` by default.

    Of several headers of that name the first counts, as in most frameworks. It is read as UTF-8, as it
    stands in the logs of proxies, while frameworks read latin-1. What cannot be a caller's name is no
    caller. Raises ValueError for an unknown kind.
    """
    require_kind(kind)
    wanted = name.lower().encode("latin-1")

    def caller(scope: Scope) -> str:
        for found, value in scope["headers"]:
            if found == wanted:
                return name_from_header(kind, value)
        return ""

    return caller


def user(read: Callable[[Scope], str | None] | None = None) -> Extractor:
    """The caller as `user:...`: by what `read` makes of the scope, else by the authenticated user
    that Starlette's AuthenticationMiddleware has put there. Put the Guard inside of that one."""
    return lambda scope: caller_name("user", (read or _authenticated)(scope) or "")


def address(trusted_proxies: Iterable[str] = (), prefix6: int = 128) -> Extractor:
    """The caller as `address:...`, by the other end of the connection; by X-Forwarded-For only as far as
    it was written by `trusted_proxies`, addresses and networks, or "unix" for a proxy that asks through a
    Unix socket, read from right to left. IPv6 is cut to its first `prefix6` bits: give the number that the
    log's mapping has."""
    peer_of = behind(trusted_proxies)
    return lambda scope: caller_name("address", peer_of(scope), prefix6)


def behind(trusted_proxies: Iterable[str]) -> Extractor:
    """The address of whoever asks, without a kind, for `Guard(address=...)`: as `address` has it."""
    proxies = TrustedProxies(trusted_proxies)

    def client(scope: Scope) -> str:
        here = scope.get("client")
        host = here[0] if here else ""
        if not proxies:
            return peer_address(host) or ""
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED_FOR]
        return proxies.client(host, forwarded)

    return client


def routes(patterns: Iterable[str], other: str = "other") -> Extractor:
    """The resource as one of `patterns`, `other` when none fits, for `Guard(resource=...)`: give those that
    the log's mapping has. The path is looked at as it was sent, as in a log, where the server tells it."""
    known = RoutePatterns(patterns, other)

    def resource(scope: Scope) -> str:
        raw = scope.get("raw_path")
        return known.of(raw.decode("latin-1") if raw else scope["path"])

    return resource


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
    in shadow, else that which leaves least. Paths in `exempt`, below those that end in `/*`, or what a
    function of the scope says, are let through unasked. With `shadow` nothing is refused; what would
    have been is logged. `headers` tells callers what limiters leave them. `refund_when` sees how the
    application answered; when it says so the limiters get the request's cost back. A WebSocket is asked
    about once, at its handshake.

    Raises ValueError or TypeError for a setting that cannot be.
    """

    def __init__(
        self,
        app: App,
        gate: Gate,
        *limiters: GuardLimiter,
        caller: Extractor = API_KEY,
        resource: Extractor | None = None,
        tenant: Extractor | None = None,
        address: Extractor = peer,
        cost: Callable[[Scope], int] | None = None,
        exempt: Iterable[str] | Callable[[Scope], bool] = (),
        shadow: bool = False,
        headers: HeaderStyle = "draft",
        refund_when: Callable[[AppResponse], bool] | None = None,
    ) -> None:
        require_style(headers)
        require_store_client(limiters, awaited=True)
        self._app = app
        self._gate = gate
        self._checkpoint = AdmissionController(gate, limiters, shadow=shadow)
        self._alone = not limiters  # nobody but the gate is asked
        self._caller = caller
        self._resource = resource
        self._tenant = tenant
        self._address = address
        self._cost = cost
        self._exempt = make_exemption(exempt, path_of)
        self._style: HeaderStyle = headers
        self._refund_when = refund_when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            if scope["type"] == "lifespan":
                self._gate.start()  # in the process that serves: its first request finds the locks known
        elif not self._exempt(scope):
            verdict = self._of_the_gate(scope) if self._alone else await self._of_all(scope)
            if verdict is not None:
                await self._judged(verdict, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _of_the_gate(self, scope: Scope) -> CheckResult | None:
        """Where nobody else is asked. None lets pass: nothing is made for these, who are nearly all."""
        caller, address = self._caller(scope), self._address(scope)
        resource = "" if self._resource is None else self._resource(scope)
        tenant = "" if self._tenant is None else self._tenant(scope)
        decision = self._gate.check(caller, resource=resource, address=address, tenant=tenant)
        # Into the dicts that are there: those around us and those below look into the same ones.
        state = scope.setdefault("state", {})
        if decision is ALLOWED and NOTES_STATE_KEY not in state:
            state["gatelock"] = decision
            return None
        return self._checkpoint.shown(decision, self._who(scope, caller, address, resource, tenant))

    async def _of_all(self, scope: Scope) -> CheckResult:
        resource = "" if self._resource is None else self._resource(scope)
        tenant = "" if self._tenant is None else self._tenant(scope)
        who = self._who(scope, self._caller(scope), self._address(scope), resource, tenant)
        return await self._checkpoint.ask_async(who)

    async def _judged(self, verdict: CheckResult, scope: Scope, receive: Receive, send: Send) -> None:
        if not verdict.decision.allowed:
            await send_refusal(refusal(verdict.decision, self._style), scope, receive, send)
            return
        scope.setdefault("state", {})["gatelock"] = verdict.decision
        more = encode_headers(limit_headers(verdict.decision, self._style, verdict.limiter))
        if not verdict.spent or (self._refund_when is None and not self._checkpoint.holds):
            await self._app(scope, receive, with_headers(more, send) if more else send)
        else:
            watch = GuardedResponse(self._checkpoint, lambda: more, self._refund_when, lambda: [verdict])
            await watch.over(self._app, scope, receive, send)

    def _who(self, scope: Scope, caller: str, address: str, resource: str, tenant: str) -> RequestIdentity:
        return RequestIdentity(
            caller=caller,
            address=address,
            resource=resource,
            tenant=tenant,
            cost=1 if self._cost is None else self._cost(scope),
            method=scope.get("method", "WEBSOCKET"),
            note=notes_of(scope),
        )


def notes_of(scope: Scope) -> DecisionNotes | None:
    """Of the request log around us, if there is one."""
    note: DecisionNotes | None = scope.get("state", {}).get(NOTES_STATE_KEY)
    return note


def path_of(scope: Scope) -> str:
    path: str = scope["path"]
    return path


def with_headers(more: Headers, send: Send) -> Send:
    """`send`, with more among the headers of the response."""

    async def telling(message: Message) -> None:
        if message["type"] in RESPONSE_STARTS and message["type"] != "websocket.close":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return telling


class GuardedResponse:
    """Sees one response through: adds `more` to its headers, gives back what `wanted` says when it begins,
    or when the application fails before it has begun, and what was held when all is over.

    What is told and what was taken is looked up when the response begins: by then it is known.
    """

    def __init__(
        self,
        checkpoint: AdmissionController,
        more: Callable[[], Headers],
        wanted: Callable[[AppResponse], bool] | None,
        taken: Callable[[], Iterable[CheckResult]],
    ) -> None:
        self._checkpoint = checkpoint
        self._more = more
        self._wanted = wanted
        self._taken = taken
        self._begun = False

    async def over(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Let `app` answer."""

        async def telling(message: Message) -> None:
            status = RESPONSE_STARTS.get(message["type"])
            if status is not None and not self._begun:
                headers = [*message.get("headers", ()), *self._more()]
                if message["type"] != "websocket.close":
                    message = {**message, "headers": headers}
                # Before it is sent: who has the answer may come again at once.
                await self._begin(AppResponse(message.get("status", status), headers))
            await send(message)

        try:
            await app(scope, receive, telling)
        except Exception:
            await self._begin(AppResponse(500, []))  # which is what the server makes of it
            raise
        finally:
            for verdict in self._taken():
                await self._checkpoint.leave_async(verdict)

    async def _begin(self, answer: AppResponse) -> None:
        if self._begun:
            return
        self._begun = True
        spent = [verdict for verdict in self._taken() if verdict.spent]
        if spent and self._wanted is not None and self._wanted(answer):
            for verdict in spent:
                await self._checkpoint.refund_async(verdict)


def encode_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def send_refusal(answer: RefusalResponse, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a refusal; the request's body is not read."""
    headers = encode_headers(answer.headers)
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
