"""Limits that change while they apply, and states that outlive a restart."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gatekeeper.limits import (
    AllOf,
    ByPlan,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Paced,
    Sharded,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
)
from tests.limits.memory_kinds import KINDS, Kind
from tests.limits.oracles import LogOracle, StepClock, worst_in_any
from tests.support.depth import deeper

SECOND_NS = 1_000_000_000
every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)
modest = settings(max_examples=deeper(15), deadline=None)
plays = st.lists(st.tuples(st.integers(0, 2), st.fractions(0, 1, max_denominator=7)), max_size=25)


def play(limiter, clock: StepClock, period_ns: int, steps) -> list[int]:
    admitted = []
    for cost, periods_pass in steps:
        clock.now_ns += int(periods_pass * period_ns)
        admitted += [clock.now_ns] * (cost * limiter.allow("a", cost))
    return admitted


@pytest.mark.parametrize(
    ("before", "after", "free", "next_s"),
    [
        ((1, 10), (100, 10), 0, 0.01),
        ((100, 100), (1, 100), 0, 1.0),
        ((10, 100), (10, 10), 0, 0.1),
        ((1, 10), (10, 100), 90, 0.0),
    ],
    ids=["the rate rises", "the rate falls", "the burst shrinks", "both rise"],
)
def test_a_spent_bucket_whose_limit_changes_stays_exactly_as_spent(before, after, free, next_s):
    """Keeping the time instead of the permits would result in 9.91 s, 99 free, 9.1 s and 0 free."""
    bucket = TokenBucket(before[0], 1, before[1], clock=StepClock())
    while bucket.allow():
        pass
    bucket.configure(limit=after[0], burst=after[1])
    decision = bucket.peek()
    assert (decision.remaining, decision.retry_after) == (free, next_s)


@modest
@given(st.integers(1, 6), st.integers(1, 6), plays, plays)
def test_a_log_whose_limit_changes_keeps_the_newest_admissions(before, after, first, then):
    clock = StepClock()
    log, oracle = SlidingLog(before, 10, clock=clock), LogOracle(before, 10 * SECOND_NS)
    oracle.admitted = play(log, clock, 10 * SECOND_NS, first)
    log.configure(limit=after)
    oracle.limit, oracle.admitted = after, oracle.admitted[-after:]
    for cost, periods_pass in then:
        clock.now_ns += int(periods_pass * 10 * SECOND_NS)
        assert log.allow("a", cost) == oracle.allow(clock.now_ns, cost)


@every_kind
@modest
@given(st.integers(1, 6), plays, plays)
def test_configuring_the_present_limit_changes_nothing(kind: Kind, limit, first, then):
    clock = StepClock()
    plain, configured = kind.make(limit, 1000, clock), kind.make(limit, 1000, clock)
    play(plain, clock, 1000, first)
    clock.now_ns = 0
    play(configured, clock, 1000, first)
    configured.configure(limit=limit, period=1e-6)
    assert configured.peek("a") == plain.peek("a")
    for cost, periods_pass in then:
        clock.now_ns += int(periods_pass * 1000)
        assert configured.check("a", cost) == plain.check("a", cost)


@every_kind
@modest
@given(st.integers(2, 6), plays, st.integers(1, 6), st.integers(3, 30), plays)
# Windows that are aligned to the old period, and to the new one.
@example(2, [(1, Fraction(1))], 2, 22, [(1, Fraction(5, 7)), (2, Fraction(4, 7)), (2, Fraction(3, 7))])
def test_after_a_change_the_new_limit_holds(kind: Kind, limit, first, new_limit, new_period_ns, then):
    clock = StepClock()
    limiter = kind.make(limit, 12, clock)
    play(limiter, clock, 12, first)
    if isinstance(limiter, Paced):
        new_period_ns += 12
    if kind.name == "TokenBucket, burst 2":
        new_limit = max(new_limit, 2)
    limiter.configure(limit=new_limit, period=new_period_ns / 1e9)
    admitted = play(limiter, clock, new_period_ns, then)
    assert limiter.peek("a").limit == limiter._rule.decision_limit
    assert worst_in_any(admitted, new_period_ns) <= (new_limit if kind.exact else 2 * new_limit)


@pytest.mark.parametrize("period", [7, 20, 30, 40, 59, 61, 100, 180])
def test_an_aligned_window_that_is_not_over_counts_under_another_period(period):
    clock = StepClock(165 * SECOND_NS)
    window = FixedWindow(10, 60, aligned=True, clock=clock)
    assert sum(window.allow() for _ in range(12)) == 10
    window.configure(period=period)
    assert not window.allow()
    assert window.peek().retry_after == period - 165 % period


def test_windows_that_were_not_aligned_are_aligned_when_they_are_loaded():
    clock = StepClock(165 * SECOND_NS)
    before, after = (FixedWindow(10, 60, aligned=aligned, clock=clock) for aligned in (False, True))
    assert sum(before.allow() for _ in range(12)) == 10
    after.load(before.dump())
    assert not after.allow()
    assert after.peek().retry_after == 15


def test_a_strict_bucket_stays_strict_and_a_given_burst_stays():
    bucket = TokenBucket.strict(10, 1, clock=StepClock())
    bucket.configure(limit=20)
    assert sum(bucket.allow() for _ in range(30)) == 10
    fixed = TokenBucket(10, 1, burst=3, clock=StepClock())
    fixed.configure(limit=20)
    assert sum(fixed.allow() for _ in range(30)) == 3


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"limit": -1}, {"period": 0}, {"burst": 3}])
def test_an_invalid_change_raises_and_nothing_changes(arguments):
    log = SlidingLog(5, 1, clock=StepClock())
    with pytest.raises(ValueError, match=next(iter(arguments))):
        log.configure(**arguments)
    assert log.peek().limit == 5


def test_a_key_is_kept_for_a_longer_period_that_is_configured_later():
    clock = StepClock()
    log = SlidingLog(1, 1, clock=clock)
    log.allow("a")
    clock.now_ns += SECOND_NS // 2
    log.configure(period=100)
    for _ in range(99):
        clock.now_ns += SECOND_NS
        log.allow("another")
        assert not log.allow("a")


@every_kind
@modest
@given(st.integers(1, 6), plays, plays, st.integers(0, 3000))
def test_a_loaded_limiter_decides_as_the_saved_one_would(kind: Kind, limit, first, then, downtime_ns):
    """By the same clock, as if there had been no restart."""
    clock = StepClock()
    before = kind.make(limit, 1000, clock)
    play(before, clock, 1000, first)
    before.allow(("b", 7))
    saved = json.loads(json.dumps(before.dump(wall_ns=lambda: clock.now_ns)))
    clock.now_ns += downtime_ns
    after = kind.make(limit, 1000, clock)
    after.load(saved, wall_ns=lambda: clock.now_ns)
    assert after.peek(("b", 7)) == before.peek(("b", 7))
    for cost, periods_pass in then:
        clock.now_ns += int(periods_pass * 1000)
        assert after.check("a", cost) == before.check("a", cost)


@every_kind
@modest
@given(st.integers(1, 6), plays, st.integers(0, 40), st.integers(0, 10**6))
@example(1, [(1, Fraction(0))], 2, 0)  # another clock, by which slices of Paced would have other quotas
@example(1, [(1, Fraction(0)), (0, Fraction(2, 7)), (0, Fraction(2, 7))], 0, 0)  # and the key was forgotten
def test_after_a_reboot_the_wall_clock_measures_the_time_in_between(
    kind: Kind, limit, first, down_s, boot_ns
):
    """The monotonic clock started again; the limit holds across the reboot, in real time."""
    period_ns = 10 * SECOND_NS
    clock = StepClock(50_000 * SECOND_NS)
    before = kind.make(limit, period_ns, clock)
    admitted = play(before, clock, period_ns, first)
    saved = before.dump(wall_ns=lambda: 7 * SECOND_NS)
    down_ns = down_s * SECOND_NS
    booted = StepClock(boot_ns)
    after = kind.make(limit, period_ns, booted)
    after.load(saved, wall_ns=lambda: 7 * SECOND_NS + down_ns)
    real_ns = clock.now_ns + down_ns
    for _ in range(30):
        admitted += [real_ns] * after.allow("a")
        booted.now_ns += SECOND_NS
        real_ns += SECOND_NS
    assert worst_in_any(admitted, period_ns) <= (limit if kind.exact else 2 * limit)


LATE_NS = 50_000 * SECOND_NS  # far from a clock that has just started
lives = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 10**6), plays), max_size=3)


def reboot(kind: Kind, limiter, clock: StepClock, real: StepClock, down_ns: int, boot_ns: int):
    """Returns the limiter after a reboot that took `down_ns`, and its clock, which started again."""
    saved = limiter.dump(wall_ns=lambda: real.now_ns)
    real.now_ns += down_ns
    booted = StepClock(boot_ns if clock.now_ns >= LATE_NS else LATE_NS + boot_ns)
    after = kind.make(limiter._rule.limit, 1000, booted)
    after.load(saved, wall_ns=lambda: real.now_ns)
    return after, booted


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name not in ("SlidingCounter", "FixedWindow, aligned")], ids=repr
)
@modest
@given(st.integers(1, 6), lives)
def test_after_reboots_a_limiter_decides_as_if_its_clock_had_never_stopped(kind: Kind, limit, lives):
    """Except limiters whose windows begin at whole multiples of the period by their clock."""
    real, clock = StepClock(LATE_NS), StepClock(LATE_NS)
    unbroken, limiter = kind.make(limit, 1000, real), kind.make(limit, 1000, clock)
    for down_ns, boot_ns, steps in lives:
        for cost, periods_pass in steps:
            real.now_ns += int(periods_pass * 1000)
            clock.now_ns += int(periods_pass * 1000)
            assert limiter.check("a", cost) == unbroken.check("a", cost)
            assert limiter.allow("a", 1) == unbroken.allow("a", 1)
        limiter, clock = reboot(kind, limiter, clock, real, down_ns, boot_ns)
        assert limiter.peek("a") == unbroken.peek("a")


@every_kind
@modest
@given(st.integers(1, 6), lives)
# Windows that are aligned to a clock, and to the one that started again.
@example(1, [(0, 446, [(1, Fraction(6, 7))]), (0, 0, [(1, Fraction(3, 7)), (1, Fraction(4, 7))])])
def test_no_period_has_more_admissions_because_of_reboots_in_it(kind: Kind, limit, lives):
    real, clock = StepClock(LATE_NS), StepClock(LATE_NS)
    limiter, admitted = kind.make(limit, 1000, clock), []
    for down_ns, boot_ns, steps in lives:
        real_ns, clock_ns = real.now_ns, clock.now_ns
        admitted += [real_ns + at_ns - clock_ns for at_ns in play(limiter, clock, 1000, steps)]
        real.now_ns += clock.now_ns - clock_ns
        limiter, clock = reboot(kind, limiter, clock, real, down_ns, boot_ns)
    assert worst_in_any(admitted, 1000) <= (limit if kind.exact else 2 * limit)


def test_a_wall_clock_set_back_counts_as_no_time():
    clock = StepClock(10**15)
    log = SlidingLog(1, 10, clock=clock)
    log.allow()
    saved = log.dump(wall_ns=lambda: 10**18)
    after = SlidingLog(1, 10, clock=StepClock())
    after.load(saved, wall_ns=lambda: 5)
    assert after.peek().retry_after == 10.0


def test_loading_what_another_limiter_saved_raises():
    saved = TokenBucket(1, 1).dump()
    with pytest.raises(ValueError, match="saved: expected SlidingLog in format 1, got"):
        SlidingLog(1, 1).load(saved)
    with pytest.raises(ValueError, match="saved"):
        TokenBucket(1, 1).load({})


def test_a_saved_state_counts_under_the_limit_of_the_loading_limiter():
    clock = StepClock()
    bucket = TokenBucket(10, 1, clock=clock)
    bucket.allow(cost=10)
    larger = TokenBucket(30, 1, clock=clock)
    larger.load(bucket.dump())
    assert larger.peek().remaining == 20


def test_a_reservation_survives_a_restart():
    clock = StepClock()
    queue = LeakyQueue(1, 10, clock=clock)
    delays = [queue.reserve().delay for _ in range(4)]
    after = LeakyQueue(1, 10, clock=clock)
    after.load(queue.dump())
    assert [*delays, after.reserve().delay] == [0.0, 10.0, 20.0, 30.0, 40.0]
    clock.now_ns = 39 * SECOND_NS
    for _ in range(3):
        after.allow("rotates the generations")
    assert Fraction(after.peek().retry_after) == 11


SAVED = json.loads((Path(__file__).parent / "saved_states.json").read_text())
MAKE = {
    "SlidingLog": lambda clock: SlidingLog(5, 60, clock=clock),
    "SlidingLog, compact": lambda clock: SlidingLog(5, 60, compact=True, clock=clock),
    "TokenBucket": lambda clock: TokenBucket(7, 60, 4, clock=clock),
    "TokenBucket.strict": lambda clock: TokenBucket.strict(7, 60, clock=clock),
    "LeakyBucket": lambda clock: LeakyBucket(5, 60, clock=clock),
    "FixedWindow": lambda clock: FixedWindow(5, 60, clock=clock),
    "FixedWindow, aligned": lambda clock: FixedWindow(5, 60, aligned=True, clock=clock),
    "SlidingCounter": lambda clock: SlidingCounter(5, 60, clock=clock),
    "Paced": lambda clock: Paced(30, 60, clock=clock),
    "LeakyQueue": lambda clock: LeakyQueue(5, 60, clock=clock),
    "AllOf": lambda clock: AllOf(SlidingLog(5, 60, clock=clock), TokenBucket(9, 60, clock=clock)),
    "ByPlan": lambda clock: ByPlan({"free": SlidingLog(5, 60, clock=clock)}, "free"),
    "Sharded": lambda clock: Sharded(lambda: TokenBucket(5, 60, clock=clock), shards=2),
}


def moved_to_now(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns the saved state as if it had been saved just now by the wall clock."""
    if "wall_ns" in saved:
        return {**saved, "wall_ns": time.time_ns()}
    if "parts" in saved:
        return {**saved, "parts": [moved_to_now(part) for part in saved["parts"]]}
    return {**saved, "plans": {plan: moved_to_now(part) for plan, part in saved["plans"].items()}}


@pytest.mark.parametrize("name", MAKE)
def test_states_that_an_older_version_saved_can_be_loaded(name: str):
    """saved_states.json was written before limiters shared a base class, with three seconds until `peek`."""
    clock = StepClock(50_028_000_000_004)
    limiter = MAKE[name](clock)
    limiter.load(moved_to_now(SAVED[name]["saved"]))
    clock.move(3 * SECOND_NS)
    for text, expected in SAVED[name]["peek"].items():
        key = tuple(json.loads(text)) if text.startswith("[") else text
        seen = limiter.peek(key)
        assert [seen.allowed, seen.limit, seen.remaining, seen.retry_after, seen.reset_after] == expected
    assert {*SAVED} == {*MAKE}
