"""Operators: the name and the reason that a change is made under."""

from __future__ import annotations

from typing import NamedTuple


class By(NamedTuple):
    """An operator's act.

    Attributes:
        who: The name for the audit log.
        why: The reason; "": none was given.
        is_shown_only: Whether it is only shown what would change.
    """

    who: str
    why: str
    is_shown_only: bool = False
