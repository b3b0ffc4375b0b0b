"""Simulations of policies against what the same policies did when the records came."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from analyzer.forecast.simulation import policy_simulation
from analyzer.forecast.simulation.policy_locks import PolicyLocks
from analyzer.forecast.simulation.policy_simulation import NotSimulated, known_locks, simulate
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Grace, LoadShare, Policy, Quota, RollingQuota, Surge
from analyzer.plan.windows import Calendar, Rolling
from tests.support.depth import deeper
from tests.support.live_judgement import LiveJudgement, Request, live_judgement

BEGIN_S = 1_893_974_400  # 2030-01-07T00:00:00Z: after the templates of databases were made
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
CALLERS = ("api_key:acme", "user:ann")


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Policies whose windows are made of whole minutes, so that a simulation is exact."""
    limit = draw(st.integers(2, 40))
    per = draw(st.sampled_from(["caller", "caller+resource"]))
    match draw(st.sampled_from(["quota", "rolling", "surge"])):
        case "quota":
            calendar = Calendar(
                draw(st.sampled_from(["minute", "hour", "day", "month"])),
                draw(st.sampled_from(["UTC", "Asia/Kolkata", "America/St_Johns"])),
            )
            grace = draw(
                st.sampled_from([Grace(), Grace(thousandths=500), Grace(amount=3), Grace(time_s=900)])
            )
            return Quota("one", limit, calendar, per=per, grace=grace, notify=(500, 1_000))
        case "rolling":
            return RollingQuota(
                "one", limit, Rolling(draw(st.sampled_from([720, HOUR_S, 2 * HOUR_S]))), per=per
            )
        case _:
            lock_for_s = draw(st.sampled_from([(900,), (900, 1_800, 7_200)]))
            return Surge(
                "one", limit, Rolling(720), lock_for_s, draw(st.sampled_from([HOUR_S, DAY_S])), per=per
            )


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Requests of some hours, many at nearly the same time."""
    gaps_s = st.one_of(st.integers(0, 90), st.integers(0, 900), st.integers(0, 3 * HOUR_S))
    rows = draw(
        st.lists(
            st.tuples(gaps_s, st.sampled_from(CALLERS), st.integers(1, 15), st.sampled_from(("/a", "/b"))),
            min_size=1,
            max_size=30,
        )
    )
    at_s, found = BEGIN_S + draw(st.integers(0, DAY_S)), []
    for gap_s, caller, amount, resource in rows:
        at_s += gap_s
        found.append(Request(at_s, caller, amount, resource))
    return found


def counted(live: LiveJudgement, asked: Sequence[Request], *, has_gates: bool) -> None:
    """Counts requests; with gates, those of a caller with a lock are denied."""
    for request in asked:
        live.pass_to(request.at_s)
        live.count(request._replace(is_denied=has_gates and request.caller in live.locked()))
    live.pass_to(asked[-1].at_s + 2 * DAY_S)


def assert_equal_within_a_minute(simulated: PolicyLocks, live: PolicyLocks, *, is_exact_end: bool) -> None:
    assert simulated.series.keys() == live.series.keys()
    for at, one in simulated.series.items():
        other = live.series[at]
        shown = [(lock.began_s, lock.until_s) for lock in one.locks]
        assert len(shown) == len(other.locks), (shown, other.locks)
        for (began_s, until_s), lock in zip(shown, other.locks, strict=True):
            assert abs(lock.began_s - began_s) < MINUTE_S
            assert abs(until_s - lock.until_s) < (1 if is_exact_end else MINUTE_S)


@pytest.fixture(scope="module")
def new_url(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Returns the URL of a new database, for each example one."""
    folder, numbers = tmp_path_factory.mktemp("simulated"), count()

    def new_url() -> str:
        file = folder / f"{next(numbers)}.db"
        shutil.copyfile(sqlite_template, file)
        return f"sqlite:///{file}"

    return new_url


@settings(max_examples=deeper(20))
@given(policy=policies(), asked=requests(), has_gates=st.booleans(), stretch_days=st.sampled_from([1, 10]))
def test_a_simulation_of_the_policy_in_force_has_the_locks_that_it_had(
    new_url: Callable[[], str], policy: Any, asked: list[Request], has_gates: bool, stretch_days: int
) -> None:
    has_gates &= policy.per == "caller"
    with live_judgement(new_url(), make_plan([], [], [policy]), BEGIN_S - DAY_S) as live:
        counted(live, asked, has_gates=has_gates)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(policy_simulation, "STRETCH_S", stretch_days * DAY_S)
            simulation = simulate(live.engine, [policy], BEGIN_S - DAY_S)
            # As `gatelock policies simulate` asks where nothing was changed: the new policy is the old one.
            assert simulate(live.engine, [policy, policy], BEGIN_S - DAY_S) == simulation
        known = known_locks(live.engine, policy, BEGIN_S - DAY_S).locks
    found = simulation.of[policy]
    event(f"{policy.kind} with {min(found.locks, 4)} locks")
    assert_equal_within_a_minute(found, known, is_exact_end=not isinstance(policy, Surge))
    assert simulation.keys == len({request.caller for request in asked})
    assert simulation.requests == sum(request.amount for request in asked)


def test_a_share_is_refused_because_counts_have_no_order_within_a_minute(new_url: Callable[[], str]) -> None:
    share = LoadShare("busy", 400_000, 1_000, Rolling(HOUR_S), release=250_000, per="caller+resource")
    with (
        live_judgement(new_url(), make_plan([], [], [share]), BEGIN_S) as live,
        pytest.raises(NotSimulated, match="both grow within a minute"),
    ):
        simulate(live.engine, [share], BEGIN_S)
