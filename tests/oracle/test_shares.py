"""Stories of a caller among others: it is locked by its share when a slow second judgement says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from analyzer.judging.circumstances import Circumstances, Hold
from analyzer.judging.judge import judge, lapsed
from analyzer.judging.kinds import compared
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.rolling import Slot
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import LoadShare
from analyzer.plan.windows import ALWAYS, Rolling
from gatekeeper.model import Clear, Lock, LockKey
from tests.oracle.compared_stories import changed, patched
from tests.support.depth import deeper

POLICY = LoadShare(
    "neighbour", 500_000, 12, Rolling(60), per="caller+resource", hold_s=20, release=250_000, action="slow"
)
SLOT_S, BEGIN_S = POLICY.window.slot_s, 1_800_000_000
assert SLOT_S == 5


class Step(NamedTuple):
    """Requests that are counted some seconds later, before the warden looks."""

    later_s: int
    own: int
    others: int
    behind_s: float = 0.0


@dataclass
class SeriesInSql:
    """A series as SQL keeps it: total, slots, postponed judgement, hold and lock; judged by the product."""

    plan: Plan
    used: int = 0
    next: int = POLICY.floor
    own: Counter[int] = field(default_factory=Counter)
    whole: Counter[int] = field(default_factory=Counter)
    is_postponed: bool = False
    holds: dict[LockKey, Hold] = field(default_factory=dict)
    locks: dict[LockKey, Lock] = field(default_factory=dict)

    def flush(self, now_s: int, own: int, others: int, behind_s: float) -> None:
        slot_s = now_s - now_s % SLOT_S
        self.own[slot_s] += own
        self.whole[slot_s] += own + others
        self.used += own
        if own and self.used >= self.next:
            self.judge(now_s, behind_s, is_warden=False)

    def look(self, now_s: int, behind_s: float) -> None:
        for change in lapsed(self.locks.values(), instant(now_s)):
            del self.locks[change.at]
        if self.is_postponed:
            self.judge(now_s, behind_s, is_warden=True)

    def judge(self, now_s: int, behind_s: float, *, is_warden: bool) -> None:
        [policy] = self.plan.policies
        total = TotalKey(compared.judged_sum(policy), "api_key:noisy", "/v1/export", ALWAYS)
        own, whole = ([Slot(*item) for item in sorted(slots.items())] for slots in (self.own, self.whole))
        at = Circumstances(instant(now_s), behind_s, is_warden=is_warden, holds=self.holds)
        standing = Standing(total, self.used, own, whole if is_warden else ())
        judged = judge(self.plan, [standing], self.locks, at)
        self.next = plan_sums(self.plan).next_judgement(standing, now_s)
        self.is_postponed = total in judged.waiting
        if is_warden:
            self.holds = dict(judged.holds)
        else:
            assert not judged.changes, "a flush compares nothing"
        for change in judged.changes:
            if isinstance(change, Clear):
                del self.locks[change.at]
            else:
                self.locks[change.at] = change.lock


def instant(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def locked_by_product(steps: Sequence[Step], policy: LoadShare = POLICY) -> list[bool]:
    """Whether the series is locked after each look."""
    series, now_s, found = SeriesInSql(make_plan([], [], [policy])), BEGIN_S, []
    for step in steps:
        now_s += step.later_s
        series.flush(now_s, step.own, step.others, step.behind_s)
        series.look(now_s, step.behind_s)
        found.append(bool(series.locks))
    return found


def locked_by_hand(steps: Sequence[Step]) -> list[bool]:
    """Returns whether the series must be locked after each look; adds all up again each time."""
    found: list[bool] = []
    counted: list[tuple[int, int, int]] = []
    now_s, until_s = BEGIN_S, 0
    over: list[int] = []  # looks in a row that found too much
    for later_s, own, others, behind_s in steps:
        now_s += later_s
        counted.append((now_s // SLOT_S * SLOT_S, own, others))
        mine = sum(one for slot_s, one, _ in counted if now_s - 65 < slot_s)
        all_ = sum(one + other for slot_s, one, other in counted if now_s - 65 < slot_s)
        is_locked = until_s > now_s
        if behind_s <= 5:
            if is_locked:
                is_locked = mine > 0 and mine / all_ >= 0.25
                until_s = now_s + 60 if is_locked and until_s - now_s <= 30 else until_s if is_locked else 0
            elif mine >= 12 and mine / all_ > 0.5:
                over = [*(over if over and now_s - over[-1] <= 30 else []), now_s]
                is_locked = now_s - over[0] >= 20
                until_s = now_s + 60 if is_locked else 0
            else:
                over = []
            over = [] if is_locked else over
        found.append(is_locked)
    return found


steps = st.builds(
    Step,
    st.sampled_from([1, 1, 1, 5, 11, 19, 20, 29, 30, 31, 45, 70]),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.0, 0.0, 5.0, 5.1, 400.0]),
)
NOISY = [Step(10, 9, 2)] * 4


@settings(max_examples=deeper(130))
@given(st.lists(steps, min_size=1, max_size=40))
@example(NOISY)
@example([*NOISY, *[Step(10, 4, 14)] * 12])  # between the two marks it stays locked
@example([*NOISY, *[Step(10, 1, 14)] * 12, *NOISY])
@example([Step(10, 9, 2), Step(10, 9, 2), Step(31, 9, 2), Step(10, 9, 2), Step(10, 9, 2)])
@example([*NOISY, *[Step(10, 9, 2, 400.0)] * 9, Step(10, 9, 2)])
def test_a_series_is_locked_when_a_slow_judgement_says_so(story: list[Step]) -> None:
    expected = locked_by_hand(story)
    assert locked_by_product(story) == expected
    event(f"{sum(one != other for one, other in zip(expected, [False, *expected], strict=False))} changes")


def stories(seed: int) -> list[Step]:
    """Returns a story in which the caller is noisy and quiet for a while at a time."""
    random = Random(seed)
    found: list[Step] = []
    for _ in range(8):
        own, others = random.choice([(9, 2), (9, 2), (4, 9), (1, 12), (0, 3)])
        behind_s = random.choice([0.0, 0.0, 0.0, 60.0])
        found += [
            Step(random.choice([1, 7, 10, 35]), own, others, behind_s) for _ in range(random.randint(1, 9))
        ]
    return found


MUTATIONS = {
    "nothing": changed(POLICY),
    "hold ignored": changed(POLICY, hold_s=0),
    "release at the limit": changed(POLICY, release=POLICY.limit),
    "never released": changed(POLICY, release=0),
    "floor ignored": changed(POLICY, floor=1),
    "backlog check out": patched(POLICY, compared, "behind_max_s", lambda _policy: inf),
    "gaps between looks ignored": patched(POLICY, compared, "GAP_S", inf),
    "not extended": patched(POLICY, compared, "EXTEND_S", 0),
    "lock without end": patched(POLICY, compared, "LOCK_S", 10_000),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_of_the_judgement_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = MUTATIONS[name](monkeypatch)
    is_found = any(
        locked_by_product(story, policy) != locked_by_hand(story) for story in map(stories, range(200))
    )
    assert is_found == (name != "nothing")
