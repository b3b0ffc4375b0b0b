"""What is still readable of a faulty table, so that its other faults are found in the same go."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)

# In place of what cannot be left out. Nothing is ever counted or judged by these: a faulty
# configuration is refused whole, after the rest of it was looked at.
STAND_IN: dict[tuple[str, ...], object] = {
    ("name",): "-",
    ("limit",): 1,
    ("window",): {"per": "day"},
    ("window", "per"): "day",
}


def salvage(model: type[Model], raw: object) -> Model | None:
    """`raw` as a table, without what is wrong in it; None when nothing can be made of it."""
    if not isinstance(raw, dict):
        return None
    mended = copy.deepcopy(raw)
    try:
        return model.model_validate(mended)
    except ValidationError as faulty:
        for error in faulty.errors(include_url=False, include_input=False):
            _mend(mended, error["loc"])
    try:
        return model.model_validate(mended)
    except ValidationError:
        return None


def _mend(table: dict[str, Any], at: tuple[str | int, ...]) -> None:
    path = tuple(str(part) for part in at)
    if path[:1] == ("fields",) and len(path) > 1:
        path, stand_in = path[:2], {"path": "-", "unit": "s"} if path[1] == "time" else "-"
        table["fields"] = table["fields"] | {path[1]: stand_in}
        return
    for name in path[:-1]:
        if not isinstance(table.get(name), dict):  # an element of a list: the list goes
            path = path[: path.index(name) + 1]
            break
        table = table[name]
    if path in STAND_IN:
        table[path[-1]] = STAND_IN[path]
    else:
        table.pop(path[-1], None)
