"""The OpenAPI document: published as it is served, and true, as schemathesis finds by asking."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
import schemathesis
import sqlalchemy as sa
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as bounds
from schemathesis import Case, GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import ignored_auth

from analyzer.config.settings import Settings
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.faces.api.openapi import openapi_document
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.kernel.tokens import create
from tests.house.reading import ROOT
from tests.support.depth import deeper
from tests.support.plain_http import get

PAGE = ROOT / "docs" / "openapi.json"
# Where these are wrong a request is not HTTP, and is refused below the API, in plain text.
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

        @bounds(max_examples=deeper(4), deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            assume(FRAMING.isdisjoint(map(str.lower, case.headers or ())))
            case.call_and_validate(base_url=url, headers=headers, excluded_checks=[ignored_auth])

        ask()


def test_the_document_is_served(url: str) -> None:
    assert get(f"{url}/v1/openapi.json").json() == json.loads(PAGE.read_text())
