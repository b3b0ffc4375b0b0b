"""Paths to route patterns: `/v1/items/7?x=1` is `/v1/items/{id}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PLACEHOLDER = re.compile(r"\{.*\}", re.DOTALL)  # a segment in braces matches any one that is not empty
ANY_SEGMENT = "[^/?#]++"
END_OF_PATH = r"(?=[?#]|\Z)"

SplitRoute = tuple[list[str | None], str]  # segments, None for a placeholder; the pattern


class RouteMatcher:
    """Finds the route pattern that a path matches, or `other`.

    Patterns with a fixed segment in some place take precedence over those with a placeholder there, so their
    order in the configuration does not matter.
    """

    def __init__(self, patterns: Sequence[str], fallback: str) -> None:
        self._names = [fallback]
        routes: list[SplitRoute] = [
            ([None if PLACEHOLDER.fullmatch(part) else part for part in pattern.split("/")], pattern)
            for pattern in patterns
        ]
        # One expression for all of them, as a prefix tree: a path that shares little with any route costs
        # little.
        self._match = re.compile(_prefix_tree(routes, self._names) if patterns else r"(?!)").match

    def match(self, path: str) -> str:
        """Returns the resource of `path`, without its query and fragment; a trailing slash counts.

        >>> RouteMatcher(["/v1/{kind}", "/v1/search"], "other").match("/v1/search?q=1")
        '/v1/search'
        """
        return self.match_all([path])[0]

    def match_all(self, paths: Iterable[str]) -> list[str]:
        """Returns the resource of each path; "" for an empty path."""
        match, names, fallback = self._match, self._names, self._names[0]
        resources = []
        for path in paths:
            result = match(path)
            resources.append(names[result.lastindex or 0] if result else fallback if path else "")
        return resources


def _prefix_tree(routes: Iterable[SplitRoute], names: list[str]) -> str:
    """Returns the expression for `routes`, and appends their patterns to `names`: group n is `names[n]`."""
    by_first: dict[str | None, list[SplitRoute]] = {}
    for (first, *tail), pattern in routes:
        by_first.setdefault(first, []).append((tail, pattern))
    branches = []
    for first in sorted(by_first, key=lambda segment: (segment is None, segment or "")):
        endings = []
        complete = [pattern for tail, pattern in by_first[first] if not tail]
        deeper = [(tail, pattern) for tail, pattern in by_first[first] if tail]
        if complete:
            names.append(complete[0])
            endings.append(f"(){END_OF_PATH}")
        if deeper:
            endings.append(f"/{_prefix_tree(deeper, names)}")
        branches.append(f"{ANY_SEGMENT if first is None else re.escape(first)}(?:{'|'.join(endings)})")
    return f"(?:{'|'.join(branches)})"
