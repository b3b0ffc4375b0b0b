"""docs/gatekeeper.md: what it shows runs, what it lists is all there is."""

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

PAGE = (Path(__file__).parents[2] / "docs" / "gatekeeper.md").read_text()
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
JSON = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
ACME, BOB = {"x-api-key": "acme"}, {"x-api-key": "bob"}


def under(heading: str) -> list[str]:
    """The snippets of this part of the page."""
    part = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert part, heading
    return re.findall(r"```python\n(.*?)```", part[2], re.DOTALL)


def run(*snippets: str) -> dict[str, Any]:
    """What they define."""
    names: dict[str, Any] = {"__name__": "shop"}
    for snippet in snippets:
        exec(compile(snippet, "docs/gatekeeper.md", "exec"), names)  # noqa: S102 - our own page
    return names


def test_every_snippet_runs_in_the_order_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Its database is nowhere, which is no reason to refuse anybody."""
    names: dict[str, Any] = {}
    gates: list[Gate] = []
    for number, snippet in enumerate(SHOWN):
        exec(compile(snippet, f"docs/gatekeeper.md, snippet {number}", "exec"), names)  # noqa: S102 - as above
        gates.append(names["gate"])
    for gate in gates[:-1]:  # the last one's clock is moved by hand
        gate.close()
    assert capsys.readouterr().out == "False inf 0 0.0 0.0 {}\n"


Ask = Callable[..., httpx2.Response]


def asking(app: Any) -> Ask:
    """How to ask an application for a path, with headers."""

    async def ask_async(path: str, **how: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            return await client.get(path, **how)

    def ask(path: str, **how: Any) -> httpx2.Response:
        if inspect.iscoroutinefunction(type(app).__call__):
            return asyncio.run(ask_async(path, **how))
        transport = httpx2.WSGITransport(app=app)
        with httpx2.Client(transport=transport, base_url="http://shop.example") as client:
            return client.get(path, **how)

    return ask


def test_any_asgi_application_is_guarded_and_answers_as_is_shown() -> None:
    names = run(*under("Any ASGI application"))
    ask = asking(names["app"])
    with locked(names["gate"], "api_key:acme"):
        assert ask("/items", headers=BOB).json() == {"left_this_second": 19}
        assert ask("/static/shop.css", headers=ACME).status_code == 404
        refused = ask("/items", headers=ACME)
    assert refused.status_code == 429
    shown = re.search(r"```\nHTTP/1.1 429.*?```", PAGE, re.DOTALL)
    assert shown
    headers = re.findall(r"^([a-z-]+): ", shown[0], re.MULTILINE)
    assert set(headers) == set(refused.headers) - {"content-length"}
    assert re.findall(r'"([a-z-]+)":', shown[0]) == list(refused.json())


def test_fastapi_is_guarded() -> None:
    names = run(*under("FastAPI"))
    ask = asking(names["app"])
    with locked(names["gate"], "api_key:acme"):
        assert ask("/items/7", headers=BOB).json() == {"left_this_second": 19}
        assert ask("/export", headers=BOB).headers["ratelimit"].startswith('"burst";r=9')
        assert ask("/items/7", headers=ACME).status_code == 429


def test_flask_is_guarded() -> None:
    names = run(*under("Flask"))
    ask = asking(names["app"].wsgi_app)
    ann, bob = ({"auth": (name, "secret")} for name in ("ann", "bob"))
    with locked(names["gate"], "user:ann"):
        assert ask("/items/7", **bob).json() == {"left_this_second": 19}
        assert ask("/export", **bob).headers["ratelimit"].startswith('"burst";r=9')
        assert [ask(path, **ann).status_code for path in ("/items/7", "/healthz")] == [429, 200]


def test_any_wsgi_application_is_guarded() -> None:
    names = run(*under("Any WSGI application"))
    ask = asking(names["app"])
    with locked(names["gate"], "api_key:acme"):
        assert ask("/", headers=BOB).text == "19 left this second"
        assert ask("/", headers=ACME).status_code == 429


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_django_is_guarded(kind: str) -> None:
    from django.conf import settings
    from django.test import AsyncClient, Client, override_settings
    from django.urls import path

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)
    said, views = (run(snippet) for snippet in under("Django"))
    given = {name: value for name, value in said.items() if name.isupper() and name != "INSTALLED_APPS"}
    gate = given["GATELOCK"]["gate"] = Gate(given["GATELOCK"]["gate"])
    urls = tuple(path(f"{name}/<int:item_id>", views[name]) for name in ("item",))
    urls += tuple(path(name, views[name]) for name in ("export", "healthz"))
    with override_settings(**given, ROOT_URLCONF=urls), locked(gate, "api_key:acme"):
        assert django.check_setting(None) == []
        client, in_a_loop = Client(), AsyncClient()

        def ask(where: str, headers: Mapping[str, str]) -> Any:
            if kind == "async":
                return asyncio.run(in_a_loop.get(where, headers=headers))
            return client.get(where, headers=headers)

        assert ask("/item/7", BOB).json() == {"left_this_second": 19}
        assert ask("/export", BOB).json() == {"left_this_second": 9}
        assert [ask(where, ACME).status_code for where in ("/item/7", "/healthz")] == [429, 200]


def test_a_key_that_cannot_be_one_is_nobodys() -> None:
    names = run(*under("Any ASGI application"), *under("Who asks"))
    found = names["key_or_address"]
    for key, caller in ((b"acme", "api_key:acme"), (b"\xff", ""), (b"x" * 300, ""), (None, "address:::1")):
        headers = [] if key is None else [(b"x-api-key", key)]
        assert found({"headers": headers, "client": ("::1", 1)}) == caller


def test_the_file_that_is_shown_can_be_read() -> None:
    update = feed_json.load(JSON[0])
    assert (update.unknown, len(update.changes)) == ((), 1)


def defaults(taken: Any) -> dict[str, object]:
    """Its settings, each with its default."""
    if taken is django.Setting:
        return dict.fromkeys(taken._fields) | taken._field_defaults
    parameters = inspect.signature(taken).parameters
    return {name: each.default for name, each in parameters.items() if name not in ("app", "gate")} | (
        {"app": None} if taken is flask.Guard else {}
    )


@pytest.mark.parametrize(
    ("shown", "taken"),
    [
        ("Gate(", Gate),
        ("Guard(", asgi.Guard),
        ("Guard(", wsgi.Guard),
        ("fastapi.Guard(", fastapi.Guard),
        ("flask.Guard(", flask.Guard),
        ("GATELOCK` of", django.Setting),
    ],
)
def test_every_setting_is_listed_with_its_default(shown: str, taken: Any) -> None:
    table = PAGE.rpartition(f"`{shown}")[2].partition("\n\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE)
    listed = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    wanted = defaults(taken)
    assert sorted(listed) == sorted(wanted)
    for name, default in wanted.items():
        if listed[name] and isinstance(default, str | float | bool):
            assert listed[name].strip("`") == repr(default).replace("'", '"'), name
