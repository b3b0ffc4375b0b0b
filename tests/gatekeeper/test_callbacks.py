"""The callbacks of a gate: `on_change` for a new version, `on_health` for a change of `healthy`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gatekeeper import Gate
from gatekeeper.testing import ManualClock
from tests.support.feed import HandFeed, a_lock
from tests.support.waiting import wait_until


class World:
    """A gate that records what its callbacks see, with a clock and a feed that a test controls."""

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


def test_on_change_is_called_once_for_each_new_view(world: World) -> None:
    world.gate.ready(1)
    world.clock.advance(3)
    assert world.versions == [1]
    world.feed.set(a_lock("user:bob"))
    world.feed.set(a_lock("user:eve"))
    world.clock.advance(3)
    assert world.versions == [1, 3]


def test_during_on_change_the_gate_decides_by_the_new_view() -> None:
    clock, feed, seen = ManualClock(), HandFeed(), []
    gate = Gate(feed, clock=clock, on_change=lambda gate: seen.append(gate.allow("api_key:acme")))
    gate.ready(1)
    feed.set(a_lock())
    clock.advance(1)
    assert seen == [True, False]


def test_on_health_is_called_when_the_view_becomes_stale_and_when_it_is_fresh_again(world: World) -> None:
    """At that moment, however long the pauses between polls have become."""
    world.gate.ready(1)
    world.clock.advance(1)
    world.feed.away = True
    world.clock.advance(60)
    confirmed_s = world.health[-1][0] - 30
    assert world.health == [(0.0, True), (confirmed_s + 30, False)]
    assert 0 <= confirmed_s <= 1
    world.feed.away = False
    world.clock.advance(10)
    assert [healthy for _, healthy in world.health] == [True, False, True]


def test_on_health_is_called_for_a_gate_without_any_answer_after_stale_after(world: World) -> None:
    world.feed.away = True
    world.gate.start()
    world.clock.advance(29)
    assert world.health == []
    world.clock.advance(2)
    assert world.health == [(30.0, False)]


@pytest.mark.parametrize("error", [RuntimeError("of the application"), SystemExit(1)])
def test_an_exception_in_a_callback_is_logged_and_the_polling_continues(
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
    assert caplog.text.count("failed; the polling continues") == 3
    assert type(error).__name__ in caplog.text


def test_a_slow_callback_delays_nothing_and_further_changes_become_one_call() -> None:
    """On real threads: the gate polls and denies meanwhile, and `close` waits for a limited time."""
    called, may_return, versions = threading.Event(), threading.Event(), []

    def slow(gate: Gate) -> None:
        versions.append(gate.version)
        called.set()
        may_return.wait(30)

    feed = HandFeed()
    feed.next_poll = 0.05
    gate = Gate(feed, on_change=slow, name="slow").start()
    assert called.wait(20)
    for name in ("user:bob", "user:eve"):
        feed.set(a_lock(name, ends_in=10**9))
        wait_until(lambda name=name: not gate.allow(name))
    assert gate.healthy
    assert gate.age < 20
    assert versions == [0]
    may_return.set()
    wait_until(lambda: versions == [0, 2])
    gate.close()
    assert not {"gatelock slow", "gatelock callbacks"} & {thread.name for thread in threading.enumerate()}


def test_a_callback_may_close_the_gate() -> None:
    closed = threading.Event()

    def close(gate: Gate) -> None:
        gate.close()
        closed.set()

    Gate(HandFeed(), on_change=close).start()
    assert closed.wait(20)


def test_the_polling_continues_when_no_thread_can_be_started(caplog: pytest.LogCaptureFixture) -> None:
    clock, feed = ManualClock(), HandFeed()
    gate = Gate(feed, clock=clock, on_change=lambda gate: None)
    gate.start()
    run, clock.run = clock.run, cannot
    clock.advance(1)
    clock.run = run
    feed.set(a_lock())
    clock.advance(1)
    assert not gate.allow("api_key:acme")
    assert "no thread could be started for on_change" in caplog.text


def cannot(turn: object, name: str) -> object:
    raise RuntimeError("can't start new thread")


def test_no_request_calls_a_callback(world: World) -> None:
    world.gate.ready(1)
    world.feed.set(a_lock("user:bob"))
    before = list(world.versions)
    for _ in range(100):
        world.gate.check("user:bob")
    assert world.versions == before


def test_several_gates_share_one_poller(tmp_path: Path) -> None:
    clock, feed = ManualClock(), HandFeed(a_lock())
    gates = [Gate(feed, clock=clock, saved=tmp_path / "view", shared=True) for _ in range(4)]
    for gate in gates:
        assert gate.ready(1)
    feed.set(a_lock("user:bob"))
    clock.advance(0.6)
    assert [gate.allow("user:bob") for gate in gates] == [False] * 4
    before = len(feed.fetches)
    clock.advance(10)
    assert len(feed.fetches) - before <= 26
    assert all(gate.age < 0.6 and gate.healthy for gate in gates)
    gates[0].close()
    feed.set(a_lock("user:eve"))
    clock.advance(1.0)
    assert [gate.allow("user:eve") for gate in gates[1:]] == [False] * 3


def test_a_shared_poller_needs_a_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shared: needs `saved`"):
        Gate(HandFeed(), shared=True)


def test_followers_of_a_shared_poller_measure_the_clock_skew_correctly(tmp_path: Path) -> None:
    clock, feed = ManualClock(), HandFeed(a_lock())
    gates = [Gate(feed, clock=clock, saved=tmp_path / "view", shared=True) for _ in range(2)]
    for gate in gates:
        gate.ready(1)
    for _ in range(20):
        feed.now = clock.now()
        clock.advance(0.05)
    assert all(abs(gate.clock_skew) < 0.1 for gate in gates)
