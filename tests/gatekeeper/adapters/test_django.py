"""The guard for Django, where it differs from the others; test_frameworks.py has what they share."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from asgiref.sync import SyncToAsync
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from gatekeeper import Concurrency, Gate, SlidingLog
from gatekeeper.adapters.django import address, check_setting, cost, exempt, header, user
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.support.feed import a_lock

ROOT = Path(__file__).parents[3]
HERE = __name__
GUARD = "gatekeeper.adapters.django.GuardMiddleware"
BOB = {"x-api-key": "bob"}


# -- a project ------------------------------------------------------------------------------------


def items(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{request.gatelock.remaining} left")


async def items_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{request.gatelock.remaining} left in {threading.current_thread().name}")


@method_decorator(cost(4), name="dispatch")
class Export(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return items(request)


@cost(lambda request: int(request.GET["rows"]))
def rows(request: HttpRequest) -> HttpResponse:
    return items(request)


@method_decorator(exempt, name="dispatch")
class Health(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(hasattr(request, "gatelock")))


def missing(request: HttpRequest) -> HttpResponse:
    raise Http404


def breaks(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("broken")


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter(["a", "b"]))


URLS = (
    path("items", items),
    path("async", items_async),
    path("export", Export.as_view()),
    path("rows", rows),
    path("healthz", Health.as_view()),
    path("missing", missing),
    path("breaks", breaks),
    path("stream", stream),
)


class Ann:
    is_authenticated = True

    def get_username(self) -> str:
        return "ann"


def sign_in(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Stands in for AuthenticationMiddleware, which looks the user up in a database."""

    def look_up(request: HttpRequest) -> HttpResponse:
        request.user = Ann()
        return get_response(request)

    return look_up


class SignInAsync:
    """Stands in for AuthenticationMiddleware in an async stack, where the user is awaited."""

    async_capable, sync_capable = True, False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponse]]) -> None:
        from asgiref.sync import markcoroutinefunction

        self._get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        async def auser() -> Ann:
            await asyncio.sleep(0)
            return Ann()

        request.auser = auser
        return await self._get_response(request)


def replace_response(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Drops the view's response for another one, as ConditionalGetMiddleware does."""

    def respond(request: HttpRequest) -> HttpResponse:
        get_response(request)
        return HttpResponseNotModified()

    return respond


@pytest.fixture(scope="module", autouse=True)
def project() -> None:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)
        django.setup()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    gate = Gate(FixedSource(a_lock("user:ann"), a_lock("api_key:acme")), clock=clock)
    assert gate.ready(1.0)
    return gate


@pytest.fixture
def burst(clock: ManualClock) -> SlidingLog:
    return SlidingLog(10, 10, clock=clock, name="burst")


@pytest.fixture
def configured(gate: Gate, burst: SlidingLog) -> Iterator[Callable[..., None]]:
    """Returns a function that sets GATELOCK and other settings until the end of the test."""
    overrides: list[override_settings] = []

    def configure(middleware: tuple[str, ...] = (GUARD,), propagate: bool = False, **changed: Any) -> None:
        gatelock = {"gate": gate, "limiters": [burst]} | changed
        settings_ = override_settings(
            GATELOCK=gatelock,
            MIDDLEWARE=list(middleware),
            ROOT_URLCONF=URLS,
            DEBUG_PROPAGATE_EXCEPTIONS=propagate,
        )
        settings_.enable()
        overrides.append(settings_)

    yield configure
    for settings_ in reversed(overrides):
        settings_.disable()


# -- views ---------------------------------------------------------------------------------------


def test_costs_and_exemptions_are_the_views(configured: Callable[..., None]) -> None:
    configured()
    client = Client()
    answers = [client.get(where, headers=BOB).content for where in ("/export", "/rows?rows=3", "/healthz")]
    assert answers == [b"6 left", b"3 left", b"False"]


