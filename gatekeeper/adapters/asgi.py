"""Guard for ASGI applications: one class around Starlette, FastAPI, Litestar, Quart and others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple

from gatekeeper.adapters.admission_control import (
    NOTES_STATE_KEY,
    AdmissionController,
    CheckResult,
    DecisionNotes,
    GuardLimiter,
    PerAddress,
    RequestIdentity,
    make_exemption,
    read_values,
)
from gatekeeper.adapters.caller_extraction import (
    CallerKind,
    asked_caller,
    caller_name,
    name_from_header,
    require_kind,
    text_from_header,
)
from gatekeeper.adapters.refusal_response import VERDICT_BYTES, HeaderStyle, RefusalResponse
from gatekeeper.adapters.route_patterns import OTHER, RoutePatterns
from gatekeeper.gate import Gate
from gatekeeper.identity import PREFIX6, NameDigest, TrustedProxies, peer_address
from gatekeeper.model import ALLOWED

__all__ = [
    "AppResponse",
    "Guard",
    "PerAddress",
    "address",
    "behind",
    "header",
    "header_text",
    "peer",
    "routes",
    "user",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]

Extractor = Callable[[Scope], str]  # returns a name from the scope; "" if the request has none

VERDICT_CHARS = len(VERDICT_BYTES)
FORWARDED_FOR = b"x-forwarded-for"
POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1

# Messages that start a response, with the status of a message that contains none. A server answers a
# handshake with 403 if the application closes the WebSocket before accepting it.
RESPONSE_STARTS = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
    "websocket.close": 403,
}


class AppResponse(NamedTuple):
    """The application's response, for `refund_when`.

    Args:
        status: Status code; 500 for an application that failed before it responded.
        headers: Names in lower case and values.

    Example:
        >>> def is_free(response: AppResponse) -> bool:  # Guard(..., refund_when=is_free)
        ...     return response.status >= 500
        >>> is_free(AppResponse(503, []))
        True
    """

    status: int
    headers: Headers


def header(name: str, kind: CallerKind = "api_key", digest: NameDigest | None = None) -> Extractor:
    """Returns an extractor of the caller from a request header: `api_key:...` by default.

    The value is read as UTF-8, as proxies log it; frameworks read latin-1. The first of several headers
    counts, as in most frameworks. A value that cannot be a caller's name counts as absent.

    Args:
        name: Name of the header, in any case.
        kind: Kind of the caller's name: "api_key", "user" or "address".
        digest: Digest of the name, so that keys are stored nowhere; the log has to count by the same one.
            None: the name itself.

    Raises:
        ValueError: `kind` is unknown, or an address has a digest.

    >>> header("X-User", kind="user")({"headers": [(b"x-user", b"ann")]})
    'user:ann'
    """
    require_kind(kind, digest)
    lower_name = name.lower().encode("latin-1")

    def extract_caller(scope: Scope) -> str:
        for header_name, value in scope["headers"]:
            if header_name == lower_name:
                return name_from_header(kind, value, digest)
        return ""

    return extract_caller


def header_text(name: str) -> Extractor:
    """Returns an extractor of the text of a request header, for `Guard(values={...})`.

    The value is read as UTF-8; one that the log does not count by name (too long, with control characters)
    counts as absent. The first of several headers counts.

    Args:
        name: Name of the header, in any case.

    >>> header_text("X-Model")({"headers": [(b"x-model", b"large")]})
    'large'
    """
    lower_name = name.lower().encode("latin-1")

    def extract_text(scope: Scope) -> str:
        for header_name, value in scope["headers"]:
            if header_name == lower_name:
                return text_from_header(value)
        return ""

    return extract_text


def user(read: Callable[[Scope], str | None] | None = None) -> Extractor:
    """Returns an extractor of the caller `user:...` from an authenticated user.

    Args:
        read: Returns the user's name, or None. By default the user that Starlette's AuthenticationMiddleware
            found; then put the guard inside that middleware.

    >>> user(lambda scope: scope["session"]["name"])({"session": {"name": "ann"}})
    'user:ann'
    """
    return lambda scope: caller_name("user", (read or _authenticated_user)(scope) or "")


def address(trusted_proxies: Iterable[str] = (), prefix6: int = PREFIX6) -> Extractor:
    """Returns an extractor of the caller `address:...` from the client's address.

    Args:
        trusted_proxies: Addresses and networks of proxies whose X-Forwarded-For is trusted, read from right
            to left; "unix" for a proxy that connects through a Unix socket.
        prefix6: Bits of an IPv6 address that count; must equal `prefix6` in the log's mapping.

    >>> address()({"client": ("2001:db8::7", 50000), "headers": []})
    'address:2001:db8::/64'
    """
    client_of = behind(trusted_proxies)
    return lambda scope: caller_name("address", client_of(scope), prefix6)


def behind(trusted_proxies: Iterable[str]) -> Extractor:
    """Returns an extractor of the client's address behind proxies, for `Guard(address=...)`.

    Args:
        trusted_proxies: Addresses and networks of proxies whose X-Forwarded-For is trusted, read from right
            to left; "unix" for a proxy that connects through a Unix socket.

    >>> client = behind(["10.0.0.0/8"])
    >>> client({"client": ("10.0.0.1", 50000), "headers": [(b"x-forwarded-for", b"6.6.6.6, 192.0.2.1")]})
    '192.0.2.1'
    """
    proxies = TrustedProxies(trusted_proxies)
    if not proxies:
        return peer

    def extract_address(scope: Scope) -> str:
        client = scope.get("client")
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED_FOR]
        return proxies.client(client[0] if client else "", forwarded)

    return extract_address


def peer(scope: Scope) -> str:
    """Returns the address of the connection's other end; "" if it has none (a Unix socket).

    Args:
        scope: The ASGI scope.

    >>> peer({"client": ("192.0.2.1", 50000)})
    '192.0.2.1'
    """
    client = scope.get("client")
    return (peer_address(client[0]) or "") if client else ""


def routes(patterns: Iterable[str], other: str = OTHER) -> Extractor:
    """Returns an extractor of the resource from the path, for `Guard(resource=...)`.

    The path is matched as it was sent, before percent-decoding, if the server provides it, as in a log.

    Args:
        patterns: Route patterns of the log's mapping, such as "/v1/items/{id}".
        other: Resource of paths that match no pattern; the mapping's `else`.

    >>> routes(["/v1/items/{id}"])({"path": "/v1/items/7"})
    '/v1/items/{id}'
    """
    matcher = RoutePatterns(patterns, other)

    def extract_resource(scope: Scope) -> str:
        raw = scope.get("raw_path")
        return matcher.match(raw.decode("latin-1") if raw else scope["path"])

    return extract_resource


def _authenticated_user(scope: Scope) -> str | None:
    authenticated = scope.get("user")
    return (
        authenticated.display_name if authenticated is not None and authenticated.is_authenticated else None
    )


API_KEY = header("x-api-key")


class Guard:
    """Wraps an ASGI application and denies requests that the gate or a limiter does not admit.

    The gate is checked first, then the limiters in their order. A denied request never reaches the
    application and takes nothing from limiters. A WebSocket is checked once, at its handshake.

    The application finds the decision in the request's state, in Starlette `request.state.gatelock`: the one
    with least remaining.

    Functions take the ASGI scope.

    Args:
        app: The application.
        gate: The gate; it starts with the application.
        *limiters: Limiters that are checked after the gate, by caller, or by address if there is no caller
            (IPv6 by its /64), and a `PerAddress(limiter)` always by address. A store needs an asyncio client.
        caller: Returns the caller's typed name, or "". By default from the header X-API-Key.
        resource: Returns the route pattern, if policies count by resource.
        tenant: Returns the tenant, if policies count by tenant.
        values: Returns each named value of the request, by its name, if policies count by one; the gate has
            to take it, `Gate(..., values=["model"])`. `header_text` reads one from a header.
        address: Returns the address that is checked in addition to the caller; by default the other end of
            the connection. Use `behind` if there are proxies.
        cost: Returns the number of permits that a request takes of limiters; by default 1.
        exempt: Paths that pass without a check, exact, or all below one that ends in `/*`; or a function that
            returns whether a request is exempt.
        shadow: Whether to deny no request; those that would have been denied are logged.
        headers: Headers about limits in responses: "draft" (`RateLimit`), "legacy" (`X-RateLimit-...`),
            "both" or "off".
        refund_when: Returns whether limiters get the cost back, by the application's response.

    Raises:
        ValueError: `headers` is unknown, a limiter's store has a client that blocks, or the gate does not
            take one of `values`.
        TypeError: `exempt` is one string instead of several, or one of `limiters` is not a limiter.

    Example:
        >>> import asyncio
        >>> from gatekeeper import Gate, SlidingLog
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> async def app(scope, receive, send):
        ...     await send({"type": "http.response.start", "status": 200, "headers": []})
        ...     await send({"type": "http.response.body", "body": b"hello"})
        >>> guard = Guard(app, Gate(FixedSource()), SlidingLog(limit=1, period=60))
        >>> async def send(message):
        ...     print(message.get("status", message["type"]))
        >>> scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-api-key", b"acme")]}
        >>> for _ in range(2):
        ...     asyncio.run(guard(scope, None, send))
        200
        http.response.body
        429
        http.response.body
    """

    def __init__(
        self,
        app: App,
        gate: Gate,
        *limiters: GuardLimiter | PerAddress,
        caller: Extractor = API_KEY,
        resource: Extractor | None = None,
        tenant: Extractor | None = None,
        values: Mapping[str, Extractor] | None = None,
        address: Extractor = peer,
        cost: Callable[[Scope], int] | None = None,
        exempt: Iterable[str] | Callable[[Scope], bool] = (),
        shadow: bool = False,
        headers: HeaderStyle = "draft",
        refund_when: Callable[[AppResponse], bool] | None = None,
    ) -> None:
        self._app = app
        self._gate = gate
        self._admission = AdmissionController(
            gate, limiters, values=values or (), awaited=True, shadow=shadow, headers=headers
        )
        self._has_limiters = bool(limiters)
        self._caller = caller
        self._resource = resource
        self._tenant = tenant
        self._values = values
        self._address = address
        self._cost = cost
        self._is_exempt = make_exemption(exempt, scope_path)
        self._refund_when = refund_when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            if scope["type"] == "lifespan":
                await start_gate(self._gate)
        elif self._is_exempt(scope):
            send = guarded(send)
        else:
            if self._has_limiters:
                result: CheckResult | None = await self._check_all(scope)
            else:
                self._gate.look_at_poller()
                if self._gate.startup.is_due:  # the server has no lifespan
                    await self._gate.startup.wait_async()
                result = self._check_gate(scope)
            if result is not None:
                await self._respond(result, scope, receive, send)
                return
            send = guarded(send)
        await self._app(scope, receive, send)

    def _check_gate(self, scope: Scope) -> CheckResult | None:
        """Checks the gate alone. Returns None for most requests that may pass, without an allocation."""
        caller, address = self._caller(scope), self._address(scope)
        resource = "" if self._resource is None else self._resource(scope)
        tenant = "" if self._tenant is None else self._tenant(scope)
        gate_caller = caller or asked_caller(caller, address)
        if self._values is None:
            decision = self._gate.check(gate_caller, resource=resource, address=address, tenant=tenant)
        else:
            values = read_values(self._values, scope)
            decision = self._gate.check(
                gate_caller, resource=resource, address=address, tenant=tenant, **values
            )
        # In place, not in a copy: the applications around and below the guard share these dicts.
        state = scope.setdefault("state", {})
        if decision is ALLOWED and NOTES_STATE_KEY not in state:
            state["gatelock"] = decision
            return None
        return self._admission.gate_result(decision, self._identity(scope, caller, address, resource, tenant))

    async def _check_all(self, scope: Scope) -> CheckResult:
        resource = "" if self._resource is None else self._resource(scope)
        tenant = "" if self._tenant is None else self._tenant(scope)
        identity = self._identity(scope, self._caller(scope), self._address(scope), resource, tenant)
        return await self._admission.check_async(identity)

    async def _respond(self, result: CheckResult, scope: Scope, receive: Receive, send: Send) -> None:
        if not result.decision.allowed:
            await send_refusal(self._admission.denial(result), scope, receive, send)
            return
        scope.setdefault("state", {})["gatelock"] = result.decision
        extra = encode_headers(self._admission.limit_headers(result))
        if not result.charged or (self._refund_when is None and not self._admission.holds_permits):
            await self._app(scope, receive, with_headers(extra, send) if extra else guarded(send))
        else:
            response = GuardedResponse(self._admission, lambda: extra, self._refund_when, lambda: [result])
            await response.run(self._app, scope, receive, send)

    def _identity(
        self, scope: Scope, caller: str, address: str, resource: str, tenant: str
    ) -> RequestIdentity:
        return RequestIdentity(
            caller=caller,
            address=address,
            resource=resource,
            tenant=tenant,
            cost=1 if self._cost is None else self._cost(scope),
            method=scope.get("method", "WEBSOCKET"),
            notes=scope_notes(scope),
            values=read_values(self._values, scope),
        )


async def start_gate(gate: Gate) -> None:
    """Starts the gate in the process that serves, and waits for its first answer: see `StartupWait`."""
    gate.start()
    await gate.startup.wait_async()


def scope_notes(scope: Scope) -> DecisionNotes | None:
    """Returns the notes of the request log around the guard, if there is one."""
    notes: DecisionNotes | None = scope.get("state", {}).get(NOTES_STATE_KEY)
    return notes


def scope_path(scope: Scope) -> str:
    path: str = scope["path"]
    return path


def with_headers(extra: Headers, send: Send) -> Send:
    """Returns `send`, with `extra` added to the response's headers, and without the application's verdict."""

    # Not a coroutine function: a coroutine around the server's would cost more than all the rest.
    def send_with_headers(message: Message) -> Awaitable[None]:
        if message["type"] in RESPONSE_STARTS and message["type"] != "websocket.close":
            headers = without_verdict(message.get("headers", ()))
            message = {**message, "headers": [*headers, *extra]}
        return send(message)

    return send_with_headers


def guarded(send: Send) -> Send:
    """Returns `send`, without the application's verdict in the response's headers."""

    # Not a coroutine function: see above.
    def send_without_verdict(message: Message) -> Awaitable[None]:
        if "headers" in message:  # only what starts a response has them
            for name, _ in message["headers"]:
                if len(name) == VERDICT_CHARS and name.lower() == VERDICT_BYTES:
                    message = {**message, "headers": without_verdict(message["headers"])}
                    break
        return send(message)

    return send_without_verdict


def without_verdict(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Returns an application's headers without `Gatelock`.

    A proxy or a request log takes it for the guard's, and the request would not be counted. The application
    may have it from elsewhere, such as the response that it passes on.
    """
    return [item for item in headers if item[0].lower() != VERDICT_BYTES]


