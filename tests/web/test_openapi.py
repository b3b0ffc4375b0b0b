"""The OpenAPI document: published as it is served, and true, as schemathesis finds by asking."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import schemathesis
import sqlalchemy as sa
from fastapi import FastAPI
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as bounds
from schemathesis import Case, GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import ignored_auth
from starlette.routing import Route

from analyzer.config.settings import Settings
from analyzer.faces import wiring
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.faces.api.openapi import openapi_document
from analyzer.faces.api.other_operations import other_operations
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.kernel.tokens import create
from tests.house.reading import ROOT
from tests.support.depth import deeper
from tests.support.plain_http import get, request

PAGE = ROOT / "docs" / "openapi.json"
# Where these are wrong a request is not HTTP, and is refused below the API, in plain text.


def described(text: str) -> dict[str, str]:
    """A response of a refusal."""
    return {"description": text}


OTHERS = frozenset(
    other_operations(described)
)  # not tables of parameters: one of them answers without an end
FRAMING = frozenset({"connection", "content-length", "expect", "host", "te", "transfer-encoding", "upgrade"})


def test_the_published_document_is_the_one_that_is_served() -> None:
    text = json.dumps(openapi_document(ENDPOINTS), indent=1) + "\n"
    if os.environ.get("GATELOCK_WRITE_OPENAPI"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "GATELOCK_WRITE_OPENAPI=1 writes it"


@pytest.fixture
def url(settings: Settings, engine: sa.Engine) -> Iterator[str]:
    with web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict) as address:
        assert address is not None
        yield f"http://127.0.0.1:{address[1]}"


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_schemathesis_finds_nothing(url: str, engine: sa.Engine, mode: GenerationMode) -> None:
    token = create(engine, "ops", "admin", None, "ann", "tests")
    schema: BaseSchema = schemathesis.openapi.from_url(f"{url}/v1/openapi.json")
    headers = {"authorization": f"Bearer {token}"}
    # 422: values that no schema can exclude, such as an end before its begin. What is asked without a token
    # is in test_api.py, row by row: the check would send the one in `headers` again.
    schema.config.checks.positive_data_acceptance.expected_statuses += ["422"]
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in OTHERS:
            continue

        @bounds(max_examples=deeper(4), deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            assume(FRAMING.isdisjoint(map(str.lower, case.headers or ())))
            case.call_and_validate(base_url=url, headers=headers, excluded_checks=[ignored_auth])

        ask()


def test_every_path_of_the_server_but_pages_is_in_the_document(
    settings: Settings, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps: list[FastAPI] = []

    @contextmanager
    def recorded(app: FastAPI, *_rest: object) -> Iterator[tuple[str, int]]:
        apps.append(app)
        yield "127.0.0.1", 1

    monkeypatch.setattr(wiring, "serving", recorded)
    with web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict):
        routes = [route for route in apps[0].routes if isinstance(route, Route)]
    paths = {
        (route.path, method.lower())
        for route in routes
        for method in (route.methods or ())
        if method != "HEAD"
        and (route.path.startswith("/v1/") or route.path in ("/livez", "/readyz", "/metrics"))
    }
    document = openapi_document(ENDPOINTS)
    assert paths == {(path, method) for path, methods in document["paths"].items() for method in methods}
    names = [
        operation["operationId"] for methods in document["paths"].values() for operation in methods.values()
    ]
    assert len(names) == len({*names})


def test_other_operations_answer_as_the_document_says(url: str, engine: sa.Engine) -> None:
    token = create(engine, "ops", "admin", None, "ann", "tests")
    headers = {"authorization": f"Bearer {token}", "gatelock-caller": "api_key:acme"}
    for path, methods in other_operations(described).items():
        for method, operation in methods.items():
            if path == "/v1/events":
                continue  # without an end: tests/web/test_api.py
            response = request(method.upper(), url + path.replace("{instance}", "list"), headers=headers)
            assert str(response.status_code) in {*operation["responses"], "405"}, path
            if method == "get":
                (media_type,) = operation["responses"]["200"]["content"]
                assert response.headers["content-type"].startswith(media_type)
    assert request("PUT", f"{url}/v1/gates/list", headers=headers).headers["allow"] == "GET"


def test_the_document_is_served(url: str) -> None:
    assert get(f"{url}/v1/openapi.json").json() == json.loads(PAGE.read_text())
