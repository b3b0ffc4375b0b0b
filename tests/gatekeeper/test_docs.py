"""docs/gatekeeper.md and docs/guards.md: snippets run, and tables list every setting with its default."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gatekeeper import Gate
from gatekeeper.adapters import asgi, django, fastapi, flask, wsgi
from gatekeeper.feed import feed_json
from gatekeeper.testing import locked

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join((DOCS / name).read_text() for name in ("gatekeeper.md", "guards.md"))
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
JSON = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
ACME, BOB = {"x-api-key": "acme"}, {"x-api-key": "bob"}


def under(heading: str) -> list[str]:
    """The snippets under a heading."""
    part = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert part, heading
    return re.findall(r"```python\n(.*?)```", part[2], re.DOTALL)


def run(*snippets: str) -> dict[str, Any]:
    """Runs the snippets; returns the names that they define."""
    names: dict[str, Any] = {"__name__": "shop"}
    for snippet in snippets:
        exec(compile(snippet, "docs/gatekeeper.md", "exec"), names)  # noqa: S102 - from this repository
    return names


def test_every_snippet_runs_in_the_order_of_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a database, so that no request is denied."""
    names: dict[str, Any] = {}
    gates: list[Gate] = []
    for number, snippet in enumerate(SHOWN):
        exec(compile(snippet, f"docs, snippet {number}", "exec"), names)  # noqa: S102 - see above
        gates.append(names["gate"])
    for gate in gates[:-1]:  # the last one's clock is moved by hand
        gate.close()
    assert capsys.readouterr().out == "False inf 0 0.0 0.0 {}\n"


Send = Callable[..., httpx2.Response]


def client_of(app: Any) -> Send:
    """A function that sends a request for a path to an application."""

    async def send_async(path: str, **options: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            return await client.get(path, **options)

    def send(path: str, **options: Any) -> httpx2.Response:
        if inspect.iscoroutinefunction(type(app).__call__):
            return asyncio.run(send_async(path, **options))
        transport = httpx2.WSGITransport(app=app)
        with httpx2.Client(transport=transport, base_url="http://shop.example") as client:
            return client.get(path, **options)

    return send


def test_any_asgi_application_is_guarded_and_answers_as_shown() -> None:
    names = run(*under("Any ASGI application"))
    send = client_of(names["app"])
    with locked(names["gate"], "api_key:acme"):
        assert send("/items", headers=BOB).json() == {"left_this_second": 19}
        assert send("/static/shop.css", headers=ACME).status_code == 404
        refused = send("/items", headers=ACME)
    assert refused.status_code == 429
    shown = re.search(r"```\nHTTP/1.1 429.*?```", PAGE, re.DOTALL)
    assert shown
    headers = re.findall(r"^([a-z-]+): ", shown[0], re.MULTILINE)
    assert set(headers) == set(refused.headers) - {"content-length"}
    assert re.findall(r'"([a-z-]+)":', shown[0]) == list(refused.json())


def test_fastapi_is_guarded() -> None:
    names = run(*under("FastAPI"))
    send = client_of(names["app"])
    with locked(names["gate"], "api_key:acme"):
        assert send("/items/7", headers=BOB).json() == {"left_this_second": 19}
        assert send("/export", headers=BOB).headers["ratelimit"].startswith('"burst";r=9')
        assert send("/items/7", headers=ACME).status_code == 429


def test_flask_is_guarded() -> None:
    names = run(*under("Flask"))
    send = client_of(names["app"].wsgi_app)
    ann, bob = ({"auth": (name, "secret")} for name in ("ann", "bob"))
    with locked(names["gate"], "user:ann"):
        assert send("/items/7", **bob).json() == {"left_this_second": 19}
        assert send("/export", **bob).headers["ratelimit"].startswith('"burst";r=9')
        assert [send(path, **ann).status_code for path in ("/items/7", "/healthz")] == [429, 200]


def test_any_wsgi_application_is_guarded() -> None:
    names = run(*under("Any WSGI application"))
    send = client_of(names["app"])
    with locked(names["gate"], "api_key:acme"):
        assert send("/", headers=BOB).text == "19 left this second"
        assert send("/", headers=ACME).status_code == 429


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_django_is_guarded(kind: str) -> None:
    from django.conf import settings
    from django.test import AsyncClient, Client, override_settings
    from django.urls import path

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)
    module, views = (run(snippet) for snippet in under("Django"))
    given = {name: value for name, value in module.items() if name.isupper() and name != "INSTALLED_APPS"}
    gate = given["GATELOCK"]["gate"] = Gate(given["GATELOCK"]["gate"])
    urls = tuple(path(f"{name}/<int:item_id>", views[name]) for name in ("item",))
    urls += tuple(path(name, views[name]) for name in ("export", "healthz"))
    with override_settings(**given, ROOT_URLCONF=urls), locked(gate, "api_key:acme"):
        assert django.check_setting(None) == []
        client, async_client = Client(), AsyncClient()

        def send(where: str, headers: Mapping[str, str]) -> Any:
            if kind == "async":
                return asyncio.run(async_client.get(where, headers=headers))
            return client.get(where, headers=headers)

        assert send("/item/7", BOB).json() == {"left_this_second": 19}
        assert send("/export", BOB).json() == {"left_this_second": 9}
        assert [send(where, ACME).status_code for where in ("/item/7", "/healthz")] == [429, 200]


def test_a_request_with_a_malformed_key_is_named_by_its_address() -> None:
    names = run(*under("Any ASGI application"), *under("Caller names"))
    key_or_address = names["key_or_address"]
    names_of = {b"acme": "api_key:acme"} | dict.fromkeys((b"\xff", b"x" * 300, None), "address:::/64")
    for key, caller in names_of.items():
        headers = [] if key is None else [(b"x-api-key", key)]
        assert key_or_address({"headers": headers, "client": ("::1", 1)}) == caller


def test_the_lock_file_can_be_read() -> None:
    update = feed_json.load(JSON[0])
    assert (update.unknown, len(update.changes)) == ((), 1)


def defaults(target: Any) -> dict[str, object]:
    """The settings of a class with their defaults."""
    if target is django.Setting:
        return dict.fromkeys(target._fields) | target._field_defaults
    parameters = inspect.signature(target).parameters
    settings = {name: value.default for name, value in parameters.items() if name not in ("app", "gate")}
    return settings | ({"app": None} if target is flask.Guard else {})


def rows_below(introduction: str) -> dict[str, str]:
    """The settings in the table below an introduction, with their default."""
    table = PAGE.rpartition(f"`{introduction}")[2].partition("\n\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE)
    return {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(
    ("introduction", "target"),
    [
        ("Gate(", Gate),
        ("Guard(", asgi.Guard),
        ("Guard(", wsgi.Guard),
        ("fastapi.Guard(", fastapi.Guard),
        ("flask.Guard(", flask.Guard),
        ("GATELOCK` of", django.Setting),
    ],
)
def test_every_setting_is_listed_with_its_default(introduction: str, target: Any) -> None:
    """The tables of FastAPI, Flask and Django have what differs from that of ASGI and WSGI."""
    expected, listed = defaults(target), rows_below(introduction)
    if introduction not in ("Gate(", "Guard("):
        listed = {name: row for name, row in rows_below("Guard(").items() if name in expected} | listed
    assert sorted(listed) == sorted(expected)
    for name, default in expected.items():
        if listed[name] and isinstance(default, str | float | bool):
            assert listed[name].strip("`") == repr(default).replace("'", '"'), name
