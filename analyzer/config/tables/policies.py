"""`[[policies]]`: limits of a meter in a window, and what their locks do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.actions import Action, LockAction
from analyzer.config.values import Name, Zone, integer_between, one_of
from analyzer.core.counting.groupings import SHOWN
from analyzer.core.judging.kinds import KINDS
from analyzer.core.judging.policies import Policy, Quota
from analyzer.core.judging.windows import Calendar, CalendarPeriod

LIMIT_MAX = 1 << 62  # totals are 64-bit integers, and a flush adds to them before it compares
# Groupings whose sums are judged; the others are only counted yet.
JudgedGrouping = Literal["caller", "caller+resource"]
if TYPE_CHECKING:
    PolicyKind = str
else:
    PolicyKind = Literal[tuple(KINDS)]
OnStale = Literal["keep", "allow"]


class WindowTable(ConfigTable):
    per: Annotated[CalendarPeriod, one_of(CalendarPeriod)]
    zone: Zone = "UTC"


class PolicyTable(ConfigTable):
    """A quota: at most `limit` of a meter for each caller in each window."""

    name: Name
    kind: Annotated[PolicyKind, one_of(PolicyKind, planned=("share", "surge"))] = "quota"
    meter: Name = "requests"
    per: Annotated[JudgedGrouping, one_of(JudgedGrouping, planned=SHOWN)] = "caller"
    limit: Annotated[int, integer_between(1, LIMIT_MAX)]
    window: WindowTable
    action: Action = LockAction()
    status: Annotated[int, integer_between(400, 599)] = 429
    on_stale: Annotated[OnStale, one_of(OnStale)] = "keep"

    def policy(self) -> Policy:
        """Returns the policy that is stored and judged; for now every kind is a quota."""
        return Quota(
            name=self.name,
            limit=self.limit,
            window=Calendar(self.window.per, self.window.zone),
            meter=self.meter,
            per=self.per,
            action=self.action.does,
            status=self.action.status or self.status,
            on_stale=self.on_stale,
            slow=self.action.slow,
        )
