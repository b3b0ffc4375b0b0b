"""Guards a FastAPI application by dependencies: routes have their own costs, and their patterns are known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

try:
    from fastapi import FastAPI, Request, Response, WebSocket
    from fastapi.requests import HTTPConnection
except ImportError as missing:
    raise ImportError("gatekeeper.adapters.fastapi needs FastAPI: install gatelock[fastapi]") from missing

from gatekeeper.adapters.admission_control import (
    AdmissionController,
    CheckResult,
    GuardLimiter,
    RequestIdentity,
    make_exemption,
    require_store_client,
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
    notes_of,
    path_of,
    peer,
    send_refusal,
    user,
)
from gatekeeper.adapters.refusal_response import HeaderStyle, limit_headers, refusal, require_style
from gatekeeper.adapters.route_patterns import resource_of
from gatekeeper.gate import Gate
from gatekeeper.model import ALLOWED, Decision, Refused

__all__ = ["AppResponse", "Guard", "address", "behind", "header", "peer", "user"]

VERDICTS = "gatelock.verdicts"  # in the scope: of each dependency that was asked


class Guard:
    """Dependencies that refuse requests which `gate`, or one of the limiters, does not let pass.

    `Depends(guard)` asks for one permit, `Depends(guard.cost(10))` for ten; on a route, a router or the
    whole application, HTTP and WebSocket. Of several the costs add up. `install(app)`, on each FastAPI that
    has such routes, answers refusals as problem details and sees responses through. The resource is the
    route's path, as in /v1/items/{id}; the extractors are those of `gatekeeper.adapters.asgi`.

    The decision is what the dependency gives, and `request.state.gatelock`. The other settings are as in
    `gatekeeper.adapters.asgi.Guard`. Raises ValueError or TypeError for one that cannot be.
    """

    def __init__(
        self,
        gate: Gate,
        *limiters: GuardLimiter,
        caller: Extractor = API_KEY,
        tenant: Extractor | None = None,
        address: Extractor = peer,
        exempt: Iterable[str] | Callable[[Scope], bool] = (),
        shadow: bool = False,
        headers: HeaderStyle = "draft",
        refund_when: Callable[[AppResponse], bool] | None = None,
    ) -> None:
        require_style(headers)
        require_store_client(limiters, awaited=True)
        self._gate = gate
        self._checkpoint = AdmissionController(gate, limiters, shadow=shadow)
        self._caller = caller
        self._tenant = tenant
        self._address = address
        self._exempt = make_exemption(exempt, path_of)
        self._style: HeaderStyle = headers
        self._refund_when = refund_when

    def install(self, app: FastAPI) -> None:
        """Answer refusals of `app`, and see its responses through."""
        app.add_exception_handler(Refused, self._refuse)  # type: ignore[arg-type]  # takes one of both kinds
        app.add_middleware(Around, guard=self)

    async def __call__(self, connection: HTTPConnection) -> Decision:
        """The decision, when the request may pass. Raises Refused."""
        return await self._ask(connection.scope, 1)

    def cost(self, permits: int | Callable[[Scope], int]) -> Callable[[HTTPConnection], Awaitable[Decision]]:
        """The dependency for requests that count as so many, or as many as a function of the scope says."""

        async def costing(connection: HTTPConnection) -> Decision:
            scope = connection.scope
            return await self._ask(scope, permits(scope) if callable(permits) else permits)

        return costing

    async def _ask(self, scope: Scope, permits: int) -> Decision:
        verdicts: list[CheckResult] | None = scope.get(VERDICTS)
        if verdicts is None:
            raise RuntimeError("nobody sees this response through: call guard.install(app) first")
        if self._exempt(scope):
            return ALLOWED
        verdict = await self._checkpoint.ask_async(
            RequestIdentity(
                caller=self._caller(scope),
                address=self._address(scope),
                resource=resource_of(scope),
                tenant="" if self._tenant is None else self._tenant(scope),
                cost=permits,
                method=scope.get("method", "WEBSOCKET"),
                note=notes_of(scope),
            )
        )
        if not verdict.decision.allowed:
            await self._undo(verdicts)
            raise Refused(verdict.decision)
        verdicts.append(verdict)
        scope.setdefault("state", {})["gatelock"] = verdict.decision
        return verdict.decision

    async def _undo(self, verdicts: list[CheckResult]) -> None:
        """Give back what the dependencies before this one took."""
        while verdicts:
            earlier = verdicts.pop()
            await self._checkpoint.refund_async(earlier)
            await self._checkpoint.leave_async(earlier)

    async def _refuse(self, connection: Request | WebSocket, error: Refused) -> Response | None:
        answer = refusal(error.decision, self._style)
        if isinstance(connection, WebSocket):
            await send_refusal(answer, connection.scope, connection.receive, connection.send)
            return None
        return Response(answer.body, answer.status, dict(answer.headers))


class Around:
    """The middleware that `install` adds: a plain one, which costs a request next to nothing."""

    def __init__(self, app: App, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guard = self._guard
        if scope["type"] not in ("http", "websocket"):
            if scope["type"] == "lifespan":
                guard._gate.start()  # in the process that serves: its first request finds the locks known
            await self._app(scope, receive, send)
            return
        verdicts: list[CheckResult] = []
        scope[VERDICTS] = verdicts

        def more() -> Headers:
            if not verdicts:
                return []
            last = verdicts[-1]
            return encode_headers(limit_headers(last.decision, guard._style, last.limiter))

        watch = GuardedResponse(guard._checkpoint, more, guard._refund_when, lambda: verdicts)
        await watch.over(self._app, scope, receive, send)
