"""A gate's source cut and healed at random: nobody without a lock is denied, and nobody with one is admitted
longer than the bounds of `tests/cuts/bound.py` allow. `make cuts` is the long form."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from gatekeeper.feed.poller import CEILING_S
from tests.cuts import real
from tests.cuts.bound import Manner, Stretch, certain, possible, staleness
from tests.cuts.mutations import MUTATIONS
from tests.cuts.simulated import ON_STALE, Story, World
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed

SEED = 20_261_121
SHORT_S = 12.0

WELL = Manner(pace_s=0.4, answer_s=0.0, wait_s=0.0, fetch_s=6.0, stale_after_s=30.0)
BACK_S = 6.0 + 1.1 * 15.0  # a fetch that is given up, and the longest pause


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "gatekeeper")  # a line for each cut


@pytest.fixture
def template(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue("sqlite_template")
    return found


# -- the bounds ------------------------------------------------------------------------------------


def test_what_must_be_known_ends_where_the_source_was_well_for_the_last_time() -> None:
    #   0            100     130                                    (one pause and no answer time: 0.44 s)
    #   |    well     |  away |  well, but not yet for long enough
    sky = [Stretch(0, 100, "all"), Stretch(100, 130, "none"), Stretch(130, inf, "all")]
    assert certain(sky, WELL, 0.0, 50.0) == pytest.approx((49.56, 49.56))
    assert certain(sky, WELL, 0.0, 120.0) == pytest.approx((99.56, 99.56))
    assert certain(sky, WELL, 0.0, 130.0 + BACK_S - 0.01) == pytest.approx((99.56, 99.56))
    assert certain(sky, WELL, 0.0, 130.0 + BACK_S) == pytest.approx((130 + BACK_S - 0.44,) * 2)
    assert certain(sky, WELL, 131.0, 130.0 + BACK_S) == (-inf, -inf)


def test_an_answer_that_is_kept_back_makes_a_view_old_and_holds_no_news_up() -> None:
    kept = WELL._replace(pace_s=0.0, wait_s=5.0)
    assert kept.news_s == pytest.approx(0.055)
    assert kept.confirmed_s == pytest.approx(5.055)
    assert WELL._replace(stale_after_s=3.0).comes_back_s == 6.0 + CEILING_S


def test_a_view_is_not_younger_than_the_last_question_that_could_be_answered() -> None:
    sky = [Stretch(0, 10, "all"), Stretch(10, 20, "none"), Stretch(20, 25, "none"), Stretch(25, inf, "some")]
    assert [possible(sky, now_s) for now_s in (5.0, 15.0, 24.0, 26.0)] == [5.0, 10.0, 10.0, 26.0]
    assert possible([Stretch(0, inf, "none")], 5.0) == -inf


def test_a_view_may_be_fresh_stale_or_either() -> None:
    fresh, for_locks, stale = (False, False), (True, False), (True, True)
    assert staleness((95.0, 99.0), 0.0, 100.0, 30.0, 0.0) == [fresh]
    assert staleness((50.0, 60.0), 0.0, 100.0, 30.0, 0.0) == [stale]
    assert staleness((50.0, 80.0), 0.0, 100.0, 30.0, 0.0) == [fresh, stale]
    assert staleness((-inf, 60.0), 90.0, 100.0, 30.0, 0.0) == [for_locks]


# -- ten minutes of simulated time -----------------------------------------------------------------


@pytest.mark.parametrize("on_stale", ON_STALE)
@pytest.mark.parametrize("source", ["sql", "http", "file"])
def test_ten_minutes_of_cuts(source: str, on_stale: str, tmp_path: Path) -> None:
    tally = World(Story(SEED, source, on_stale), tmp_path, Path()).run()
    assert tally["is refused by a lock"] > 1_000
    assert tally["passes"] > 1_000
    assert tally["must know of what is new"] > 100
    assert tally["is surely stale"] > 10
    assert (tally["is refused as stale"] > 10) == (on_stale == "deny")
    assert (tally["is refused by the limiter"] > 10) == (on_stale == "limiter")


@pytest.mark.parametrize("on_stale", ON_STALE)
def test_two_minutes_of_cuts_with_the_feed_as_the_analyzer_keeps_it(
    on_stale: str, tmp_path: Path, template: Path
) -> None:
    tally = World(Story(SEED, "sqlite", on_stale, 120.0), tmp_path, template).run()
    assert tally["is refused by a lock"] > 100


# -- broken on purpose -----------------------------------------------------------------------------

# What there must be for it to show, where most skies would not have enough of it.
SHOWN_BY = {
    "not_stale_while_it_asks": ("sql", "silent"),
    "half_answers_applied": ("http", "shredded"),
    "half_changes_applied": ("sql", "breaking"),
    "cursor_before_applying": ("sql", "breaking"),
    "back_off_without_ceiling": ("sql", "away"),
    "gives_up": ("sql", "away"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_gate_that_breaks_its_promise_is_caught(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, *kinds = SHOWN_BY.get(name, ("sql",))
    MUTATIONS[name](monkeypatch)
    for seed in range(8):
        try:
            World(Story(seed, source, "deny", 300.0, tuple(kinds)), tmp_path, Path()).run()
        except AssertionError as caught:
            said = str(caught)
            break
    else:
        raise AssertionError(f"nobody noticed {name}")
    assert said.startswith("Story(")  # the oracle's, which says how to have it again


# -- real time -------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gatelock-cuts-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)  # another user runs PostgreSQL
        yield Path(name)


def test_postgresql_and_serve_behind_lines_that_are_cut(folder: Path, servers: ServersUsed) -> None:
    """For moments; `make cuts` does it for two minutes, with more seeds."""
    lines: list[str] = []
    story = real.Story(SEED, SHORT_S, folder, lines.append)
    try:
        tally: Counter[str] = story.run()
    except Missing as missing:
        servers.lacks("postgresql", missing)
    except AssertionError as wrong:
        again = f'make cuts ARGS="--seed {SEED} --seeds 0 --seconds {SHORT_S:g}"'
        raise AssertionError(f"again: {again}\n{wrong}\n" + "\n".join(lines)) from wrong
    assert story.faults.total() >= SHORT_S / 12
    assert tally["is refused by a lock"] > 50
    assert tally["passes"] > 500
