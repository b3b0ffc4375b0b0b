"""Policies as values: how much a series may use in a window, and what happens beyond it.

One class per kind.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import msgspec

from analyzer.core.judging.windows import Calendar
from gatekeeper.model import Rate

ActionName = Literal["deny", "slow", "tag"]


class Policy(Protocol):
    """The part that all kinds of policy share. A kind is a frozen Struct, because the plan stores it."""

    kind: ClassVar[str]

    @property
    def name(self) -> str: ...

    @property
    def per(self) -> str:
        """The grouping whose series are judged."""

    @property
    def meter(self) -> str: ...


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most `limit` of a meter per series and calendar window; beyond it, a lock until the window ends."""

    kind: ClassVar[str] = "quota"

    name: str
    limit: int
    window: Calendar
    meter: str = "requests"
    per: str = "caller"  # a grouping
    action: ActionName = "deny"
    status: int = 429
    on_stale: Literal["keep", "allow"] = "keep"
    slow: Rate | None = None  # admitted by each gate, where the action is "slow"
