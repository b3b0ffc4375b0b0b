"""Series at one moment, for tables of cases about the numbers of rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from analyzer.judging.circumstances import Circumstances
from analyzer.judging.kinds import policy_kind
from analyzer.judging.rolling import Slot
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.policies import Policy
from analyzer.plan.windows import ALWAYS

NOW_S = 1_800_000_000  # the first second of an hour, so of a slot of each width


def at_s(second: float) -> datetime:
    """Returns a moment, in seconds from now on."""
    return datetime.fromtimestamp(NOW_S + second, UTC)


def now(**known: Any) -> Circumstances:
    return Circumstances(at_s(0), **known)


def slots(counts: Mapping[int, int]) -> Sequence[Slot]:
    """Returns slots by their starts, in seconds from now on."""
    return tuple(Slot(NOW_S + start_s, value) for start_s, value in sorted(counts.items()))


def series(policy: Policy, counts: Mapping[int, int], *, key: str = "acme", **known: Any) -> Standing:
    """Returns the rolling sum of a policy with these slots."""
    resource = "/export" if policy.per.endswith("+resource") else ""
    total = TotalKey(policy_kind(policy).judged_sum(policy), key, resource, ALWAYS)
    return Standing(total, sum(counts.values()), slots(counts), **known)
