"""The kinds of policy.

A new kind is a class in `policies`, a module with its functions, an entry here, a table of the configuration
with its method `policy`, documentation and tests. All other code that checks, stores, judges or explains
policies reads this table.

A kind is judged by one total at a time: a kind that compares windows or callers needs a further function
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from analyzer.core.judging import quota
from analyzer.core.judging.policies import Policy, Quota
from analyzer.core.judging.totals import Standing, Sum, TotalKey
from gatekeeper.model import Lock, LockKey


class Kind(NamedTuple):
    """One kind of policy. Each function takes a policy of this kind first.

    Attributes:
        policy: The class that the plan stores.
        sum_of: Returns the sum that the policy judges.
        shortest_window_s: Returns the length of the policy's shortest window, in seconds.
        thresholds: Returns the values of the total at which the policy must be judged.
        lock_key: Returns the key of the lock on a series.
        wanted_lock: Returns the lock that a series must have by its total, or None.
        explain: Returns a sentence about a value, for the caller that is denied.
        describe: Returns the policy as a phrase.
    """

    policy: type[Any]
    sum_of: Callable[[Any], Sum]
    shortest_window_s: Callable[[Any], int]
    thresholds: Callable[[Any], Sequence[int]]
    lock_key: Callable[[Any, TotalKey], LockKey]
    wanted_lock: Callable[[Any, Standing, datetime], Lock | None]
    explain: Callable[[Any, int], str]
    describe: Callable[[Any], str]


KINDS: Mapping[str, Kind] = {
    Quota.kind: Kind(
        policy=Quota,
        sum_of=quota.sum_of,
        shortest_window_s=quota.shortest_window_s,
        thresholds=quota.thresholds,
        lock_key=quota.lock_key,
        wanted_lock=quota.wanted_lock,
        explain=quota.explain,
        describe=quota.describe,
    ),
}


def kind_of(policy: Policy) -> Kind:
    return KINDS[policy.kind]
