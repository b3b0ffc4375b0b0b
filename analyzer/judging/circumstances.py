"""The circumstances of a judgement, besides totals and locks; and the answer that it has to wait."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol

from analyzer.judging.earned_notices import LastNotice, NoticeKey
from analyzer.judging.totals import TotalKey
from analyzer.plan.policies import Policy
from gatekeeper.model import Lock, LockKey


class Hold(NamedTuple):
    """Since when a series has been over the mark of a policy that waits before it locks."""

    since_s: float
    seen_s: float  # when it was last found over the mark


# The series that explain why a whole has more load than its capacity.
Blamed = frozenset[TotalKey]


class OwnPolicies(Protocol):
    """The policies as they apply to each series."""

    def policy_for(self, policy: Policy, key: str, resource: str = "") -> Policy | None:
        """Returns the policy with the limit of the series `key`; None if that is exempt."""


class Circumstances(NamedTuple):
    """The knowledge at the moment of a judgement."""

    now: datetime  # by the database's clock
    behind_s: float = 0.0  # age of the oldest record that is not counted yet, as far as the judge knows
    # Locks of each key that have ended, and that a policy whose durations escalate has not forgotten.
    offences: Mapping[LockKey, int] = MappingProxyType({})
    limits: OwnPolicies | None = None  # None: every series has the limits that the policies state
    # Whether the warden judges, which compares a series with others. A flush only notes that it must be done.
    is_warden: bool = False
    holds: Mapping[LockKey, Hold] = MappingProxyType({})
    # The notices that were raised before, of policies whose judgement depends on them: see `notice_key`.
    notices: Mapping[NoticeKey, LastNotice] = MappingProxyType({})
    # Until when series get no lock by a policy, because an operator has cleared one.
    held_off: Mapping[LockKey, float] = MappingProxyType({})
    # The wholes that have too much, by policy and resource; only those that the warden judges.
    overloads: Mapping[tuple[str, str], Blamed] = MappingProxyType({})

    @property
    def now_s(self) -> int:
        return int(self.now.timestamp())


class Needs(NamedTuple):
    """The facts that the judgement of a policy depends on, besides totals, locks and the time."""

    ended_locks_s: int = 0  # how long ended locks of the series are remembered; 0: not needed
    notices: tuple[int, ...] = ()  # thresholds, of which the last notice must be known
    addresses: bool = False  # of a network: what each of its addresses has
    usual: bool = False  # the load that the series usually has


NOTHING_ELSE = Needs()


class Wait(NamedTuple):
    """A total that must be judged again at this time, grown or not, and what holds until then."""

    until_s: float
    is_behind: bool = False  # it cannot be judged before a backlog is counted
    over_since_s: float | None = None  # since when it is over the policy's mark, and not locked yet
    lock: Lock | None = None  # that the series must have now
    clears: bool = False  # the series must have no lock now
