"""What was asked for, as a route pattern: `/v1/items/7?x=1` is `/v1/items/{id}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

FREE = re.compile(r"\{.*\}", re.DOTALL)  # a segment in braces stands for any one that is not empty
ANY = "[^/?#]++"
END = r"(?=[?#]|\Z)"


class RouteMatcher:
    """The pattern that fits, or `other`. Patterns with a fixed segment in some place come before those that
    leave it free there, so their order in the configuration does not matter."""

    def __init__(self, patterns: Sequence[str], other: str) -> None:
        self._names = [other]
        split = [([None if FREE.fullmatch(s) else s for s in p.split("/")], p) for p in patterns]
        # One expression for all, as a tree: paths that have little in common with a route cost little.
        self._match = re.compile(_tree(split, self._names) if patterns else r"(?!)").match

    def of(self, path: str) -> str:
        """The resource of `path`, without its query and fragment; a slash at the end counts.

        >>> RouteMatcher(["/v1/{kind}", "/v1/search"], "other").of("/v1/search?q=1")
        '/v1/search'
        """
        return self.of_each([path])[0]

    def of_each(self, paths: Iterable[str]) -> list[str]:
        """The resource of each path; "" asks for nothing."""
        match, names, other = self._match, self._names, self._names[0]
        resources = []
        for path in paths:
            found = match(path)
            resources.append(names[found.lastindex or 0] if found else other if path else "")
        return resources


def _tree(routes: Iterable[tuple[list[str | None], str]], names: list[str]) -> str:
    """The expression for `routes`, each split into segments; the n-th group in it is for `names[n]`."""
    by_first: dict[str | None, list[tuple[list[str | None], str]]] = {}
    for (first, *rest), pattern in routes:
        by_first.setdefault(first, []).append((rest, pattern))
    branches = []
    for first in sorted(by_first, key=lambda segment: (segment is None, segment or "")):
        endings = []
        ended = [pattern for rest, pattern in by_first[first] if not rest]
        deeper = [(rest, pattern) for rest, pattern in by_first[first] if rest]
        if ended:
            names.append(ended[0])
            endings.append(f"(){END}")
        if deeper:
            endings.append(f"/{_tree(deeper, names)}")
        branches.append(f"{ANY if first is None else re.escape(first)}(?:{'|'.join(endings)})")
    return f"(?:{'|'.join(branches)})"
