"""Named values: which locks apply to a request with one, and that no other gate misreads these locks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import flask
import pytest
from django.conf import settings
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from gatekeeper import Gate
from gatekeeper.adapters import asgi, wsgi
from gatekeeper.adapters import django as django_guard
from gatekeeper.adapters import fastapi as fastapi_guard
from gatekeeper.adapters import flask as flask_guard
from gatekeeper.adapters.admission_control import AdmissionController, RequestIdentity
from gatekeeper.feed.saved_view import SavedView, ViewFile, write
from gatekeeper.gate import ValueGate
from gatekeeper.model import Clear, Lock, Refused
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.telemetry import status_json
from gatekeeper.testing import ManualClock
from gatekeeper.view.lock_tuples import pack_lock
from gatekeeper.view.lock_view import RequestScopes, apply
from tests.gatekeeper.test_view import a_view, an_update
from tests.support.feed import NOON, HandFeed, a_lock

ACME = "api_key:acme"
LARGE = a_lock("large", scope="value:model")
EXPORTS = a_lock("large", scope="value:model", resource="/v1/items/{id}")
OF_ACME = a_lock(ACME, scope="caller+value:model", resource="large")
OF_TENANT = a_lock("acme-inc", scope="tenant+value:model", resource="large")
OF_ADDRESS = a_lock("address:192.0.2.7", scope="caller+value:model", resource="large")
MODELS = ["small", "large"]
model_of = django_guard.header_text("x-model")
LOCKS = [LARGE, EXPORTS, OF_ACME, OF_TENANT, OF_ADDRESS]


def a_gate(*locks: Lock, values: tuple[str, ...] = ("model",)) -> Gate:
    gate = Gate(FixedSource(*locks), values=values, clock=ManualClock())
    assert gate.ready(1.0)
    return gate


def denied(lock: Lock, caller: str = "", **request: str) -> bool:
    return not a_gate(lock).check(caller, **request).allowed


def test_a_lock_on_a_value_denies_requests_with_it() -> None:
    assert denied(LARGE, ACME, model="large")
    assert denied(LARGE, model="large")
    assert not denied(LARGE, ACME, model="small")
    assert not denied(LARGE, ACME)
    assert denied(EXPORTS, ACME, model="large", resource="/v1/items/{item}")
    assert not denied(EXPORTS, ACME, model="large")
    assert not denied(EXPORTS, ACME, model="large", resource="/v1/other")


def test_a_lock_on_a_caller_or_tenant_denies_its_requests_with_the_value() -> None:
    assert denied(OF_ACME, ACME, model="large")
    assert not denied(OF_ACME, ACME, model="small")
    assert not denied(OF_ACME, "api_key:bob", model="large")
    assert denied(OF_TENANT, ACME, tenant="acme-inc", model="large")
    assert not denied(OF_TENANT, ACME, tenant="acme-inc", model="small")
    assert not denied(OF_TENANT, ACME, model="large")


def test_a_request_without_a_caller_is_found_by_its_address() -> None:
    assert denied(OF_ADDRESS, address="192.0.2.7", model="large")
    assert not denied(OF_ADDRESS, address="192.0.2.7", model="small")
    assert not denied(OF_ADDRESS, ACME, address="192.0.2.7", model="large")


@pytest.mark.parametrize("lock", LOCKS)
def test_without_the_value_a_request_passes_on_any_route(lock: Lock) -> None:
    """Nor does a gate without named values take a part of the key for something else."""
    for gate in (a_gate(lock), a_gate(lock, values=()), a_gate(lock, values=("region",))):
        for caller in (ACME, "large", "model=large", ""):
            for resource in ("large", "/v1/items/{id}", ""):
                request = {"resource": resource, "address": "192.0.2.7", "tenant": "acme-inc"}
                assert gate.check(caller, **request).allowed
        assert gate.ignored == {}


@pytest.mark.parametrize("scope", ["value", "value:", "value:Model", "address+value:model", "model:value"])
def test_a_scope_that_is_none_is_ignored_and_counted(scope: str) -> None:
    view = a_view(replace(OF_ACME, scope=scope))
    assert list(view) == []
    assert view.ignored == {f"scope {scope}": 1}


def test_another_value_or_another_name_is_not_confused() -> None:
    gate = a_gate(LARGE, OF_ACME, values=("model", "region"))
    assert gate.check(ACME, region="large").allowed
    assert not gate.check(ACME, region="eu", model="large").allowed
    assert gate.check("", model="model=large").allowed


def test_a_value_that_is_absent_or_no_text_passes() -> None:
    gate: Any = a_gate(replace(OF_ACME, resource=""), LARGE)
    for value in ("", None, 7, ["large"]):
        assert gate.check(ACME, model=value).allowed
        assert gate.allow(ACME, model=value)


def test_allow_and_enforce_take_values() -> None:
    gate = a_gate(OF_ACME)
    assert isinstance(gate, ValueGate)
    assert (gate.allow(ACME), gate.allow(ACME, model="small"), gate.allow(ACME, model="large")) == (
        True, True, False,
    )  # fmt: skip
    assert gate.enforce(ACME, model="small").allowed
    with pytest.raises(Refused):
        gate.enforce(ACME, model="large")


def test_a_name_that_the_gate_does_not_take_is_an_error_of_the_program() -> None:
    with pytest.raises(TypeError, match="modell: not a named value of this gate, which has model"):
        a_gate().check(ACME, modell="large")
    with pytest.raises(TypeError, match="model"):
        a_gate(values=()).check(ACME, model="large")
    assert type(a_gate(values=())) is Gate
    for wrong in (["Model"], ["caller"], [""]):
        with pytest.raises(ValueError, match=r"values: expected names of \[\[groupings\]\]"):
            Gate(FixedSource(), values=wrong)
    with pytest.raises(TypeError, match="expected a list of names"):
        Gate(FixedSource(), values="model")


def test_locks_are_set_cleared_listed_and_saved(tmp_path: Any) -> None:
    view = a_view(*LOCKS)
    assert set(view) == set(LOCKS)
    scopes = RequestScopes(ACME, "acme-inc", "", "", {"model": "large"})
    assert {lock[0] for lock in view.matching(scopes)} == {lock.scope for lock in (LARGE, OF_ACME, OF_TENANT)}
    emptied = apply(view, an_update(*(Clear(lock.at) for lock in LOCKS)))
    assert (list(emptied), len(emptied)) == ([], 0)
    write(tmp_path / "view", SavedView(NOON, map(pack_lock, LOCKS)))
    saved = ViewFile(tmp_path / "view").load(NOON)
    assert saved is not None
    assert len(list(saved.locks)) == len(LOCKS)


def test_a_gate_reports_the_values_that_it_takes() -> None:
    source, clock = HandFeed(), ManualClock()
    gate = Gate(source, values=["region", "model"], report_status=None, clock=clock)
    assert gate.values == ("model", "region")


def test_the_values_of_a_report_are_read_again() -> None:
    status = status_json.load('{"format": 1, "instance": "a", "number": 1, "values": ["model", 7]}')
    assert status.values == ("model",)
    assert status_json.load(status_json.dump(status)) == status
    assert status_json.load('{"format": 1, "instance": "a", "number": 1}').values == ()


def test_a_guard_checks_the_values_of_its_extractors() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def status(guard: Any, *headers: tuple[bytes, bytes]) -> int:
        sent: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-api-key", b"acme"), *headers]}
        await guard(scope, None, send)
        return sent[0]

    guard = asgi.Guard(app, a_gate(OF_ACME), values={"model": asgi.header_text("X-Model")})
    statuses = [
        asyncio.run(status(guard)),
        asyncio.run(status(guard, (b"x-model", b"small"))),
        asyncio.run(status(guard, (b"x-model", b"large"))),
        asyncio.run(status(guard, (b"x-model", b"\xff"))),
    ]
    assert statuses == [200, 200, 429, 200]


def test_a_wsgi_guard_checks_the_values_of_its_extractors() -> None:
    def app(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b""]

    guard = wsgi.Guard(app, a_gate(OF_ACME), values={"model": wsgi.header_text("X-Model")})
    statuses: list[str] = []
    for model in ("small", "large"):
        environ = {"REQUEST_METHOD": "GET", "HTTP_X_API_KEY": "acme", "HTTP_X_MODEL": model}
        guard(environ, lambda status, headers: statuses.append(status))
    assert statuses == ["200 OK", "429 Too Many Requests"]


def test_a_guard_names_no_value_that_its_gate_does_not_take() -> None:
    with pytest.raises(ValueError, match=r"does not take model: write Gate\(..., values=\['model'\]\)"):
        wsgi.Guard(lambda *_: [], a_gate(values=()), values={"model": wsgi.header_text("x-model")})


def test_admission_control_asks_for_the_values_of_an_identity() -> None:
    admission = AdmissionController(a_gate(OF_ACME), values=["model"], awaited=True)
    identity = RequestIdentity(ACME, values={"model": "large"})
    assert not admission.check(identity).decision.allowed
    assert not asyncio.run(admission.check_async(identity)).decision.allowed
    assert asyncio.run(admission.check_async(RequestIdentity(ACME))).decision.allowed


def test_fastapi_flask_and_django_pass_the_values_too() -> None:
    gate, wanted = a_gate(OF_ACME), {"x-api-key": "acme", "x-model": "large"}
    of_fastapi = fastapi_guard.Guard(gate, values={"model": fastapi_guard.header_text("x-model")})
    app = FastAPI(dependencies=[Depends(of_fastapi)])
    of_fastapi.install(app)
    app.get("/")(lambda: "ok")
    shop = flask.Flask("shop")
    flask_guard.Guard(gate, app=shop, values={"model": flask_guard.header_text("x-model")})
    shop.get("/")(lambda: "ok")
    setting = {"gate": gate, "values": {"model": "tests.gatekeeper.test_named_values.model_of"}}
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)
    with override_settings(GATELOCK=setting, ROOT_URLCONF=(path("", lambda request: HttpResponse("ok")),)):
        middleware = django_guard.GuardMiddleware(lambda request: HttpResponse("ok"))
        requests = [RequestFactory().get("/", headers={**wanted, "x-model": name}) for name in MODELS]
        of_django = [middleware(request).status_code for request in requests]
    with TestClient(app) as client:
        of_fast = [client.get("/", headers={**wanted, "x-model": name}).status_code for name in MODELS]
    of_flask = [
        shop.test_client().get("/", headers={**wanted, "x-model": name}).status_code for name in MODELS
    ]
    assert of_fast == of_flask == of_django == [200, 429]


def test_django_makes_the_gate_of_its_values() -> None:
    text = {"gate": "sqlite:///none.db", "values": {"model": model_of}}
    assert django_guard.parse_setting(text).gate.values == ("model",)
    with pytest.raises(TypeError, match="values: model: expected a function"):
        django_guard.parse_setting({"gate": a_gate(), "values": {"model": 7}})
    with pytest.raises(ValueError, match="does not take region"):
        django_guard.parse_setting({"gate": a_gate(), "values": {"region": model_of}})
