"""The HTTP response to a denied request."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.adapters.refusal_response import TYPES, header_value, refusal
from gatekeeper.model import Decision
from tests.support.feed import NOON

LOCKED = Decision(
    False,
    policy="daily",
    reason="quota-exceeded",
    detail="100,000 requests per day (Europe/Berlin), 100,214 counted",
    retry_after=6356.000000001,
    until=NOON + timedelta(hours=2),
    also=("monthly",),
)


def test_the_response_explains_the_denial() -> None:
    answer = refusal(LOCKED)
    assert answer.status == 429
    assert dict(answer.headers) == {
        "content-type": "application/problem+json",
        "content-length": str(len(answer.body)),
        "cache-control": "no-store",
        "gatelock": 'denied;policy="daily"',
        "retry-after": "6357",
    }
    assert json.loads(answer.body) == {
        "type": f"{TYPES}quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "100,000 requests per day (Europe/Berlin), 100,214 counted",
        "violated-policies": ["daily", "monthly"],
        "until": "2026-01-01T02:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("reason", "problem"),
    [
        ("quota-exceeded", f"{TYPES}quota-exceeded"),
        ("limited", f"{TYPES}quota-exceeded"),
        ("abnormal-usage-detected", f"{TYPES}abnormal-usage-detected"),
        ("temporary-reduced-capacity", f"{TYPES}temporary-reduced-capacity"),
        ("stale", f"{TYPES}temporary-reduced-capacity"),
        ("a reason of a later version", "about:blank"),
    ],
)
def test_each_reason_has_its_problem_type(reason: str, problem: str) -> None:
    assert json.loads(refusal(LOCKED._replace(reason=reason)).body)["type"] == problem


@given(st.floats(0.000001, 1e9))
def test_a_client_that_waits_for_retry_after_does_not_return_too_early(wait: float) -> None:
    wait_s = int(dict(refusal(LOCKED._replace(retry_after=wait)).headers)["retry-after"])
    assert wait <= wait_s < wait + 1


def test_retry_after_is_sent_only_if_the_wait_is_known() -> None:
    assert "retry-after" not in dict(refusal(LOCKED._replace(retry_after=None)).headers)


@pytest.mark.parametrize(("status", "sent"), [(503, 503), (403, 403), (200, 429), (0, 429), (999, 429)])
def test_no_status_in_a_lock_makes_a_denial_look_like_success(status: int, sent: int) -> None:
    answer = refusal(LOCKED._replace(status=status))
    assert (answer.status, json.loads(answer.body)["status"]) == (sent, sent)


@given(st.text())
def test_no_policys_name_breaks_out_of_the_header(policy: str) -> None:
    """Unquoted by RFC 9651, the value is the name, with ? for characters that a header cannot hold."""
    value = header_value(LOCKED._replace(policy=policy))
    if not policy:
        assert value == "denied"
        return
    inside = value.removeprefix('denied;policy="').removesuffix('"')
    name, characters = "", iter(inside)
    for character in characters:
        assert character != '"'
        name += next(characters) if character == "\\" else character
    assert name == "".join(c if " " <= c <= "~" else "?" for c in policy)
    assert value.isascii()
    assert value.isprintable()
