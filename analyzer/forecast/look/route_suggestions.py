"""Routes that fit the paths of a log: segments that vary become placeholders."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

ROUTES_MAX = 30
DEPTH_MAX = 8  # segments
CHILDREN_MAX = 12  # of one segment, before the rare ones are taken for names
FREQUENT_SHARE = 0.01  # of all paths
ID, NAME = "{id}", "{name}"
# Numbers, UUIDs and digests; a fixed segment is of letters, with digits in versions such as v1.
IS_ID = re.compile(r"[0-9][0-9._-]*|[0-9a-fA-F-]{16,}|[0-9A-Z]{20,}")
FIXED = re.compile(r"[A-Za-z0-9._~+-]{1,60}")

Segments = tuple[str, ...]


def suggest_routes(paths: Iterable[str], routes_max: int = ROUTES_MAX) -> list[str]:
    """Returns at most `routes_max` routes, those with most paths first.

    >>> suggest_routes(["/v1/items/7?x=1", "/v1/items/8", "/v1/search", "/", "nonsense"])
    ['/v1/items/{id}', '/', '/v1/search']
    """
    counts = Counter(segments for path in paths if (segments := _segments(path)) is not None)
    for depth in range(DEPTH_MAX):
        counts = _with_names(counts, depth)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ["/" + "/".join(segments) for segments, _ in ordered[:routes_max]]


def _segments(path: str) -> Segments | None:
    """Returns the segments of a path with placeholders for ids; None where no route can match it."""
    path = re.split("[?#]", path, maxsplit=1)[0]
    parts = path.split("/")
    if parts[0] or not 2 <= len(parts) <= DEPTH_MAX + 1:
        return None
    segments = tuple(ID if IS_ID.fullmatch(part) else part for part in parts[1:])
    is_plain = all(part == ID or FIXED.fullmatch(part) for part in segments[:-1])
    last = segments[-1]
    if not is_plain or "" in segments[:-1]:
        return None
    return segments if last in ("", ID) or FIXED.fullmatch(last) else (*segments[:-1], NAME)


def _with_names(counts: Counter[Segments], depth: int) -> Counter[Segments]:
    """Returns the paths with a placeholder at `depth` for the rare ones of too many different segments."""
    children: defaultdict[Segments, Counter[str]] = defaultdict(Counter)
    for segments, count in counts.items():
        if len(segments) > depth and segments[depth] not in ("", ID):
            children[segments[:depth]][segments[depth]] += count
    least = counts.total() * FREQUENT_SHARE
    rare = {
        (*parent, name)
        for parent, following in children.items()
        if len(following) > CHILDREN_MAX
        for name, count in following.items()
        if count < least
    }
    joined: Counter[Segments] = Counter()
    for segments, count in counts.items():
        is_rare = segments[: depth + 1] in rare
        joined[(*segments[:depth], NAME, *segments[depth + 1 :]) if is_rare else segments] += count
    return joined
