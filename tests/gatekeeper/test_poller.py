"""The poller: when it fetches, how it applies answers, and that no fault stops it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from math import nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.feed.poller import CEILING_S, PACE_MIN_S, GateKnowledge, Poller, next_delay
from gatekeeper.feed.saved_view import ViewFile, read, write
from gatekeeper.model import Cursor, Set, Update
from gatekeeper.sources.http import TryLater
from gatekeeper.testing import ManualClock
from tests.support.feed import NOON, HandFeed, a_lock, a_saved_view

LUCK = st.floats(0, 1, exclude_max=True)
PACES = st.floats(PACE_MIN_S, 60)


class World:
    """A poller with a clock and a feed that a test controls."""

    def __init__(self, *, pace_max: float = 15.0, view_file: ViewFile | None = None) -> None:
        self.clock, self.feed = ManualClock(), HandFeed()
        self.poller = Poller(self.feed, self.clock, GateKnowledge(), pace_max_s=pace_max, view_file=view_file)

    def run(self, seconds: float) -> list[float]:
        """Runs the poller for some seconds; returns the moments at which it fetched."""
        moments: list[float] = []

        def turn() -> float:
            before = len(self.feed.fetches)
            wait_s = self.poller.step()
            moments.extend([self.clock.uptime_s()] * (len(self.feed.fetches) - before))
            return wait_s

        task = self.clock.run(turn, "")
        self.clock.advance(seconds)
        task.stop(0)
        return moments

    @property
    def callers(self) -> list[str]:
        return [lock.key for lock in self.poller.known.view]


@pytest.fixture
def world() -> World:
    return World()


@given(PACES, LUCK)
def test_polls_come_at_the_pace_plus_or_minus_a_tenth(pace: float, luck: float) -> None:
    assert 0.9 * pace <= next_delay(pace, 0, luck) <= 1.1 * pace


@given(PACES, st.integers(1, 10_000), LUCK)
def test_after_failures_the_poller_backs_off_up_to_the_ceiling(
    pace: float, failures: int, luck: float
) -> None:
    delay = next_delay(pace, failures, luck)
    assert min(pace, CEILING_S / 2) <= delay <= CEILING_S
    assert delay <= next_delay(pace, failures + 1, luck)


def test_gates_that_failed_together_retry_at_different_times() -> None:
    delays = {next_delay(0.4, 10, luck / 10) for luck in range(10)}
    assert max(delays) - min(delays) > CEILING_S / 3


def test_the_server_sets_the_pace(world: World) -> None:
    world.feed.next_poll = 2.0
    assert world.run(7.0) == [0.0, 2.0, 4.0, 6.0]
    world.feed.next_poll = 0.5
    assert world.run(2.9) == [8.0, 8.5, 9.0, 9.5]


def test_no_pace_of_a_server_causes_overload_or_staleness() -> None:
    world = World(pace_max=15.0)
    world.feed.next_poll = 0.0
    assert len(world.run(10 * PACE_MIN_S)) == 10
    world.feed.next_poll = nan
    assert len(world.run(10 * PACE_MIN_S)) > 8
    world.feed.next_poll = 1e9
    world.run(60.0)
    assert world.clock.uptime_s() - world.poller.known.confirmed_s <= 15.0


def test_the_first_fetch_asks_for_a_snapshot_and_later_ones_for_changes(world: World) -> None:
    world.feed.set(a_lock())
    world.run(0.3)
    world.feed.set(a_lock("user:bob"))
    world.run(0.8)
    assert world.feed.fetches == [None, Cursor(1, "m1"), Cursor(2, "m2")]
    assert world.callers == ["api_key:acme", "user:bob"]


def test_an_unavailable_source_is_polled_less_often_and_its_return_is_noticed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.run(0.3)
    world.feed.away = True
    with caplog.at_level(logging.INFO, "gatekeeper"):
        moments = world.run(300.0)
        assert 300 / CEILING_S <= len(moments) < 60
        world.feed.away = False
        world.feed.set(a_lock())
        world.run(CEILING_S)
    assert world.callers == ["api_key:acme"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_an_answer_that_does_not_follow_leads_to_a_snapshot(world: World) -> None:
    world.run(0.3)
    world.feed.set(a_lock())
    good, gap = (
        world.feed.fetch,
        Update(Cursor(9, "m9"), 8, False, NOON, 0.0, 0.4, (Set(a_lock("user:bob")),)),
    )
    world.feed.fetch = lambda since: gap  # the answer to another client
    world.run(0.4)
    world.feed.fetch = good
    world.run(2.0)
    assert world.feed.fetches[1] is None
    assert world.callers == ["api_key:acme"]


def test_an_exception_in_the_source_is_logged_and_polling_continues(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.feed.set(a_lock())
    good = world.feed.fetch
    world.feed.fetch = lambda since: 1 / 0
    world.run(5.0)
    assert "ZeroDivisionError" in caplog.text
    world.feed.fetch = good
    world.run(CEILING_S)
    assert world.callers == ["api_key:acme"]


def test_age_counts_from_the_request_not_from_the_answer(world: World) -> None:
    """The source may have read its data when the request arrived."""
    good = world.feed.fetch

    def slow(since: Cursor | None) -> Update:
        update = good(since)
        world.clock.advance(3.0)
        return update

    world.feed.fetch = slow
    world.poller.step()
    assert world.clock.uptime_s() - world.poller.known.confirmed_s == 3.0


def test_clock_skew_is_measured_midway_between_request_and_answer(world: World) -> None:
    good = world.feed.fetch

    def slow(since: Cursor | None) -> Update:
        world.clock.advance(1.0)
        world.feed.now = world.clock.now() - timedelta(seconds=20)
        update = good(since)
        world.clock.advance(1.0)
        return update

    world.feed.fetch = slow
    world.feed.behind = 7.5
    world.poller.step()
    assert world.poller.known.clock_skew == pytest.approx(20.0)
    assert world.poller.known.behind == 7.5


def test_the_time_of_a_long_poll_does_not_age_the_view(world: World) -> None:
    good = world.feed.fetch

    def waits(since: Cursor | None) -> Update:
        world.clock.advance(5.0)
        world.feed.now = world.clock.now() - timedelta(seconds=20)
        return good(since)._replace(waited=5.0)

    world.feed.fetch = waits
    world.poller.step()
    assert world.clock.uptime_s() - world.poller.known.confirmed_s == 0.0
    assert world.poller.known.clock_skew == pytest.approx(20.0)


@pytest.mark.parametrize(("waited", "pause"), [(2.0, 0.01), (0.06, 0.01), (0.0, 0.05), (-5.0, 0.05)])
def test_after_a_long_poll_the_poller_fetches_again_almost_at_once(
    world: World, waited: float, pause: float
) -> None:
    """The next lock may follow at once; without a long poll the least pace protects the server."""
    good = world.feed.fetch

    def waits(since: Cursor | None) -> Update:
        world.clock.advance(max(0.0, waited))
        return good(since)._replace(waited=waited, next_poll=0.0)

    world.feed.fetch = waits
    assert world.poller.step() == pytest.approx(pause, rel=0.1)


def test_gates_that_a_busy_server_refused_return_at_different_times() -> None:
    def delay_s(luck: float) -> float:
        world = World()
        world.clock.random = lambda: luck
        world.feed.fetch = later(4.0)
        return world.poller.step()

    assert [delay_s(luck) for luck in (0.0, 0.5, 0.99)] == pytest.approx([4.0, 5.0, 5.98])


@pytest.mark.parametrize("waited", [1e9, nan])
def test_a_view_is_never_younger_than_its_answer(world: World, waited: float) -> None:
    good = world.feed.fetch
    world.feed.fetch = lambda since: good(since)._replace(waited=waited)
    world.poller.step()
    assert world.poller.known.confirmed_s <= world.clock.uptime_s()


@pytest.mark.parametrize(
    ("retry_after", "at_least", "at_most"), [(5.0, 5.0, 7.5), (3600.0, 15.0, 15.0), (0.0, 0.4, 0.8)]
)
def test_retry_after_is_followed_but_never_into_staleness(
    world: World, retry_after: float, at_least: float, at_most: float
) -> None:
    world.feed.fetch = later(retry_after)
    assert at_least <= world.poller.step() <= at_most


def later(retry_after: float) -> Callable[[Cursor | None], Update]:
    def fetch(since: Cursor | None) -> Update:
        raise TryLater("503 Service Unavailable", retry_after)

    return fetch


def test_ended_locks_are_pruned_while_the_source_is_unavailable(world: World) -> None:
    world.feed.set(a_lock(ends_in=10), a_lock("user:bob", ends_in=20))
    world.run(1.0)
    world.feed.away = True
    world.run(8.9)
    assert len(world.callers) == 2
    world.run(0.2)
    assert world.callers == ["user:bob"]
    world.run(10.0)
    assert world.callers == []


def test_locks_that_end_in_quick_succession_are_pruned_together(world: World) -> None:
    world.feed.next_poll = 10.0
    world.feed.set(*(a_lock(f"user:{n}", ends_in=1 + n / 1000) for n in range(1000)))
    turns = 0
    while world.clock.uptime_s() < 3.0:
        world.clock.advance(world.poller.step())
        turns += 1
    assert world.callers == []
    assert turns < 10


def test_locks_pruned_while_the_clock_was_ahead_are_fetched_again(world: World) -> None:
    world.feed.set(a_lock(ends_in=60))
    world.run(1.0)
    world.clock.jump(3600)
    world.run(1.0)
    assert world.callers == []
    world.clock.jump(-3600)
    world.run(1.0)
    assert world.callers == ["api_key:acme"]
    assert world.feed.fetches.count(None) == 2


def test_locks_pruned_before_the_clock_was_corrected_during_a_fetch_are_fetched_again(world: World) -> None:
    """Although the lock in that answer ends before the next fetch."""
    world.feed.next_poll = 5.0
    world.feed.set(a_lock(ends_in=60))
    world.run(1.0)
    world.clock.jump(3600)
    world.run(1.0)
    assert world.callers == []
    fetch = world.feed.fetch

    def fetch_late(since: Cursor | None) -> Update:
        world.clock.jump(-3600)
        world.feed.set(a_lock("user:eve", ends_in=world.clock.uptime_s() + 1))
        world.feed.fetch = fetch
        return fetch(since)

    world.feed.fetch = fetch_late
    world.run(14.0)
    assert world.callers == ["api_key:acme"]


def test_an_unknown_word_of_the_feed_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(5):
        world.feed.set(a_lock(f"user:{n}", action="delay"))
        world.run(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "the lock feed uses 'action delay', which this gatekeeper does not know and ignores"
    ]
    assert world.poller.known.view.ignored["action delay"] == 5


class TestSavedView:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "view"

    def test_a_start_while_the_source_is_unavailable_uses_the_saved_locks(self, path: Path) -> None:
        write(path, a_saved_view(NOON - timedelta(seconds=100), a_lock()))
        world = World(view_file=ViewFile(path))
        world.feed.away = True
        world.run(1.0)
        assert world.callers == ["api_key:acme"]
        assert world.clock.uptime_s() - world.poller.known.confirmed_s == pytest.approx(101.0)

    def test_the_saved_view_is_in_use_before_the_first_fetch(self, path: Path) -> None:
        """A fetch from an unavailable source takes as long as its time-out."""
        write(path, a_saved_view(NOON, a_lock()))
        world = World(view_file=ViewFile(path))
        world.poller.step()
        assert (world.callers, world.feed.fetches) == (["api_key:acme"], [])

    def test_the_first_fetch_asks_for_a_snapshot_despite_a_saved_view(self, path: Path) -> None:
        write(path, a_saved_view(NOON, a_lock("user:lifted")))
        world = World(view_file=ViewFile(path))
        world.feed.set(a_lock())
        world.run(0.1)
        assert (world.feed.fetches, world.callers) == ([None], ["api_key:acme"])

    def test_a_view_is_saved_with_the_time_of_its_request(self, path: Path) -> None:
        world = World(view_file=ViewFile(path))
        world.feed.set(a_lock())
        world.run(0.1)
        assert read(path, NOON) == a_saved_view(NOON, a_lock())

    def test_the_last_change_is_saved_at_the_end(self, path: Path) -> None:
        world = World(view_file=ViewFile(path))
        world.run(0.3)
        world.feed.set(a_lock())
        world.run(0.4)
        assert read(path, NOON).locks == ()
        world.poller.finish()
        assert read(path, NOON) == a_saved_view(NOON + timedelta(seconds=0.4), a_lock())

    def test_an_unconfirmed_view_keeps_its_age_on_disk(self, path: Path) -> None:
        write(path, a_saved_view(NOON - timedelta(hours=1), a_lock()))
        world = World(view_file=ViewFile(path))
        world.feed.away = True
        world.run(600.0)
        world.poller.finish()
        assert read(path, NOON).confirmed == NOON - timedelta(hours=1)
