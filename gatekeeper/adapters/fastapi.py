"""Guard for FastAPI applications: dependencies, which know each route's cost and pattern."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

try:
    from fastapi import FastAPI, Request, Response, WebSocket
    from fastapi.requests import HTTPConnection
except ImportError as missing:
    raise ImportError(
        "gatekeeper.adapters.fastapi needs FastAPI: pip install 'gatelock[fastapi]'"
    ) from missing

from gatekeeper.adapters.admission_control import (
    AdmissionController,
    CheckResult,
    GuardLimiter,
    PerAddress,
    RequestIdentity,
    make_exemption,
    read_values,
)
from gatekeeper.adapters.asgi import (
    API_KEY,
    App,
    AppResponse,
    Extractor,
    GuardedResponse,
    Headers,
    Receive,
    Scope,
    Send,
    address,
    behind,
    encode_headers,
    header,
    header_text,
    peer,
    scope_notes,
    scope_path,
    send_refusal,
    start_gate,
    user,
)
from gatekeeper.adapters.refusal_response import HeaderStyle
from gatekeeper.adapters.route_patterns import OTHER, route_resource
from gatekeeper.gate import Gate
from gatekeeper.model import ALLOWED, Decision, Refused

__all__ = ["AppResponse", "Guard", "PerAddress", "address", "behind", "header", "header_text", "peer", "user"]

# Keys in the scope: results of the request's dependencies; set when the guard itself responds.
RESULTS = "gatelock.results"
REFUSED = "gatelock.refused"


class Guard:
    """FastAPI dependencies that deny requests that the gate or a limiter does not admit.

    `Depends(guard)` takes one permit of limiters, `Depends(guard.cost(10))` takes ten: on a route, a router
    or the whole application, HTTP and WebSocket. The costs of several dependencies add up. `install(app)` is
    required on each FastAPI that has such routes. The resource is the route's path, such as /v1/items/{id}.

    The gate is checked first, then the limiters in their order. A denied request takes nothing from limiters.
    The dependency's value is the decision, also in `request.state.gatelock`: the one with least remaining.

    Functions take the ASGI scope.

    Args:
        gate: The gate; it starts with the application.
        *limiters: Limiters that are checked after the gate, by caller, or by address if there is no caller
            (IPv6 by its /64), and a `PerAddress(limiter)` always by address. A store needs an asyncio client.
        caller: Returns the caller's typed name, or "". By default from the header X-API-Key.
        tenant: Returns the tenant, if policies count by tenant.
        values: Returns each named value of the request, by its name, if policies count by one; the gate has
            to take it, `Gate(..., values=["model"])`. `header_text` reads one from a header.
        address: Returns the address that is checked in addition to the caller; by default the other end of
            the connection. Use `behind` if there are proxies.
        other: Resource of requests that match no route; the `else` of the log's mapping.
            FastAPI runs no dependency for these, so `install` checks them, by the gate alone.
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
        >>> from fastapi import Depends, FastAPI
        >>> from gatekeeper import Decision, Gate, SlidingLog
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> guard = Guard(Gate(FixedSource()), SlidingLog(limit=20, period=1))
        >>> app = FastAPI()
        >>> guard.install(app)
        >>> @app.get("/export")
        ... def export(decision: Decision = Depends(guard.cost(10))) -> dict[str, int | None]:
        ...     return {"remaining": decision.remaining}
    """

    def __init__(
        self,
        gate: Gate,
        *limiters: GuardLimiter | PerAddress,
        caller: Extractor = API_KEY,
        tenant: Extractor | None = None,
        values: Mapping[str, Extractor] | None = None,
        address: Extractor = peer,
        other: str = OTHER,
        exempt: Iterable[str] | Callable[[Scope], bool] = (),
        shadow: bool = False,
        headers: HeaderStyle = "draft",
        refund_when: Callable[[AppResponse], bool] | None = None,
    ) -> None:
        self._gate = gate
        self._admission = AdmissionController(
            gate, limiters, values=values or (), awaited=True, shadow=shadow, headers=headers
        )
        self._caller = caller
        self._tenant = tenant
        self._values = values
        self._address = address
        self._other = other
        self._is_exempt = make_exemption(exempt, scope_path)
        self._refund_when = refund_when

    def install(self, app: FastAPI) -> None:
        """Adds to `app` the responses to denied requests, and the middleware that completes the others.

        Has the gate asked for requests that match no route, too.
        """
        app.add_exception_handler(Refused, self._refuse)  # type: ignore[arg-type]  # takes one of both kinds
        app.add_middleware(GuardedResponses, guard=self)
        self._guard_unrouted(app)

    async def __call__(self, connection: HTTPConnection) -> Decision:
        """Returns the decision on a request that may pass. Raises Refused."""
        return await self._check(connection.scope, 1)

    def cost(self, permits: int | Callable[[Scope], int]) -> Callable[[HTTPConnection], Awaitable[Decision]]:
        """Returns a dependency whose requests take more than one permit of limiters.

        Args:
            permits: The number of permits, or a function that returns it from the scope.
        """

        async def check_with_cost(connection: HTTPConnection) -> Decision:
            scope = connection.scope
            return await self._check(scope, permits(scope) if callable(permits) else permits)

        return check_with_cost

    async def _check(self, scope: Scope, permits: int) -> Decision:
        results: list[CheckResult] | None = scope.get(RESULTS)
        if results is None:
            raise RuntimeError("the guard is not installed in this application: call guard.install(app)")
        if self._is_exempt(scope):
            return ALLOWED
        result = await self._admission.check_async(self._identity(scope, route_resource(scope), permits))
        if not result.decision.allowed:
            await self._undo(results)
            raise Refused(result.decision)
        results.append(result)
        scope.setdefault("state", {})["gatelock"] = result.decision
        return result.decision

    def _identity(self, scope: Scope, resource: str, permits: int) -> RequestIdentity:
        return RequestIdentity(
            caller=self._caller(scope),
            address=self._address(scope),
            resource=resource,
            tenant="" if self._tenant is None else self._tenant(scope),
            cost=permits,
            method=scope.get("method", "WEBSOCKET"),
            notes=scope_notes(scope),
            values=read_values(self._values, scope),
        )

    def _guard_unrouted(self, app: FastAPI) -> None:
        """Has requests without a route checked: FastAPI runs no dependency for them."""
        respond = app.router.default

        async def check_and_respond(scope: Scope, receive: Receive, send: Send) -> None:
            if not self._is_exempt(scope):
                result = await self._admission.check_gate_async(self._identity(scope, self._other, 1))
                if not result.decision.allowed:
                    scope[REFUSED] = True
                    await send_refusal(self._admission.denial(result), scope, receive, send)
                    return
            await respond(scope, receive, send)

        app.router.default = check_and_respond

    async def _undo(self, results: list[CheckResult]) -> None:
        """Returns the permits that earlier dependencies of the request took."""
        while results:
            earlier = results.pop()
            await self._admission.refund_async(earlier)
            await self._admission.leave_async(earlier)

    async def _refuse(self, connection: Request | WebSocket, error: Refused) -> Response | None:
        response = self._admission.denial(CheckResult(error.decision))
        connection.scope[REFUSED] = True
        notes = scope_notes(connection.scope)
        if notes is not None:  # the application may have raised it, by `Gate.enforce`
            notes.decision = error.decision
        if isinstance(connection, WebSocket):
            await send_refusal(response, connection.scope, connection.receive, connection.send)
            return None
        return Response(response.body, response.status, dict(response.headers))


class GuardedResponses:
    """Middleware that `install` adds; plain ASGI, because Starlette's BaseHTTPMiddleware costs far more."""

    def __init__(self, app: App, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guard = self._guard
        if scope["type"] not in ("http", "websocket"):
            if scope["type"] == "lifespan":
                await start_gate(guard._gate)
            await self._app(scope, receive, send)
            return
        results: list[CheckResult] = []
        scope[RESULTS] = results

        def extra_headers() -> Headers:
            return encode_headers(guard._admission.limit_headers(results[-1])) if results else []

        response = GuardedResponse(
            guard._admission, extra_headers, guard._refund_when, lambda: results, lambda: REFUSED in scope
        )
        await response.run(self._app, scope, receive, send)
