"""Random faults of a gate's source: no caller without a lock is denied, and none with a lock is allowed for
longer than the bounds of `tests/cuts/bound.py`. `make cuts` is the long form."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from gatekeeper.feed.poller import CEILING_S
from tests.cuts import real
from tests.cuts.bound import Period, SourceTiming, staleness, surely_known, youngest_possible
from tests.cuts.mutations import MUTATIONS
from tests.cuts.simulated import ON_STALE, Scenario, SimulatedRun
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed

SEED = 20_261_121
SHORT_S = 12.0

WORKING = SourceTiming(pace_s=0.4, answer_s=0.0, wait_s=0.0, fetch_s=6.0, stale_after_s=30.0)
RECOVERY_S = 6.0 + 1.1 * 15.0  # a fetch that times out, and the longest pause


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "gatekeeper")  # gates log each fault


@pytest.fixture
def template(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue("sqlite_template")
    return found


# -- the bounds ------------------------------------------------------------------------------------


def test_changes_must_be_known_up_to_the_last_moment_at_which_the_source_worked() -> None:
    #   0            100     130                                    (one pause, no answer time: 0.44 s)
    #   |   working   |  away |  working, but not yet for long enough
    timeline = [Period(0, 100, "all"), Period(100, 130, "none"), Period(130, inf, "all")]
    assert surely_known(timeline, WORKING, 0.0, 50.0) == pytest.approx((49.56, 49.56))
    assert surely_known(timeline, WORKING, 0.0, 120.0) == pytest.approx((99.56, 99.56))
    assert surely_known(timeline, WORKING, 0.0, 130.0 + RECOVERY_S - 0.01) == pytest.approx((99.56, 99.56))
    assert surely_known(timeline, WORKING, 0.0, 130.0 + RECOVERY_S) == pytest.approx(
        (130 + RECOVERY_S - 0.44,) * 2
    )
    assert surely_known(timeline, WORKING, 131.0, 130.0 + RECOVERY_S) == (-inf, -inf)


def test_a_long_poll_makes_the_view_older_and_delays_no_change() -> None:
    waiting = WORKING._replace(pace_s=0.0, wait_s=5.0)
    assert waiting.news_s == pytest.approx(0.055)
    assert waiting.confirmed_s == pytest.approx(5.055)
    assert WORKING._replace(stale_after_s=3.0).recovery_s == 6.0 + CEILING_S


def test_a_view_is_not_younger_than_the_last_request_that_could_be_answered() -> None:
    timeline = [Period(0, 10, "all"), Period(10, 20, "none"), Period(20, 25, "none"), Period(25, inf, "some")]
    assert [youngest_possible(timeline, now_s) for now_s in (5.0, 15.0, 24.0, 26.0)] == [
        5.0,
        10.0,
        10.0,
        26.0,
    ]
    assert youngest_possible([Period(0, inf, "none")], 5.0) == -inf


def test_a_view_may_be_fresh_or_stale_or_either() -> None:
    fresh, for_locks, stale = (False, False), (True, False), (True, True)
    assert staleness((95.0, 99.0), 0.0, 100.0, 30.0, 0.0) == [fresh]
    assert staleness((50.0, 60.0), 0.0, 100.0, 30.0, 0.0) == [stale]
    assert staleness((50.0, 80.0), 0.0, 100.0, 30.0, 0.0) == [fresh, stale]
    assert staleness((-inf, 60.0), 90.0, 100.0, 30.0, 0.0) == [for_locks]


# -- ten minutes of simulated time -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "on_stale"),
    [
        # Each source and each behaviour; every pair of them in `make deep`.
        pytest.param(
            *(source, on_stale),
            marks=[] if number == other else [pytest.mark.deep("another pair")],
        )
        for number, source in enumerate(("sql", "http", "file"))
        for other, on_stale in enumerate(ON_STALE)
    ],
)
def test_answers_stay_within_their_bounds_for_ten_minutes_of_faults(
    source: str, on_stale: str, tmp_path: Path
) -> None:
    counts = SimulatedRun(Scenario(SEED, source, on_stale), tmp_path, Path()).run()
    assert counts["is denied by a lock"] > 1_000
    assert counts["passes"] > 1_000
    assert counts["must know the latest changes"] > 100
    assert counts["is surely stale"] > 10
    assert (counts["is denied as stale"] > 10) == (on_stale == "deny")
    assert (counts["is denied by the limiter"] > 10) == (on_stale == "limiter")


@pytest.mark.parametrize("on_stale", ON_STALE)
def test_answers_stay_within_their_bounds_with_the_feed_in_a_database(
    on_stale: str, tmp_path: Path, template: Path
) -> None:
    counts = SimulatedRun(Scenario(SEED, "sqlite", on_stale, 120.0), tmp_path, template).run()
    assert counts["is denied by a lock"] > 100


# -- mutations -------------------------------------------------------------------------------------

# The source and the fault that detect a mutation, where random faults rarely do.
SHOWN_BY = {
    "not_stale_during_a_fetch": ("sql", "silent"),
    "half_answers_applied": ("http", "shredded"),
    "half_changes_applied": ("sql", "breaking"),
    "cursor_before_applying": ("sql", "breaking"),
    "back_off_without_ceiling": ("sql", "away"),
    "gives_up": ("sql", "away"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_detected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, *kinds = SHOWN_BY.get(name, ("sql",))
    MUTATIONS[name](monkeypatch)
    for seed in range(8):
        try:
            SimulatedRun(Scenario(seed, source, "deny", 300.0, tuple(kinds)), tmp_path, Path()).run()
        except AssertionError as caught:
            message = str(caught)
            break
    else:
        raise AssertionError(f"{name} was not detected")
    assert message.startswith("Scenario(")  # the oracle's, with the parameters that repeat it


# -- real time -------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gatelock-cuts-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)  # another user runs PostgreSQL
        yield Path(name)


def test_answers_stay_within_their_bounds_behind_faulty_proxies(folder: Path, servers: ServersUsed) -> None:
    """For some seconds; `make cuts` runs for two minutes, and with more seeds."""
    lines: list[str] = []
    run = real.RealRun(SEED, SHORT_S, folder, lines.append)
    try:
        counts: Counter[str] = run.run()
    except Missing as missing:
        servers.lacks("postgresql", missing)
    except AssertionError as wrong:
        repeat = f'make cuts ARGS="--seed {SEED} --seeds 0 --seconds {SHORT_S:g}"'
        raise AssertionError(f"to repeat: {repeat}\n{wrong}\n" + "\n".join(lines)) from wrong
    assert run.faults.total() >= SHORT_S / 12
    assert counts["is denied by a lock"] > 50
    assert counts["passes"] > 500
