"""Route patterns, from frameworks or by a list, in the spelling of a log's mapping: /v1/items/{id}."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

OTHER = "other"  # the resource of a path that matches no route; the default of `else` in a log's mapping

ANY = None  # in a tree: a segment in braces, which matches any segment that is not empty

FLASK = re.compile(r"<(?:[^<>:]+:)?(?P<name>\w+)>")  # <int:id>, <string(length=2):lang>
FASTAPI = re.compile(r"\{(?P<name>\w+):\w+\}")  # {path:path}


@lru_cache(maxsize=4096)
def pattern_of_flask(rule: str) -> str:
    """Returns the pattern for Flask's rule.

    >>> pattern_of_flask("/v1/items/<int:id>/<lang>")
    '/v1/items/{id}/{lang}'
    """
    return FLASK.sub(r"{\g<name>}", rule)


@lru_cache(maxsize=4096)
def pattern_of_django(route: str) -> str:
    """Returns the pattern for Django's route.

    >>> pattern_of_django("v1/items/<int:id>/"), pattern_of_django(r"^old/(?P<year>[0-9]{4})/$")
    ('/v1/items/{id}/', '/old/{year}/')
    """
    pattern = re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", r"{\1}", route)
    return "/" + FLASK.sub(r"{\g<name>}", pattern).replace("^", "").removesuffix("$").lstrip("/")


@lru_cache(maxsize=4096)
def pattern_of_starlette(path: str) -> str:
    """Returns the pattern for Starlette's path.

    >>> pattern_of_starlette("/files/{name:path}")
    '/files/{name}'
    """
    return FASTAPI.sub(r"{\g<name>}", path)


def route_resource(scope: Mapping[str, Any]) -> str:
    """Returns the pattern of the route that FastAPI or Starlette matched; "" if none matched.

    It begins with the prefixes of routers and mounts.
    """
    route = scope.get("route")
    # FastAPI keeps the full path of an included router here; older versions copy the routes instead.
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
    """Matches paths against patterns, as the log's mapping does with the same `routes` and `else`.

    Without patterns, as of a mapping without `routes`, a path is its own resource.

    A segment in braces matches any segment that is not empty. In each place a fixed segment takes precedence
    over one in braces.

    Args:
        patterns: Route patterns, such as "/v1/items/{id}".
        other: Resource of paths that match no pattern.

    Raises:
        TypeError: `patterns` is one string instead of several.

    >>> RoutePatterns(["/v1/{kind}", "/v1/search"]).match("/v1/search")
    '/v1/search'
    >>> RoutePatterns(["/v1/{kind}"]).match("/v1/a/b")
    'other'
    """

    def __init__(self, patterns: Iterable[str], other: str = OTHER) -> None:
        if isinstance(patterns, str):
            raise TypeError(f"routes: expected a list of patterns, got {patterns!r}")
        self._other = other
        self._tree: RouteTree = {}
        for pattern in patterns:
            tree = self._tree
            for segment in pattern.split("/"):
                is_free = segment.startswith("{") and segment.endswith("}")
                tree = tree.setdefault(ANY if is_free else segment, RouteBranch({}, [])).children
            tree.setdefault(END, RouteBranch({}, [])).patterns.append(pattern)

    def match(self, path: str) -> str:
        """Returns the pattern that matches, otherwise `other`; the path itself if there are no patterns."""
        if not self._tree:
            return path
        return _match(self._tree, path.split("/"), 0) or self._other if path else ""


class RouteBranch(NamedTuple):
    """Segments that may follow a segment, and patterns that end with it."""

    children: RouteTree
    patterns: list[str]


RouteTree = dict[str | None, RouteBranch]
END = "/"  # no segment contains one


def _match(tree: RouteTree, segments: list[str], index: int) -> str:
    """Returns the pattern that `segments` match from `index`; "" for none."""
    if index == len(segments):
        return tree[END].patterns[0] if END in tree else ""
    segment = segments[index]
    if segment in tree and (pattern := _match(tree[segment].children, segments, index + 1)):
        return pattern
    return _match(tree[ANY].children, segments, index + 1) if segment and ANY in tree else ""
