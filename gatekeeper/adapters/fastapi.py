"""Guards a FastAPI application by dependencies: routes have their own costs, and their patterns are known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gatekeeper.adapters.asgi import API_KEY, Extractor, peer
from gatekeeper.adapters.guarding import Checkpoint, Limits, Verdict, Who
from gatekeeper.adapters.http import Style, allowance, refusal, require_style
from gatekeeper.adapters.routes import pattern_of_starlette
from gatekeeper.gate import Gate
from gatekeeper.model import Decision, Refused

try:
    from fastapi import FastAPI, Request, Response
except ImportError as missing:
    raise ImportError("gatekeeper.adapters.fastapi needs FastAPI: install fastapi") from missing

VERDICTS = "gatelock_verdicts"


class Guard:
    """Dependencies that refuse requests which `gate`, or one of the limiters, does not let pass.

    `Depends(guard)` asks for one permit, `Depends(guard.cost(10))` for ten; on a route, a router or the
    whole application. Of several the costs add up. `install(app)` has refusals answered as problem details,
    and responses told what is left. The resource is the route's path, as in /v1/items/{id}; the extractors
    are those of `gatekeeper.adapters.asgi`.

    The decision is what the dependency gives, and `request.state.gatelock`. `refund_when` sees the
    response. Raises ValueError for a setting that cannot be.
    """

    def __init__(
        self,
        gate: Gate,
        *limiters: Limits,
        caller: Extractor = API_KEY,
        tenant: Extractor | None = None,
        address: Extractor = peer,
        shadow: bool = False,
        headers: Style = "draft",
        refund_when: Callable[[Response], bool] | None = None,
    ) -> None:
        require_style(headers)
        self._checkpoint = Checkpoint(gate, limiters, shadow=shadow)
        self._caller = caller
        self._tenant = tenant
        self._address = address
        self._style: Style = headers
        self._refund_when = refund_when

    def install(self, app: FastAPI) -> None:
        """Answer refusals of `app`, and look at its responses."""
        app.add_exception_handler(Refused, self._refuse)
        app.middleware("http")(self._telling)

    async def __call__(self, request: Request) -> Decision:
        """The decision, when the request may pass. Raises Refused."""
        return await self._ask(request, 1)

    def cost(self, permits: int) -> Callable[[Request], Awaitable[Decision]]:
        """The dependency for requests that count as so many."""

        async def costing(request: Request) -> Decision:
            return await self._ask(request, permits)

        return costing

    async def _ask(self, request: Request, permits: int) -> Decision:
        scope = request.scope
        route = scope.get("route")
        verdict = await self._checkpoint.ask_async(
            Who(
                caller=self._caller(scope),
                address=self._address(scope),
                resource="" if route is None else pattern_of_starlette(route.path),
                tenant="" if self._tenant is None else self._tenant(scope),
                cost=permits,
                method=request.method,
            )
        )
        if not verdict.decision.allowed:
            raise Refused(verdict.decision)
        request.state.gatelock = verdict.decision
        scope.setdefault(VERDICTS, []).append(verdict)
        return verdict.decision

    async def _refuse(self, _request: Request, error: Exception) -> Response:
        if not isinstance(error, Refused):
            raise error
        answer = refusal(error.decision, self._style)
        return Response(answer.body, answer.status, dict(answer.headers))

    async def _telling(self, request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        verdicts: list[Verdict] = request.scope.get(VERDICTS, [])
        if verdicts and "gatelock" not in response.headers:
            for name, value in allowance(verdicts[-1].decision, self._style):
                response.headers[name] = value
        if self._refund_when is not None and self._refund_when(response):
            for verdict in verdicts:
                await self._checkpoint.refund_async(verdict)
        return response