def test_unknown_paths_are_guarded_too(configured: Callable[..., None], burst: SlidingLog) -> None:
    configured(refund_when=lambda response: response.status_code == 404)
    client = Client()
    assert client.get("/nowhere", headers={"x-api-key": "acme"}).status_code == 429
    assert {client.get(where, headers=BOB).status_code for where in ("/nowhere", "/missing")} == {404}
    assert burst.peek("api_key:bob").remaining == 10


def test_the_caller_is_read_by_the_configured_extractor(configured: Callable[..., None]) -> None:
    configured((f"{HERE}.sign_in", GUARD), caller="gatekeeper.adapters.django.user")
    assert Client().get("/items").status_code == 429
    configured(caller=header("x-user", "user"))
    assert Client().get("/items", headers={"x-user": "ann"}).status_code == 429
    configured(caller=address(["127.0.0.1"]), limiters=[])
    assert Client().get("/items", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 200


def test_changed_settings_are_loaded(configured: Callable[..., None]) -> None:
    configured()
    client = Client()
    assert client.get("/items", headers={"x-api-key": "acme"}).status_code == 429
    configured(shadow=True)
    assert client.get("/items", headers={"x-api-key": "acme"}).status_code == 200


@pytest.mark.parametrize("propagate", [True, False])
def test_a_view_that_raises_is_refunded_and_no_longer_in_flight(
    configured: Callable[..., None], burst: SlidingLog, propagate: bool
) -> None:
    work = Concurrency(1)
    configured(
        propagate=propagate,
        limiters=[burst, work],
        refund_when=lambda response: response.status_code == 500,
    )
    client = Client(raise_request_exception=False)
    for _ in range(2):
        if propagate:
            with pytest.raises(RuntimeError):
                client.get("/breaks", headers=BOB)
        else:
            assert client.get("/breaks", headers=BOB).status_code == 500
    assert (burst.peek("api_key:bob").remaining, work.in_flight("api_key:bob")) == (10, 0)


def test_a_stream_that_another_middleware_drops_is_no_longer_in_flight(
    configured: Callable[..., None],
) -> None:
    work = Concurrency(1)
    configured((f"{HERE}.replace_response", GUARD), limiters=[work])
    assert Client().get("/stream", headers=BOB).status_code == 304
    gc.collect()
    assert work.in_flight("api_key:bob") == 0


# -- in a loop -----------------------------------------------------------------------------------


def thread_switches(configured: Callable[..., None], middleware: tuple[str, ...]) -> tuple[int, bytes]:
    """Returns how often a request switched to another thread, and the response."""
    configured(middleware)
    switches = 0
    original = SyncToAsync.__call__

    def count_switch(self: SyncToAsync, *args: Any, **kwargs: Any) -> Any:
        nonlocal switches
        switches += 1
        return original(self, *args, **kwargs)

    SyncToAsync.__call__ = count_switch
    try:
        response = asyncio.run(AsyncClient().get("/async", headers=BOB))
    finally:
        SyncToAsync.__call__ = original
    return switches, response.content


def test_in_an_async_stack_the_guard_uses_no_thread(configured: Callable[..., None]) -> None:
    guarded, content = thread_switches(configured, (GUARD,))
    assert content == b"9 left in MainThread"
    unguarded, _ = thread_switches(configured, (f"{HERE}.Unguarded",))
    assert guarded == unguarded


class Unguarded(SignInAsync):
    """A middleware that guards nothing, and gives views a decision."""

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        request.gatelock = SlidingLog(10, 10).check()
        return await self._get_response(request)


def test_in_an_async_stack_the_user_is_awaited(configured: Callable[..., None]) -> None:
    configured((f"{HERE}.SignInAsync", GUARD), caller=user)
    assert asyncio.run(AsyncClient().get("/async")).status_code == 429


def test_users_of_accounts_are_checked_in_both_stacks(tmp_path: Path) -> None:
    """With Django's sessions, accounts and database, which async code must await."""
    module = "tests.gatekeeper.adapters.shops.django_accounts"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[1:] == [
        f"{client} {user} {status} {status}"
        for client in ("Client", "AsyncClient")
        for user, status in ((None, 200), ("ann", 429), ("bob", 200))
    ]


async def await_caller(request: HttpRequest) -> str:
    await asyncio.sleep(0)
    return "api_key:acme"


def test_an_extractor_may_be_async_in_an_async_stack(configured: Callable[..., None]) -> None:
    configured(caller=f"{HERE}.await_caller")
    assert asyncio.run(AsyncClient().get("/async")).status_code == 429
    with pytest.raises(ImproperlyConfigured, match="caller: expected a function that is not async"):
        Client().get("/items")


# -- the system check ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, 'GATELOCK: expected {"gate": Gate(...) or its URL, ...}'),
        ({"limiters": []}, 'GATELOCK: expected {"gate": Gate(...) or its URL, ...}'),
        ({"gate": 5}, "GATELOCK: gate: expected Gate(...) or its URL, got 5"),
        ({"gate": "ftp://x"}, "ftp"),
        ({"limits": []}, "GATELOCK: unknown limits; the keys are gate, limiters, caller"),
        ({"limiters": [20]}, "GATELOCK: limiters: expected limiters, got 20"),
        ({"caller": 5}, "GATELOCK: caller: expected a function or its dotted path, got 5"),
        ({"caller": "no.such.function"}, "No module named 'no'"),
        ({"exempt": "/healthz"}, "exempt: expected a list of paths"),
        ({"headers": "new"}, "headers: expected one of draft, legacy, both, off"),
        ({"trusted_proxies": "10.0.0.1"}, "trusted_proxies: expected a list"),
    ],
)
def test_the_check_and_the_start_report_an_invalid_setting(gate: Gate, value: Any, message: str) -> None:
    if (value is not None and "limiters" not in value) or value == {"limiters": [20]}:
        value = {"gate": gate} | value
    with override_settings(GATELOCK=value, MIDDLEWARE=[GUARD], ROOT_URLCONF=URLS):
        (found,) = check_setting(None)
        assert (found.id, message in found.msg) == ("gatelock.E001", True), found.msg
        with pytest.raises(ImproperlyConfigured) as raised:
            Client().get("/items")
        assert str(raised.value) == found.msg


