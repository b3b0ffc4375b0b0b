"""Requests for which a framework has found no route: the gate is asked for the log's `else` resource."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import flask
import httpx2
import pytest
from fastapi import APIRouter, Depends, FastAPI

from gatekeeper import Gate
from gatekeeper.adapters import fastapi as fastapi_adapter
from gatekeeper.adapters import flask as flask_adapter
from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.model import Decision
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.support.feed import a_lock

ACME = {"x-api-key": "acme"}
Ask = Callable[[str], int]


class Notes:
    """Notes of a request log: the resource that is logged."""

    def __init__(self) -> None:
        self.resources: list[str] = []

    def note_decision(self, identity: RequestIdentity, decision: Decision) -> None:
        self.resources.append(identity.resource)


def a_gate(resource: str) -> Gate:
    gate = Gate(FixedSource(a_lock("api_key:acme", resource=resource)), clock=ManualClock())
    assert gate.ready(1.0)
    return gate


def flask_app(gate: Gate, notes: Notes, **settings: Any) -> Ask:
    app = flask.Flask("shop")
    flask_adapter.Guard(gate, app=app, **settings)

    @app.get("/items/<int:item>")
    def one(item: int) -> str:
        return str(item)

    noted = {"gatelock.request_log": notes}
    return lambda path: app.test_client().get(path, headers=ACME, environ_base=noted).status_code


def fastapi_app(gate: Gate, notes: Notes, **settings: Any) -> Ask:
    app, guard = FastAPI(), None
    guard = fastapi_adapter.Guard(gate, **settings)
    guard.install(app)
    items = APIRouter(prefix="/items", dependencies=[Depends(guard)])

    @items.get("/{item}")
    def one(item: int) -> int:
        return item

    app.include_router(items)

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {"request_log": notes}}, receive, send)

    async def ask(path: str) -> int:
        transport = httpx2.ASGITransport(app=noted)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            return (await client.get(path, headers=ACME)).status_code

    return lambda path: asyncio.run(ask(path))


def django_app(gate: Gate, notes: Notes, **settings: Any) -> Ask:
    from django.conf import settings as django_settings
    from django.http import HttpResponse
    from django.test import Client, override_settings
    from django.urls import path as url

    if not django_settings.configured:
        django_settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)

    def ask(path: str) -> int:
        with override_settings(
            GATELOCK={"gate": gate, **settings},
            MIDDLEWARE=["gatekeeper.adapters.django.GuardMiddleware"],
            ROOT_URLCONF=(url("items/<int:item>", lambda request, item: HttpResponse()),),
        ):
            noted: dict[str, Any] = {"gatelock.request_log": notes}
            status: int = Client(**noted).get(path, headers=ACME).status_code
            return status

    return ask


APPLICATIONS = [flask_app, fastapi_app, django_app]


@pytest.mark.parametrize("application", APPLICATIONS)
def test_a_lock_on_the_else_resource_refuses_a_scanner_of_unknown_paths(application: Any) -> None:
    notes = Notes()
    ask = application(a_gate("other"), notes)
    assert [ask("/wp-login.php"), ask("/items/7"), ask("/items/7/x")] == [429, 200, 429]
    assert notes.resources == ["other", notes.resources[1], "other"], "the request log counts it there"
    assert notes.resources[1].startswith("/items/{")


@pytest.mark.parametrize("application", APPLICATIONS)
def test_the_name_is_that_of_the_mapping(application: Any) -> None:
    ask = application(a_gate("elsewhere"), Notes(), other="elsewhere")
    assert [ask("/wp-login.php"), ask("/items/7")] == [429, 200]
    assert application(a_gate("elsewhere"), Notes())("/wp-login.php") == 404


@pytest.mark.parametrize("application", APPLICATIONS)
def test_other_locks_apply_to_unknown_paths_too_and_exempt_paths_pass(application: Any) -> None:
    ask = application(a_gate(""), Notes(), exempt=["/free"])
    assert [ask("/wp-login.php"), ask("/free")] == [429, 404]
