"""The HTTP response to a denied request."""

from __future__ import annotations

import json
from datetime import timedelta

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.adapters.refusal_response import (
    TYPES,
    LimitItem,
    admission_item,
    denial_items,
    header_value,
    limit_headers,
    refusal,
)
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


# -- the headers about limits --------------------------------------------------------------------

NAMES = st.text(max_size=20)
AMOUNTS = st.integers(0, 1 << 62)
ITEMS = st.builds(
    LimitItem,
    NAMES,
    st.none() | AMOUNTS,
    AMOUNTS,
    st.none() | st.floats(0, 1e9),
    st.integers(0, 1 << 40),
    st.sampled_from(["", "content-bytes"]),
)


def parsed(headers: list[tuple[str, str]], name: str) -> dict[str, dict[str, object]]:
    """Returns a list of the draft as a parser of RFC 9651 reads it: parameters by the name of the policy."""
    value = dict(headers)[name]
    items = http_sf.parse(value.encode("ascii"), tltype="list")
    assert all(type(policy) is str for policy, _ in items), "each item is a string"
    assert len({policy for policy, _ in items}) == len(items)
    return dict(items)


def shown_name(item: LimitItem) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in item.name) or "limit"


@given(st.lists(ITEMS, min_size=1, max_size=5, unique_by=shown_name))
def test_the_headers_are_lists_of_structured_fields(items: list[LimitItem]) -> None:
    headers, most = limit_headers(items, "draft"), 10**15 - 1
    shown = parsed(headers, "ratelimit")
    assert {name: found["r"] for name, found in shown.items()} == {
        shown_name(item): min(item.remaining, most) for item in items
    }
    resets = {shown_name(item): item.reset for item in items if item.reset is not None}
    assert {name for name, found in shown.items() if "t" in found} == resets.keys()
    known = {shown_name(item): min(item.limit, most) for item in items if item.limit is not None}
    if known:
        policies = parsed(headers, "ratelimit-policy")
        assert {name: found["q"] for name, found in policies.items()} == known
    assert ("ratelimit-policy" in dict(headers)) == bool(known)


def test_several_policies_are_items_of_one_header() -> None:
    items = [
        LimitItem("burst", 20, 3, 0.2),
        LimitItem('a "daily" \\ one', 100_000, 99, 5400.5, 86_400),
        LimitItem("traffic", 1 << 31, 7, None, 60, "content-bytes"),
        LimitItem("locked", None, 0, 60.0),
    ]
    headers = limit_headers(items, "draft")
    assert [name for name, _ in headers] == ["ratelimit-policy", "ratelimit"]
    assert parsed(headers, "ratelimit") == {
        "burst": {"r": 3, "t": 1},
        'a "daily" \\ one': {"r": 99, "t": 5401},
        "traffic": {"r": 7},
        "locked": {"r": 0, "t": 60},
    }
    assert parsed(headers, "ratelimit-policy") == {
        "burst": {"q": 20},
        'a "daily" \\ one': {"q": 100_000, "w": 86_400},
        "traffic": {"q": 1 << 31, "qu": "content-bytes", "w": 60},
    }


def test_of_policies_with_one_name_the_one_with_least_remaining_is_shown() -> None:
    headers = limit_headers([LimitItem("", 20, 3), LimitItem("limit", 200, 1), LimitItem("", 9, 8)], "both")
    assert parsed(headers, "ratelimit") == {"limit": {"r": 1}}
    assert dict(headers)["x-ratelimit-remaining"] == "1"


@pytest.mark.parametrize("style", ["draft", "legacy", "both", "off"])
def test_a_denial_by_a_lock_says_that_nothing_remains_until_its_end(style: str) -> None:
    headers = refusal(LOCKED, style).headers  # type: ignore[arg-type]  # one of the styles
    sent = {name: value for name, value in headers if "ratelimit" in name}
    if style in ("draft", "both"):
        assert parsed(headers, "ratelimit") == {"daily": {"r": 0, "t": 6357}, "monthly": {"r": 0}}
        assert "ratelimit-policy" not in sent, "the limit is not known to the gate"
        # The draft: Retry-After must not be earlier than the reset.
        assert int(dict(headers)["retry-after"]) >= 6357
    if style in ("legacy", "both"):
        assert sent["x-ratelimit-remaining"] == "0"
        assert sent["x-ratelimit-reset"] == "6357"
        assert "x-ratelimit-limit" not in sent
    if style == "off":
        assert sent == {}


def test_a_denial_without_a_policy_says_nothing_about_limits() -> None:
    stale = Decision(False, reason="stale", retry_after=None, status=503)
    assert denial_items(stale) == []
    assert not [name for name, _ in refusal(stale, "both").headers if "ratelimit" in name]


def test_a_caller_without_a_lock_or_a_limiter_learns_nothing() -> None:
    """Only denials are distributed: no gate knows what remains of a quota."""
    assert admission_item(Decision(True)) is None
    assert limit_headers([], "both") == []
