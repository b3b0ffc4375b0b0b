"""Route patterns: those of frameworks, and those that the log's mapping has."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.plan.mapping import ResourceField
from analyzer.plan.value_rules import text_rule
from gatekeeper.adapters import asgi, wsgi
from gatekeeper.adapters.route_patterns import (
    RoutePatterns,
    pattern_of_django,
    pattern_of_flask,
    pattern_of_starlette,
)

SEGMENT = st.sampled_from(["", "v1", "items", "new", "{id}", "{kind}", "{", "{}", "a.b", "é"])
PATTERN = st.lists(SEGMENT, max_size=4).map(lambda segments: "/" + "/".join(segments))
PATH = st.lists(st.sampled_from(["", "v1", "items", "new", "7", "{id}", "a.b", "é", "%2F"]), max_size=5)


@given(st.lists(PATTERN, max_size=6), PATH.map("/".join))
@example(["/v1/{kind}/new", "/v1/items/{id}"], "/v1/items/new")
@example([], "/v1/items/7")
@example(["/v1/items/{id}/x", "/v1/{kind}/7"], "/v1/items/7")
def test_a_path_is_the_resource_that_the_log_has(patterns: list[str], path: str) -> None:
    counted = text_rule(ResourceField(("path",), tuple(patterns)), 256)
    assert [RoutePatterns(patterns).match(path)] == counted.read([path])


def test_one_string_instead_of_several_patterns_is_an_error() -> None:
    with pytest.raises(TypeError, match="routes: expected a list of patterns, got '/v1'"):
        RoutePatterns("/v1")


def test_a_path_is_matched_before_percent_decoding() -> None:
    """Decoded, /v1/items/a%2Fb would match another route than in the log, and its lock would not apply."""
    resource = asgi.routes(["/v1/items/{id}"], other="")
    assert resource({"path": "/v1/items/a/b", "raw_path": b"/v1/items/a%2Fb"}) == "/v1/items/{id}"
    assert resource({"path": "/v1/items/a"}) == "/v1/items/{id}"
    assert resource({"path": "/v2"}) == ""
    assert (
        wsgi.routes(["/v1/items/{id}"])({"SCRIPT_NAME": "/v1", "PATH_INFO": "/items/7"}) == "/v1/items/{id}"
    )


@pytest.mark.parametrize(
    ("pattern", "of", "rule"),
    [
        ("/items/{id}", pattern_of_flask, "/items/<id>"),
        ("/items/{id}", pattern_of_flask, "/items/<int(min=1):id>"),
        ("/{lang}/{name}", pattern_of_flask, "/<any(de, en):lang>/<path:name>"),
        ("/items/{id}", pattern_of_django, "items/<int:id>"),
        ("/old/{year}/{month}", pattern_of_django, r"^old/(?P<year>[0-9]{4})/(?P<month>\d{2})$"),
        ("/shop/items/{id}/", pattern_of_django, "shop/items/<slug:id>/"),
        ("/items/{id}", pattern_of_starlette, "/items/{id:int}"),
        ("/files/{rest}", pattern_of_starlette, "/files/{rest:path}"),
    ],
)
def test_routes_of_all_frameworks_get_one_spelling(pattern: str, of: object, rule: str) -> None:
    assert of(rule) == pattern
