"""The valid part of a faulty table.

Checks between tables run on it, so that `gatelock check` reports their faults together with those of single
keys. Nothing is counted or judged by such a table: a configuration with any fault is refused.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)

# Placeholders for required values that are missing or invalid.
PLACEHOLDERS: dict[tuple[str, ...], object] = {
    ("name",): "placeholder",
    ("limit",): 1,
    ("capacity",): "1/s",
    ("usual",): 2,
    ("window",): {"per": "day"},
    ("window", "per"): "day",
}


def valid_part(model: type[Model], raw: object) -> Model | None:
    """`raw` as a table without its invalid values; None when that is not a table either."""
    if not isinstance(raw, dict):
        return None
    repaired = copy.deepcopy(raw)
    try:
        return model.model_validate(repaired)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False, include_input=False):
            _repair(repaired, error["loc"])
    try:
        return model.model_validate(repaired)
    except ValidationError:
        return None


def _repair(table: dict[str, Any], location: tuple[str | int, ...]) -> None:
    """Removes the invalid value at this path, or puts a placeholder there."""
    path = tuple(str(part) for part in location)
    if not path:  # a fault of the whole table
        return
    if path[:1] == ("fields",) and len(path) > 1:
        path, placeholder = path[:2], {"path": "-", "unit": "s"} if path[1] == "time" else "-"
        table["fields"] = table["fields"] | {path[1]: placeholder}
        return
    if path[:1] == ("groupings",) and len(path) > 1 and isinstance(table["groupings"], list):
        table["groupings"][int(path[1])] = "caller"  # the others of the list are checked by other tables
        return
    for name in path[:-1]:
        if not isinstance(table.get(name), dict):  # an element of a list: remove the whole list
            path = path[: path.index(name) + 1]
            break
        table = table[name]
    if path in PLACEHOLDERS:
        table[path[-1]] = PLACEHOLDERS[path]
    else:
        table.pop(path[-1], None)
