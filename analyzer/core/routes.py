"""What was asked for, as a route pattern: `/v1/items/7?x=1` is `/v1/items/{id}`."""

from __future__ import annotations

from collections.abc import Sequence

FREE = "{"  # a segment that begins with a brace stands for any one


class Routes:
    """The first of `patterns` that fits, or `other`. Patterns with a fixed segment in some place come before
    those that leave it free there, so their order in the configuration does not matter."""

    def __init__(self, patterns: Sequence[str], other: str) -> None:
        self._other = other
        self._by_length: dict[int, list[tuple[list[str], str]]] = {}
        for pattern in sorted(patterns, key=lambda p: [segment.startswith(FREE) for segment in p.split("/")]):
            segments = pattern.split("/")
            self._by_length.setdefault(len(segments), []).append((segments, pattern))

    def of(self, path: str) -> str:
        """The resource of `path`, without its query and fragment; a slash at the end counts.

        >>> Routes(["/v1/{kind}", "/v1/search"], "other").of("/v1/search?q=1")
        '/v1/search'
        """
        segments = path.partition("?")[0].partition("#")[0].split("/")
        for wanted, pattern in self._by_length.get(len(segments), ()):
            if all(w == s or (w.startswith(FREE) and s) for w, s in zip(wanted, segments, strict=True)):
                return pattern
        return self._other
