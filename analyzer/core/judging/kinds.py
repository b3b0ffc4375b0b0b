"""The kinds of policy.

A new kind is a class in `policies`, a module with its functions, an entry here, a table of the configuration,
documentation and tests. All code that judges, stores or explains policies reads this table.
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
    """One kind of policy. Each function takes a policy of this kind first."""

    policy: type[Any]  # the class that the plan stores
    sum_of: Callable[[Any], Sum]
    thresholds: Callable[[Any], Sequence[int]]
    lock_key: Callable[[Any, TotalKey], LockKey]
    wanted_lock: Callable[[Any, Standing, datetime], Lock | None]
    explain: Callable[[Any, int], str]
    describe: Callable[[Any], str]


KINDS: Mapping[str, Kind] = {
    Quota.kind: Kind(
        policy=Quota,
        sum_of=quota.sum_of,
        thresholds=quota.thresholds,
        lock_key=quota.lock_key,
        wanted_lock=quota.wanted_lock,
        explain=quota.explain,
        describe=quota.describe,
    ),
}


def kind_of(policy: Policy) -> Kind:
    return KINDS[policy.kind]
