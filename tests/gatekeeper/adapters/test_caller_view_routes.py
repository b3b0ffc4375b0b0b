"""The applications of docs/guards.md that show callers what remains, over a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from gatekeeper import Gate
from tests.gatekeeper.test_docs import client_of, under
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server
from tests.support.waiting import PATIENCE_S

URL = "https://gatelock.example:8080"
FOREVER_S = 1e9
FRAMEWORKS = ("asgi", "flask", "django")  # in the order of the page
Send = Callable[[Mapping[str, str]], Any]


def document_of(caller: str) -> Mapping[str, Any]:
    limit = {
        "policy": "daily", "resource": None, "meter": "requests", "unit": None, "used": len(caller),
        "limit": 100, "remaining": 100 - len(caller), "window_s": 86_400, "resets": None, "detail": caller,
    }  # fmt: skip
    return {"format": 1, "now": "2026-11-20T12:00:00Z", "locked": False, "locks": [], "limits": [limit]}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with feed_server(HandFeed(a_lock("api_key:locked", ends_in=FOREVER_S)), views=document_of) as url:
        yield url


def documented(framework: str, url: str) -> dict[str, Any]:
    """Returns the names that the framework's snippet defines, with a gate on the server at `url`."""
    snippets = under("Show callers what remains")
    assert len(snippets) == len(FRAMEWORKS)
    snippet = snippets[FRAMEWORKS.index(framework)]
    assert URL in snippet
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(snippet.replace(URL, url), "docs/guards.md", "exec"), names)  # noqa: S102 - from this repository
    return names


def sender(framework: str, names: dict[str, Any]) -> tuple[Send, AbstractContextManager[Any]]:
    if framework != "django":
        app = names["app"].wsgi_app if framework == "flask" else names["app"]
        send = client_of(app)
        return lambda headers: send("/v1/me", headers=headers), nullcontext()
    from django.conf import settings
    from django.test import Client, override_settings
    from django.urls import path

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)
    given = override_settings(
        GATELOCK={"gate": names["gate"]},
        MIDDLEWARE=["gatekeeper.adapters.django.GuardMiddleware"],
        ROOT_URLCONF=(path("v1/me", names["me"]),),
    )
    return lambda headers: Client().get("/v1/me", headers=headers), given


@pytest.fixture(params=FRAMEWORKS)
def shop(request: pytest.FixtureRequest, url: str) -> Iterator[tuple[Send, Gate]]:
    names = documented(request.param, url)
    send, settings = sender(request.param, names)
    with settings, names["gate"] as gate:
        assert gate.ready(PATIENCE_S)
        yield send, gate


def test_a_caller_gets_its_own_view_with_the_headers(shop: tuple[Send, Gate]) -> None:
    send, _ = shop
    answer = send({"x-api-key": "acme"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["limits"][0]["detail"] == "api_key:acme"
    assert answer.headers["ratelimit"] == '"daily";r=88'
    assert answer.headers["ratelimit-policy"] == '"daily";q=100;w=86400'
    assert answer.headers["cache-control"] == "private, max-age=5"
    other = send({"x-api-key": "bob", "gatelock-caller": "api_key:acme"})
    assert other.json()["limits"][0]["detail"] == "api_key:bob", "the client cannot name another caller"


def test_a_locked_caller_can_ask_why(shop: tuple[Send, Gate]) -> None:
    send, gate = shop
    assert not gate.allow("api_key:locked")
    assert send({"x-api-key": "locked"}).json()["limits"][0]["detail"] == "api_key:locked"


def test_a_request_without_a_key_is_a_400(shop: tuple[Send, Gate]) -> None:
    assert shop[0]({}).status_code == 400