class GuardedResponse:
    """Follows one response to its end: adds headers, refunds permits, ends its time in flight.

    `extra_headers`, `results` and `is_refusal` (whether the guard wrote the response itself) are functions
    because FastAPI's dependencies run after the response was wrapped. They are called when the response
    starts. Permits are refunded when it starts or the application fails before.
    """

    def __init__(
        self,
        admission: AdmissionController,
        extra_headers: Callable[[], Headers],
        refund_when: Callable[[AppResponse], bool] | None,
        results: Callable[[], Iterable[CheckResult]],
        is_refusal: Callable[[], bool] = lambda: False,
    ) -> None:
        self._admission = admission
        self._extra_headers = extra_headers
        self._refund_when = refund_when
        self._results = results
        self._is_refusal = is_refusal
        self._has_started = False

    async def run(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls `app`."""

        async def send_guarded(message: Message) -> None:
            status = RESPONSE_STARTS.get(message["type"])
            if status is not None and not self._has_started:
                headers = self._own_headers(message)
                if message["type"] != "websocket.close":
                    message = {**message, "headers": headers}
                # Before it is sent: a client that has the response may send its next request at once.
                await self._start(AppResponse(message.get("status", status), headers))
            await send(message)

        try:
            await app(scope, receive, send_guarded)
        except Exception:
            await self._start(AppResponse(500, []))  # the server's response to it
            raise
        finally:
            for result in self._results():
                await self._admission.leave_async(result)

    def _own_headers(self, message: Message) -> Headers:
        headers = message.get("headers", ())
        kept = list(headers) if self._is_refusal() else without_verdict(headers)
        return [*kept, *self._extra_headers()]

    async def _start(self, response: AppResponse) -> None:
        if self._has_started:
            return
        self._has_started = True
        charged = [result for result in self._results() if result.charged]
        if charged and self._refund_when is not None and self._refund_when(response):
            for result in charged:
                await self._admission.refund_async(result)


def encode_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def send_refusal(response: RefusalResponse, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the response to a denied request. The request's body is not read."""
    headers = encode_headers(response.headers)
    if scope["type"] == "http":
        body = b"" if scope["method"] == "HEAD" else response.body
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return
    await receive()  # the handshake
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # clients see a 403
        return
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.body})
