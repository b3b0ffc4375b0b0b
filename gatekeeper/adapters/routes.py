"""Route patterns of frameworks in the one spelling that a log's mapping has: /v1/items/{id}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

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
