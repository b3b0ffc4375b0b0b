"""Refusals of browsers and of programs, and where a sign-in leads."""

from __future__ import annotations

import httpx2
import pytest
import sqlalchemy as sa

from analyzer.kernel.tokens import create

BROWSER = {"accept": "text/html,application/xhtml+xml"}
pytestmark = pytest.mark.parametrize("database", ["sqlite"])


def test_an_unknown_path_is_a_page_for_a_browser_and_problem_details_for_a_program(
    client: httpx2.Client,
) -> None:
    answer = client.get("/nothing-here", headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Not Found" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for path, headers in (("/nothing-here", {}), ("/v1/nothing", BROWSER)):
        answer = client.get(path, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_another_method_is_a_page_for_a_browser(client: httpx2.Client) -> None:
    answer = client.get("/acts/locks/lock", headers=BROWSER)
    assert (answer.status_code, "<h1" in answer.text) == (405, True)


def test_a_sign_in_leads_to_no_act(client: httpx2.Client, engine: sa.Engine) -> None:
    token = create(engine, "ann", "operate", None, "ann", "tests")
    answer = client.post("/sign-in", data={"token": token, "next": "/acts/locks/lock"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
