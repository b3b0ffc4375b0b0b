"""An application hears when its gate learns of something, or stops learning."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from gatekeeper import Gate
from gatekeeper.testing import ManualClock
from tests.support.feed import HandFeed, a_lock


class World:
    def __init__(self, **settings: object) -> None:
        self.clock, self.feed = ManualClock(), HandFeed(a_lock())
        self.versions: list[int] = []
        self.health: list[tuple[float, bool]] = []
        self.gate = Gate(
            self.feed,
            clock=self.clock,
            on_change=lambda gate: self.versions.append(gate.version),
            on_health=lambda gate: self.health.append((round(self.clock.uptime_s(), 3), gate.healthy)),
            **settings,
        )


@pytest.fixture
def world() -> World:
    return World()


def test_each_new_view_is_told_once(world: World) -> None:
    world.gate.ready(1)
    world.clock.advance(3)
    assert world.versions == [1]
    world.feed.set(a_lock("user:bob"))
    world.feed.set(a_lock("user:eve"))
    world.clock.advance(3)
    assert world.versions == [1, 3]


def test_who_hears_of_a_change_finds_it_in_the_gate() -> None:
    clock, feed, seen = ManualClock(), HandFeed(), []
    gate = Gate(feed, clock=clock, on_change=lambda gate: seen.append(gate.allow("api_key:acme")))
    gate.ready(1)
    feed.set(a_lock())
    clock.advance(1)
    assert seen == [True, False]


def test_a_gate_says_when_it_stops_learning_and_when_it_learns_again(world: World) -> None:
    """To the moment, however far apart the polls have become."""
    world.gate.ready(1)
    world.clock.advance(1)
    world.feed.away = True
    world.clock.advance(60)
    asked_s = world.health[-1][0] - 30
    assert world.health == [(0.0, True), (asked_s + 30, False)]
    assert 0 <= asked_s <= 1
    world.feed.away = False
    world.clock.advance(10)
    assert [healthy for _, healthy in world.health] == [True, False, True]


def test_a_gate_that_never_got_an_answer_says_so_after_its_patience(world: World) -> None:
    world.feed.away = True
    world.gate.start()
    world.clock.advance(29)
    assert world.health == []
    world.clock.advance(2)
    assert world.health == [(30.0, False)]


@pytest.mark.parametrize("error", [RuntimeError("of the application"), SystemExit(1)])
def test_what_goes_wrong_in_there_is_logged_and_ends_no_polling(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(gate: Gate) -> None:
        raise error

    clock, feed = ManualClock(), HandFeed()
    gate = Gate(feed, clock=clock, on_change=fail, on_health=fail)
    gate.ready(1)
    feed.set(a_lock())
    clock.advance(1)
    assert not gate.allow("api_key:acme")
    assert gate.healthy
    assert caplog.text.count("failed; the polling goes on") == 3
    assert type(error).__name__ in caplog.text


def test_one_that_takes_its_time_holds_up_nothing_and_hears_of_the_rest_at_once() -> None:
    """On real threads: polling, refusing and growing stale go on, and closing does not wait for ever."""
    begun, go_on, versions = threading.Event(), threading.Event(), []

    def slow(gate: Gate) -> None:
        versions.append(gate.version)
        begun.set()
        go_on.wait(30)

    feed = HandFeed()
    feed.next_poll = 0.05
    gate = Gate(feed, on_change=slow, name="slow").start()
    assert begun.wait(20)
    for name in ("user:bob", "user:eve"):
        feed.set(a_lock(name, ends_in=10**9))
        deadline_s = time.monotonic() + 20
        while gate.allow(name):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    assert gate.healthy
    assert gate.age < 20
    assert versions == [0]
    go_on.set()
    deadline_s = time.monotonic() + 20
    while versions != [0, 2]:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    gate.close()
    assert not {"gatelock slow", "gatelock tells"} & {thread.name for thread in threading.enumerate()}


def test_who_is_told_may_close_the_gate() -> None:
    closed = threading.Event()

    def close(gate: Gate) -> None:
        gate.close()
        closed.set()

    Gate(HandFeed(), on_change=close).start()
    assert closed.wait(20)


def test_a_machine_without_threads_to_give_polls_on(caplog: pytest.LogCaptureFixture) -> None:
    clock, feed = ManualClock(), HandFeed()
    gate = Gate(feed, clock=clock, on_change=lambda gate: None)
    gate.start()
    run, clock.run = clock.run, cannot
    clock.advance(1)
    clock.run = run
    feed.set(a_lock())
    clock.advance(1)
    assert not gate.allow("api_key:acme")
    assert "nobody can be told of news" in caplog.text


def cannot(turn: object, name: str) -> object:
    raise RuntimeError("can't start new thread")


def test_nothing_is_told_while_a_request_waits(world: World) -> None:
    world.gate.ready(1)
    world.feed.set(a_lock("user:bob"))
    before = list(world.versions)
    for _ in range(100):
        world.gate.check("user:bob")
    assert world.versions == before


def test_one_poller_for_several_gates(tmp_path: Path) -> None:
    clock, feed = ManualClock(), HandFeed(a_lock())
    gates = [Gate(feed, clock=clock, saved=tmp_path / "view", shared=True) for _ in range(4)]
    for gate in gates:
        assert gate.ready(1)
    feed.set(a_lock("user:bob"))
    clock.advance(0.6)
    assert [gate.allow("user:bob") for gate in gates] == [False] * 4
    before = len(feed.asked)
    clock.advance(10)
    assert len(feed.asked) - before <= 26
    assert all(gate.age < 0.6 and gate.healthy for gate in gates)
    gates[0].close()
    feed.set(a_lock("user:eve"))
    clock.advance(1.0)
    assert [gate.allow("user:eve") for gate in gates[1:]] == [False] * 3


def test_who_shares_says_where(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shared: needs `saved`"):
        Gate(HandFeed(), shared=True)


def test_the_difference_of_the_clocks_is_the_same_for_who_only_reads(tmp_path: Path) -> None:
    clock, feed = ManualClock(), HandFeed(a_lock())
    gates = [Gate(feed, clock=clock, saved=tmp_path / "view", shared=True) for _ in range(2)]
    for gate in gates:
        gate.ready(1)
    for _ in range(20):
        feed.now = clock.now()
        clock.advance(0.05)
    assert all(abs(gate.clock_skew) < 0.1 for gate in gates)
