"""The guard for FastAPI, where it differs from the others; test_frameworks.py has what they share."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import PlainTextResponse
from httpx2 import ASGITransport, AsyncClient, Response

from gatekeeper import Concurrency, Gate, Refused, SlidingLog
from gatekeeper.adapters import asgi
from gatekeeper.adapters.fastapi import Guard
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.support.feed import a_lock

pytestmark = pytest.mark.anyio
ACME, BOB = {"x-api-key": "acme"}, {"x-api-key": "bob"}
ALLOW_ORIGIN = "access-control-allow-origin"
PREFLIGHT = {"origin": "https://shop.example", "access-control-request-method": "GET"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    locks = [
        a_lock("api_key:acme"),
        a_lock("api_key:bob", resource="/api/v1/{tenant}/items/{number}"),
        a_lock("api_key:bob", resource="/sub/v1/{tenant}/items/{number}"),
    ]
    gate = Gate(FixedSource(*locks), clock=clock)
    assert gate.ready(1.0)
    return gate


async def ask(app: object, method: str, path: str, headers: dict[str, str]) -> Response:
    transport = ASGITransport(app=app)
    async with AsyncClient(transport=transport, base_url="https://shop.example") as client:
        return await client.request(method, path, headers=headers)


async def test_a_guard_that_is_not_installed_raises_at_the_first_request(gate: Gate) -> None:
    api = FastAPI()
    api.get("/items", dependencies=[Depends(Guard(gate))])(lambda: "here")
    with pytest.raises(RuntimeError, match=r"call guard\.install\(app\)"):
        await ask(api, "GET", "/items", BOB)


async def test_costs_of_several_dependencies_add_up_and_a_denial_refunds_all(
    gate: Gate, clock: ManualClock
) -> None:
    burst, work = SlidingLog(10, 10, clock=clock), Concurrency(20)
    guard = Guard(gate, burst, work)
    api = FastAPI(dependencies=[Depends(guard)])
    guard.install(api)
    api.get("/{number}", dependencies=[Depends(guard.cost(lambda scope: int(scope["path"][1:])))])(lambda: 1)
    assert (await ask(api, "GET", "/4", BOB)).headers["ratelimit"] == '"limit";r=5;t=10'
    denied = await ask(api, "GET", "/5", BOB)
    assert (denied.status_code, denied.headers["ratelimit"]) == (429, '"limit";r=4;t=10')
    assert (burst.peek("api_key:bob").remaining, work.in_flight("api_key:bob")) == (5, 0)


@pytest.mark.parametrize("path", ["/api/v1/shop/items/7", "/sub/v1/shop/items/7"])
async def test_a_resource_is_the_whole_pattern_through_routers_and_mounts(gate: Gate, path: str) -> None:
    guard = Guard(gate)
    router = APIRouter(prefix="/v1/{tenant}")
    router.get("/items/{number:int}", dependencies=[Depends(guard)])(lambda: "here")
    api, sub = FastAPI(), FastAPI()
    for app in (api, sub):
        guard.install(app)
        app.include_router(router, prefix="/api" if app is api else "")
    api.mount("/sub", sub)
    denied = await ask(api, "GET", path, BOB)
    assert (denied.status_code, denied.headers["gatelock"]) == (429, 'denied;policy="daily"')
    assert (await ask(api, "GET", path, {"x-api-key": "eve"})).json() == "here"


async def test_an_application_may_respond_to_denied_requests_by_itself(gate: Gate) -> None:
    api, guard = FastAPI(), Guard(gate)
    guard.install(api)
    api.get("/items", dependencies=[Depends(guard)])(lambda: "here")

    @api.exception_handler(Refused)
    def sorry(request: Request, denied: Refused) -> PlainTextResponse:
        return PlainTextResponse(f"later: {denied.decision.policy}", 420)

    denied = await ask(api, "GET", "/items", ACME)
    assert (denied.status_code, denied.text) == (420, "later: daily")


class TestCrossOrigin:
    """Browsers send a preflight request without a key, and show only responses that allow their origin."""

    def api(self, guard: Guard | None = None) -> FastAPI:
        api = FastAPI()
        api.get("/items", dependencies=[Depends(guard)] if guard else [])(lambda: "here")
        return api

    async def answers(self, app: object) -> list[tuple[int, str | None]]:
        preflight = await ask(app, "OPTIONS", "/items", PREFLIGHT)
        denied = await ask(app, "GET", "/items", ACME | PREFLIGHT)
        responses = (preflight, denied)
        return [(response.status_code, response.headers.get(ALLOW_ORIGIN)) for response in responses]

    @pytest.mark.parametrize("first", ["guard", "cors"])
    async def test_cors_works_with_the_dependency_in_either_order(
        self, gate: Gate, clock: ManualClock, first: str
    ) -> None:
        burst = SlidingLog(1, 10, clock=clock)
        guard = Guard(gate, burst)
        api = self.api(guard)
        if first == "guard":
            guard.install(api)
        api.add_middleware(CORSMiddleware, allow_origins=["*"])
        if first == "cors":
            guard.install(api)
        assert await self.answers(api) == [(200, "*"), (429, "*")]
        assert burst.peek("address:127.0.0.1").remaining == 1

    async def test_cors_works_around_the_middleware(self, gate: Gate, clock: ManualClock) -> None:
        burst, api = SlidingLog(1, 10, clock=clock), self.api()
        api.add_middleware(asgi.Guard, gate, burst)
        api.add_middleware(CORSMiddleware, allow_origins=["*"])
        assert await self.answers(api) == [(200, "*"), (429, "*")]
        assert burst.peek("address:127.0.0.1").remaining == 1
