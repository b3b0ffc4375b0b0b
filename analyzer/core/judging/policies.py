"""Policies as values: how much a series may use in a window, and what happens beyond it.

One class per kind.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import msgspec

from analyzer.core.counting.meter_units import Unit
from analyzer.core.judging.windows import Calendar
from gatekeeper.model import Rate

NO_UNIT = msgspec.UNSET  # of a meter of whole numbers
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

    @property
    def meter_unit(self) -> Unit | None:
        """The unit of the meter; None for whole numbers."""


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
    # What the meter adds up, for display. Absent from the stored plan for whole numbers: plans of earlier
    # versions stay equal to today's.
    unit: Unit | msgspec.UnsetType = NO_UNIT

    @property
    def meter_unit(self) -> Unit | None:
        """The unit of the meter; None for whole numbers."""
        return None if isinstance(self.unit, msgspec.UnsetType) else self.unit
