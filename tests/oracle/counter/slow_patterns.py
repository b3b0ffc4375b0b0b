"""Patterns of conditions, slowly: expressions as Python's own, globs by trying every ending."""

from __future__ import annotations

import re

from analyzer.plan.mapping import Pattern


def pattern_matches(pattern: Pattern, text: str) -> bool:
    if pattern.kind == "prefix":
        return text[: len(pattern.text)] == pattern.text
    if pattern.kind == "match":
        return expression_matches(pattern.text, text)
    path = re.split("[?#]", text)[0]
    return glob_matches(pattern.text, path, crosses="/" not in pattern.text)


def expression_matches(expression: str, text: str) -> bool:
    """Whether Python's expression is in a text, where $ is the very end."""
    of_end = re.sub(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\$", lambda found: found[1] or r"\Z", expression)
    return re.search(of_end, text, re.ASCII | re.DOTALL) is not None


def glob_matches(glob: str, path: str, *, crosses: bool) -> bool:
    """Whether a whole path matches; `crosses` says that * stands for slashes, too."""
    if glob.startswith("**/"):
        endings = ["", *(path[: at + 1] for at, letter in enumerate(path) if letter == "/")]
        return any(glob_matches(glob[3:], path[len(end) :], crosses=crosses) for end in endings)
    if glob.startswith("*"):
        rest = glob.removeprefix("**") if glob.startswith("**") else glob[1:]
        for length in range(len(path) + 1):
            if "/" in path[:length] and not (crosses or glob.startswith("**")):
                return False
            if glob_matches(rest, path[length:], crosses=crosses):
                return True
        return False
    if not glob or not path:
        return glob == path
    return glob[0] == path[0] and glob_matches(glob[1:], path[1:], crosses=crosses)
