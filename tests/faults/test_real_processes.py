"""Three analyzers on a real Kafka and a real PostgreSQL, killed, paused, joined and left at random."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest

from tests.faults.fleet import Fleet

KILLS = 20
pytestmark = pytest.mark.slow
Make = Callable[..., Fleet]


def test_kills_pauses_joins_and_leaves_are_not_seen_in_the_counts(
    fleet_of: Make, real_kafka: object, postgres: object, random: Random
) -> None:
    fleet = fleet_of(real_kafka, postgres, limit=2_000)
    traffic = fleet.traffic(random)
    for _ in range(3):
        fleet.join()
    traffic.start()
    fleet.wait_until_seen(1_000)
    paused = None
    for kill in range(KILLS):
        time.sleep(random.uniform(0.3, 1.7))
        fleet.kill(random.choice([member for member in fleet.members if member is not paused]))
        fleet.join()
        match kill:
            case 4:
                paused = random.choice(fleet.members)
                fleet.pause(paused)
            case 12:  # far beyond its session: it wakes with records that others have counted
                fleet.resume(paused)
                paused = None
            case 7 | 15:
                fleet.join()
            case 10 | 18:
                fleet.leave(next(member for member in fleet.members if member is not paused))  # the oldest
    traffic.stop()
    fleet.wait_until_seen(traffic.written)

    assert fleet.counts() == traffic.truth
    ledger = fleet.ledger()
    assert ledger["seen"] == traffic.written
    assert ledger["seen"] == ledger["counted"] + ledger["duplicate"] + ledger["dead"] + ledger["late"]
    assert ledger["dead"] == traffic.unreadable
    over = {caller for (caller, denied), n in traffic.truth.items() if not denied and n >= fleet.limit}
    assert over
    assert fleet.locked() == over


def test_without_the_compare_and_set_a_zombie_counts_twice(
    fleet_of: Make, real_kafka: object, postgres: object, random: Random
) -> None:
    """The same story must come out wrong, or it proves nothing. Long flushes: a zombie needs some in hand."""
    fleet = fleet_of(real_kafka, postgres, mutation="without_compare_and_set", flush_s=1.0)
    traffic = fleet.traffic(random)
    for _ in range(2):
        fleet.join()
    traffic.start()
    fleet.wait_until_seen(1_000)
    for _ in range(5):
        zombie = random.choice(fleet.members)
        fleet.pause(zombie)
        time.sleep(fleet.session_s + 2.5)  # the other one takes over and counts the same records
        fleet.resume(zombie)
        time.sleep(2.0)
        if fleet.ledger()["seen"] > traffic.written:
            break
    traffic.stop()
    fleet.wait_until_seen(traffic.written)
    time.sleep(2.0)
    assert fleet.counts() != traffic.truth
    assert fleet.counts().total() > traffic.truth.total()


def test_with_offsets_in_a_transaction_of_their_own_a_kill_loses_records(
    fleet_of: Make, real_kafka: object, postgres: object, random: Random
) -> None:
    fleet = fleet_of(real_kafka, postgres, mutation="offsets_in_a_transaction_of_their_own")
    traffic = fleet.traffic(random)
    member = fleet.join()
    traffic.start()
    for _ in range(8):
        fleet.wait_until_seen(fleet.seen() + 1_000)
        time.sleep(random.uniform(0.0, 0.2))
        fleet.kill(member)
        member = fleet.join()
    traffic.stop()
    fleet.wait_until_seen(traffic.written)
    assert fleet.ledger()["seen"] == traffic.written  # the offsets say that all is well
    time.sleep(1.0)
    assert fleet.counts().total() < traffic.truth.total()
