"""Eight processes on one real Redis: each limit holds for all of them together."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gatekeeper.limits import Concurrency
from gatekeeper.limits.redis import RedisStore
from tests.limits.fleet_processes import (
    PARENT,
    PROCESSES,
    Admitted,
    Fleet,
    call_without_pause,
    hold_and_die,
    race_for,
    wait_for_turns,
    work,
)
from tests.limits.redis_kinds import KINDS, Kind, new_name
from tests.support.servers.redis import Redis, client_of

RUNS = 5  # of a measurement that a busy machine disturbs, at most
every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)


@pytest.fixture(scope="module")
def fleet(redis_server: Redis) -> Iterator[Fleet]:
    fleet = Fleet(redis_server.url)
    yield fleet
    fleet.close()


def surely_within(admitted: Admitted, period_s: float) -> int:
    """Returns the most admissions that lay within one period for certain.

    The server's time of each lies between before and after.
    """
    return max(
        sum(before >= first and after < first + period_s for before, after in admitted)
        for first, _ in admitted
    )


@every_kind
def test_racing_processes_get_exactly_the_permits_that_there_are(fleet: Fleet, kind: Kind):
    """Not one more, and no permit is lost."""
    name = new_name()
    passed = fleet.run(race_for, KINDS.index(kind), 300, name, 60)
    available = {"TokenBucket, burst 2": 2, "TokenBucket.strict": 150, "LeakyQueue": 1}.get(kind.name, 300)
    assert sum(passed) == available


@every_kind
def test_under_pressure_no_period_holds_more_than_the_limit(fleet: Fleet, kind: Kind):
    limit, period_s, for_s = 20, 0.2, 0.8
    most = {
        "SlidingLog": limit,
        "TokenBucket.strict": limit,
        "TokenBucket, burst 2": limit + 2,
        "LeakyQueue": limit + 1,
    }.get(kind.name, 2 * limit)
    # A caller that does not wait misses turns, more of them on a busy machine: the best run counts.
    enough = {"TokenBucket.strict": 11, "LeakyQueue": 12}.get(kind.name, limit) * (for_s / period_s - 1)
    best = 0
    for _ in range(RUNS):
        until_s = time.time() + 0.05 + for_s
        results = fleet.run(call_without_pause, KINDS.index(kind), limit, period_s, new_name(), until_s)
        admitted = [admission for admissions, _ in results for admission in admissions]
        assert surely_within(admitted, period_s) <= most
        assert sum(refused for _, refused in results) > 0
        best = max(best, len(admitted))
        if best >= enough:
            break
    assert best >= enough, "permits were lost"


def test_departures_from_a_queue_are_a_turn_apart_in_all_processes_together(fleet: Fleet):
    queue = next(n for n, kind in enumerate(KINDS) if kind.name == "LeakyQueue")
    results = fleet.run(wait_for_turns, queue, 100, 1.0, new_name(), 6)
    first = min(before for admissions in results for before, _ in admissions)
    left = sorted(after for admissions in results for _, after in admissions)
    assert len(left) == PROCESSES * 6
    assert all(at >= first + n * 0.01 for n, at in enumerate(left)), "a request left before its turn"
    assert left[-1] - first < 48 * 0.01 + 2, "turns were lost"


def test_never_more_work_in_flight_than_allowed_even_if_work_fails(fleet: Fleet):
    most = fleet.run(work, 3, new_name(), 12)
    assert 1 <= max(most) <= 3


def test_the_lease_of_a_killed_process_ends_by_itself(redis_server: Redis):
    name, lease_s = new_name(), 0.5
    holder = PARENT.Process(target=hold_and_die, args=(redis_server.url, name, lease_s))
    holder.start()
    holder.join(30)
    with client_of(redis_server.url) as client:
        store = RedisStore(client)
        limiter = Concurrency(1, store=store, name=name, lease=lease_s)
        assert limiter.wait("a", timeout=5)
        assert limiter.in_flight("a") == 1
        store.close()
