"""Outages and stops of one analyzer, observed through /readyz, its log and the database."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from tests.faults.fleet import Fleet
from tests.support.servers.child import free_port
from tests.support.waiting import wait_until

AWAY_S = 2.0
pytestmark = pytest.mark.slow
Make = Callable[..., Fleet]


def readyz(fleet: Fleet) -> tuple[int, str]:
    """Status and body of /readyz."""
    try:
        with urllib.request.urlopen(f"http://{fleet.http}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def test_an_outage_of_the_database_delays_counting_loses_nothing_and_is_reported(
    fleet_of: Make, real_kafka: object, own_postgres: object, random: Random
) -> None:
    fleet = fleet_of(real_kafka, own_postgres, http=f"127.0.0.1:{free_port()}")
    traffic = fleet.traffic(random)
    member = fleet.join()
    traffic.start()
    fleet.wait_until_seen(1_000)
    wait_until(lambda: readyz(fleet)[0] == 200, 30, lambda: readyz(fleet)[1])

    own_postgres.kill()
    wait_until(lambda: readyz(fleet)[0] == 503)
    assert "database" in readyz(fleet)[1]
    time.sleep(AWAY_S)
    own_postgres.start()

    wait_until(lambda: readyz(fleet)[0] == 200)
    traffic.stop()
    fleet.wait_until_seen(traffic.expected.records)
    assert fleet.counts() == traffic.expected.counts
    assert member.poll() is None


@pytest.mark.deep("tests/cli stops an analyzer by signals")
def test_sigterm_stores_what_is_counted_and_ends_the_process(
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
    assert fleet.seen() > before  # what it had counted was stored
    assert json.loads(fleet.log().splitlines()[-1])["message"] == "stopped"
    fleet.members.remove(member)
    traffic.stop()
    fleet.join()
    fleet.wait_until_seen(traffic.expected.records)
    assert fleet.counts() == traffic.expected.counts


def test_without_the_compare_and_set_two_owners_count_records_twice(
    fleet_of: Make, real_kafka: object, postgres: object, random: Random
) -> None:
    """The fault run has two owners, too; without this promise it must fail."""
    fleet = fleet_of(real_kafka, postgres, mutation="without_compare_and_set")
    traffic = fleet.traffic(random)
    fleet.join()
    fleet.join(config=fleet.configure("twin"))
    # One that owns the partitions only after the other has counted everything continues behind it.
    for position in range(2):
        wait_until(partial(owns_partitions, fleet, position), 60, fleet.log)
    traffic.release(6_000)
    traffic.start()
    traffic.wait_until_written()
    traffic.stop()
    wait_until(lambda: fleet.counts().total() > traffic.expected.counts.total(), 60, fleet.log)


def owns_partitions(fleet: Fleet, position: int) -> bool:
    """Whether the analyzer at `position` of `fleet.members` was the last to store an offset."""
    return not fleet.restart_ended() and fleet.has_stored(fleet.members[position])