def test_the_check_reports_a_wrong_position_of_the_middleware(configured: Callable[..., None]) -> None:
    authentication = "django.contrib.auth.middleware.AuthenticationMiddleware"
    for middleware, changed, ids in (
        ((GUARD,), {}, []),
        ((), {}, ["gatelock.W001"]),
        ((GUARD, authentication), {"caller": user}, ["gatelock.E002"]),
        ((authentication, GUARD), {"caller": user}, []),
    ):
        configured(middleware, **changed)
        assert [finding.id for finding in check_setting(None)] == ids


SETTINGS = """
from gatekeeper import SlidingLog
from gatekeeper.adapters.django import header
SECRET_KEY = "a test's"
INSTALLED_APPS = ["gatekeeper.adapters.django.Gatelock"]
MIDDLEWARE = ["gatekeeper.adapters.django.GuardMiddleware"]
GATELOCK = {"gate": "file:///nowhere.json", "limiters": [SlidingLog(20, 1)], "caller": header("x-key"), %s}
"""


@pytest.mark.parametrize(("more", "code"), [("'shadow': True", 0), ("'shadows': True", 1)])
def test_manage_py_check_reads_the_settings(tmp_path: Path, more: str, code: int) -> None:
    """Settings may import the adapter, so it must not read settings when it is imported."""
    (tmp_path / "shop_settings.py").write_text(SETTINGS % more)
    ran = subprocess.run(
        [sys.executable, "-m", "django", "check", "--settings=shop_settings"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
    assert ("GATELOCK: unknown shadows" in ran.stderr) is bool(code)
