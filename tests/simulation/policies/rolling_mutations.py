"""Mutations of the product that break a promise about rolling windows, distinct values or weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from analyzer.counting.records.reader import WeightColumn
from analyzer.judging import judge, kinds, plan_sums, rolling
from analyzer.judging.circumstances import Circumstances
from analyzer.judging.kinds import capacity, compared
from analyzer.judging.locks import lock_history
from analyzer.judging.sql import sql_judge, stored_notices, stored_values, usual_levels
from analyzer.judging.sql.activation import Activation
from analyzer.judging.totals import TotalKey
from analyzer.plan.policies import CapacityShare, LoadShare, RollingQuota, Surge
from tests.faults.mutations import Patch


class Changed(NamedTuple):
    """A judgement that is given something else."""

    kind: type[Any]
    policy: Callable[[Any], Any] = lambda policy: policy
    at: Callable[[Circumstances], Circumstances] = lambda at: at


def judged_otherwise(patch: Patch, changed: Changed) -> None:
    def kind_of(policy: Any) -> kinds.Kind:
        kind = kinds.policy_kind(policy)
        if not isinstance(policy, changed.kind):
            return kind
        return kind._replace(
            judge=lambda policy, standing, present, at: kind.judge(
                changed.policy(policy), standing, present, changed.at(at)
            )
        )

    patch.setattr(judge, "policy_kind", kind_of)


def hold_ignored(patch: Patch) -> None:
    """A share locks at the first look that finds it too high."""
    judged_otherwise(patch, Changed(LoadShare, lambda policy: replace(policy, hold_s=0)))


def release_ignored(patch: Patch) -> None:
    """A share keeps its lock, however low it falls."""
    judged_otherwise(patch, Changed(LoadShare, lambda policy: replace(policy, release=0)))


def release_at_the_limit(patch: Patch) -> None:
    """A share loses its lock as soon as it is below its limit."""
    judged_otherwise(patch, Changed(LoadShare, lambda policy: replace(policy, release=policy.limit)))


def surges_judged_behind(patch: Patch) -> None:
    """An analyzer that counts what happened long ago locks for it."""
    judged_otherwise(patch, Changed(Surge, at=lambda at: at._replace(behind_s=0.0)))


def shares_judged_behind(patch: Patch) -> None:
    """Shares are compared with a whole of which a part is not counted yet."""
    patch.setattr(compared, "behind_max_s", lambda _policy: inf)


def slots_never_read_again(patch: Patch) -> None:
    """A rolling sum is judged after it has grown by its whole limit, with no regard to its window."""
    patch.setattr(plan_sums, "growth_to", lambda _slots, _rolling, limit, _now_s: limit)


def windows_cut_short(patch: Patch) -> None:
    """A slot leaves the window when its first second does."""
    sums_at = rolling.sums_at

    def sums_of_later(slots: Any, window: Any, ends_s: Sequence[int]) -> list[int]:
        return [
            sums_at([slot for slot in slots if slot.start_s > end_s - window.period_s], window, [end_s])[0]
            for end_s in ends_s
        ]

    patch.setattr(rolling, "sums_at", sums_of_later)


def escalation_forgotten(patch: Patch) -> None:
    """Each lock of a surge is the first one."""
    patch.setattr(lock_history, "ended_locks", lambda *_, **__: {})


def addresses_not_compared(patch: Patch) -> None:
    """A network is locked for one of its addresses."""
    patch.setattr(sql_judge, "with_addresses", lambda _db, _plan, standings, *_: standings)


def values_counted_again(patch: Patch) -> None:
    """A value that a series has had before is a new one."""

    def all_of(_db: Any, _number: int, rows: Sequence[Any]) -> list[Any]:
        return list(rows)

    patch.setattr(stored_values, "unknown", all_of)


def values_not_kept(patch: Patch) -> None:
    """Distinct values are counted and not stored."""
    patch.setattr(stored_values, "in_parts", lambda *_: [])


def weights_ignored(patch: Patch) -> None:
    """A record is one request, its weight is ignored."""
    patch.setattr(WeightColumn, "read", lambda _self, _columns: [])


def growth_not_judged_after_leaps(patch: Patch) -> None:
    """A rolling sum that was judged by a clock ahead may grow by its limit before it is judged again."""
    patch.setattr(Activation, "_judge_growth", lambda *_: None)


def rolling_thresholds_fired_twice(patch: Patch) -> None:
    """A judgement does not know the last notice of a threshold, and raises another one."""
    last = stored_notices.last

    def last_of_windows(db: Any, keys: Sequence[Any]) -> Any:
        return last(db, [key for key in keys if key.window_s])

    patch.setattr(stored_notices, "last", last_of_windows)


def notices_never_end(patch: Patch) -> None:
    """A notice of a rolling window lasts, however low the sum falls."""
    patch.setattr(stored_notices, "_set_end", stored_notices._store)


def rolling_grace_ignored(patch: Patch) -> None:
    """A rolling quota locks at its limit."""
    judged_otherwise(patch, Changed(RollingQuota, lambda policy: replace(policy, grace=UNSET)))


def lightest_first(patch: Patch) -> None:
    """A resource above its capacity has the series locked that explain the least of it."""

    def lightest(loads: Mapping[TotalKey, int], excess: int) -> Iterator[TotalKey]:
        for total in sorted(loads, key=lambda total: (loads[total], total.key)):
            if excess <= 0:
                return
            excess -= loads[total]
            yield total

    patch.setattr(capacity, "smallest_set", lightest)


def all_to_blame(patch: Patch) -> None:
    """A resource above its capacity has all its series locked."""
    patch.setattr(capacity, "smallest_set", lambda loads, _excess: iter(loads))


def capacity_not_released(patch: Patch) -> None:
    """Locks of a capacity stay while their series send anything."""
    judged_otherwise(patch, Changed(CapacityShare, lambda policy: replace(policy, release=0)))


def usual_by_one_week(patch: Patch) -> None:
    """A caller of the second week is compared with the first."""
    patch.setattr(usual_levels, "WEEKS_MIN", 1)


def usual_by_days(patch: Patch) -> None:
    """The usual load is that of this hour on the days before."""
    patch.setattr(usual_levels, "WEEK_S", usual_levels.DAY_S)


ROLLING_MUTATIONS: Sequence[Callable[[Patch], None]] = (
    hold_ignored,
    release_ignored,
    release_at_the_limit,
    surges_judged_behind,
    shares_judged_behind,
    slots_never_read_again,
    windows_cut_short,
    escalation_forgotten,
    addresses_not_compared,
    values_counted_again,
    values_not_kept,
    weights_ignored,
    growth_not_judged_after_leaps,
    rolling_thresholds_fired_twice,
    notices_never_end,
    rolling_grace_ignored,
    lightest_first,
    all_to_blame,
    capacity_not_released,
    usual_by_one_week,
    usual_by_days,
)
