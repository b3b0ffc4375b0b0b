"""Faults of values under validation, with their cures: as errors of pydantic, which have a place."""

from __future__ import annotations

import json
from typing import NoReturn

from pydantic_core import PydanticCustomError

QUOTED_MAX = 60  # characters of a faulty value that a message repeats


def raise_fault(fault: str, cure: str) -> NoReturn:
    """Reports a fault of the value under validation: what is wrong, and what to write instead."""
    # As context, not as template: both texts may hold braces.
    raise PydanticCustomError("refused", "{what}", {"what": fault, "cure": cure})


def quote(value: object) -> str:
    """`value` as a message may repeat it: JSON on one line, bounded, without control characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= QUOTED_MAX else text[: QUOTED_MAX - 3] + "..."
