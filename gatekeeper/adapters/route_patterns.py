"""Route patterns of frameworks in the one spelling that a log's mapping has: /v1/items/{id}."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

ANY = None  # in a tree: a segment in braces, which stands for any that is not empty

FLASK = re.compile(r"<(?:[^<>:]+:)?(?P<name>\w+)>")  # <int:id>, <string(length=2):lang>
FASTAPI = re.compile(r"\{(?P<name>\w+):\w+\}")  # {path:path}


@lru_cache(maxsize=4096)
def pattern_of_flask(rule: str) -> str:
    """
    >>> pattern_of_flask("/v1/items/<int:id>/<lang>")
    '/v1/items/{id}/{lang}'
    """
    return FLASK.sub(r"{\g<name>}", rule)


@lru_cache(maxsize=4096)
def pattern_of_django(route: str) -> str:
    """
    >>> pattern_of_django("v1/items/<int:id>/"), pattern_of_django(r"^old/(?P<year>[0-9]{4})/$")
    ('/v1/items/{id}/', '/old/{year}/')
    """
    named = re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", r"{\1}", route)
    return "/" + FLASK.sub(r"{\g<name>}", named).replace("^", "").removesuffix("$").lstrip("/")


@lru_cache(maxsize=4096)
def pattern_of_starlette(path: str) -> str:
    """
    >>> pattern_of_starlette("/files/{name:path}")
    '/files/{name}'
    """
    return FASTAPI.sub(r"{\g<name>}", path)


def resource_of(scope: Mapping[str, Any]) -> str:
    """The pattern of the route that was found, with what routers and mounts put before it; "" for none."""
    route = scope.get("route")
    # A router that is included leaves the whole path with its own routes; older versions copy them instead.
    context = scope.get("fastapi", {}).get("effective_route_context")
    if context is not None and getattr(context, "original_route", None) is route:
        route = context
    path = getattr(route, "path", "")
    if not path:
        return ""
    root: str = scope.get("root_path", "")
    mounted = root.removeprefix(scope.get("app_root_path", root))
    return pattern_of_starlette(mounted + path)


class RoutePatterns:
    """Which of these patterns a path fits, or `other`: as the log's mapping has it with the same `routes`
    and `else`. A segment in braces stands for any that is not empty; patterns with a fixed segment in some
    place come before those that leave it free there.

    >>> RoutePatterns(["/v1/{kind}", "/v1/search"]).of("/v1/search")
    '/v1/search'
    >>> RoutePatterns(["/v1/{kind}"]).of("/v1/a/b")
    'other'
    """

    def __init__(self, patterns: Iterable[str], other: str = "other") -> None:
        if isinstance(patterns, str):
            raise TypeError(f"routes: expected a list of patterns, got {patterns!r}")
        self._other = other
        self._tree: RouteTree = {}
        for pattern in patterns:
            here = self._tree
            for segment in pattern.split("/"):
                is_free = segment.startswith("{") and segment.endswith("}")
                here = here.setdefault(ANY if is_free else segment, RouteBranch({}, [])).deeper
            here.setdefault(END, RouteBranch({}, [])).names.append(pattern)

    def of(self, path: str) -> str:
        """The pattern; "" for no path."""
        return _found(self._tree, path.split("/"), 0) or self._other if path else ""


class RouteBranch(NamedTuple):
    """What goes on behind one segment, and what ends here."""

    deeper: RouteTree
    names: list[str]


RouteTree = dict[str | None, RouteBranch]
END = "/"  # no segment has one


def _found(tree: RouteTree, segments: list[str], at: int) -> str:
    if at == len(segments):
        return tree[END].names[0] if END in tree else ""
    segment = segments[at]
    if segment in tree and (found := _found(tree[segment].deeper, segments, at + 1)):
        return found
    return _found(tree[ANY].deeper, segments, at + 1) if segment and ANY in tree else ""
