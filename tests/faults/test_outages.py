"""One analyzer, looked at from outside: what it says of itself, and how it ends."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from random import Random

import pytest

from tests.faults.fleet import Fleet
from tests.support.servers.child import free_port

AWAY_S = 2.0
pytestmark = pytest.mark.slow
Make = Callable[..., Fleet]


def ready(fleet: Fleet) -> tuple[int, str]:
    """Status and body of /readyz."""
    try:
        with urllib.request.urlopen(f"http://{fleet.http}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_until(true: Callable[[], bool], within_s: float = 30.0) -> None:
    until_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def test_a_database_that_is_away_costs_nothing_but_time_and_is_told(
    fleet_of: Make, real_kafka: object, own_postgres: object, random: Random
) -> None:
    fleet = fleet_of(real_kafka, own_postgres, http=f"127.0.0.1:{free_port()}")
    traffic = fleet.traffic(random)
    member = fleet.join()
    traffic.start()
    fleet.wait_until_seen(1_000)
    assert ready(fleet)[0] == 200

    own_postgres.kill()
    wait_until(lambda: ready(fleet)[0] == 503)
    assert "database" in ready(fleet)[1]
    time.sleep(AWAY_S)
    own_postgres.start()

    wait_until(lambda: ready(fleet)[0] == 200)
    traffic.stop()
    fleet.wait_until_seen(traffic.truth.records)
    assert fleet.counts() == traffic.truth.counts
    assert member.poll() is None


def test_sigterm_stores_what_is_counted_and_ends_in_good_order(
    fleet_of: Make, real_kafka: object, postgres: object, random: Random
) -> None:
    fleet = fleet_of(real_kafka, postgres, flush_s=2.0)
    traffic = fleet.traffic(random)
    member = fleet.join()
    traffic.start()
    fleet.wait_until_seen(1_000)
    before = fleet.seen()
    time.sleep(1.0)
    member.terminate()
    assert member.wait(10) == 0, fleet.log()
    assert fleet.seen() > before  # what it held was not thrown away
    assert json.loads(fleet.log().splitlines()[-1])["message"] == "stopped"
    fleet.members.remove(member)
    traffic.stop()
    fleet.join()
    fleet.wait_until_seen(traffic.truth.records)
    assert fleet.counts() == traffic.truth.counts


def test_without_the_compare_and_set_two_owners_count_twice(
    fleet_of: Make, real_kafka: object, postgres: object, random: Random
) -> None:
    """The fault run has two owners of every partition, too; with this taken out it must come out wrong."""
    fleet = fleet_of(real_kafka, postgres, mutation="without_compare_and_set")
    traffic = fleet.traffic(random)
    fleet.join()
    fleet.join(config=fleet.configure("twin"))
    traffic.release(6_000)
    traffic.start()
    traffic.wait_until_written()
    traffic.stop()
    fleet.wait_until_seen(traffic.truth.records + 1)
    assert fleet.counts().total() > traffic.truth.counts.total()
