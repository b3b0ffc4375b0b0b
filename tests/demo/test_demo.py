"""`gatelock demo` as a newcomer runs it, and its results."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from analyzer.core.delays.delay_bound import FrontLimiter, LockDelay, overshoot_max
from analyzer.core.model import Partition
from analyzer.demo.load_generator import NOISY, ClientResponse
from analyzer.demo.processes import POLICY
from analyzer.demo.results import DemoResults, results_of, summary
from analyzer.store.database.engine import open_engine
from analyzer.store.transaction.sql_store import SqlStore

FIELDS = {
    "produced", "counted", "exact", "locked_callers", "refused_others", "seconds_to_refusal",
    "overshoot", "overshoot_bound", "others_p95_ms", "analyzer_gap_s",
}  # fmt: skip


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "analyzer.cli", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90)


@pytest.mark.slow
def test_the_demo_succeeds_on_the_servers_that_it_starts() -> None:
    ran = demo("--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found.keys() == FIELDS
    assert found["exact"]
    assert found["produced"] == found["counted"] > 1_000
    assert found["locked_callers"] == [NOISY]
    assert found["refused_others"] == 0
    assert 0 < found["seconds_to_refusal"] < 2
    assert found["overshoot"] <= found["overshoot_bound"]
    assert 0 < found["analyzer_gap_s"] < 10
    waits = found["others_p95_ms"]
    assert waits["during"] > 1.5 * waits["before"]
    assert waits["after"] < waits["during"]
    steps = [line[8:] for line in ran.stderr.splitlines() if " s  " in line[:10]]
    bound = next(n for n, step in enumerate(steps) if str(found["overshoot_bound"]) in step)
    assert bound < next(n for n, step in enumerate(steps) if "flood" in step and "starts" in step)


@pytest.mark.slow
def test_the_demo_runs_on_a_given_kafka_and_postgresql(real_kafka: object, postgres: object) -> None:
    arguments = ("--kafka", real_kafka.bootstrap, "--database", postgres.new_database(), "--stay")
    with subprocess.Popen(
        [sys.executable, "-m", "analyzer.cli", "demo", *arguments], stdout=subprocess.PIPE, text=True
    ) as ran:
        address = next(found[0] for line in ran.stdout if (found := re.search(r"http://\S+", line)))
        token = next(found[0] for line in ran.stdout if (found := re.search(r"gatelock_\S+", line)))
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        asked = urllib.request.Request(f"{address}v1/locks/list", headers=headers)  # noqa: S310
        with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310
            locks = json.load(answer)["items"]
        body = json.dumps({"caller": NOISY, "reason": "the demo is over"}).encode()
        act = urllib.request.Request(f"{address}v1/locks/clear", body, headers)  # noqa: S310
        with urllib.request.urlopen(act, timeout=20) as answer:  # noqa: S310
            assert [lock["changed"] for lock in json.load(answer)["locks"]] == [True]
        ran.send_signal(signal.SIGINT)
        printed = ran.communicate(timeout=60)[0]
    assert ran.returncode == 0, printed
    assert [(lock["key"], lock["policy"]) for lock in locks] == [(NOISY, POLICY)]
    *_, counted, killed, refused, others = printed.splitlines()
    assert "as many as it sent" in counted
    assert "counted again" in killed
    assert "beyond it, of at most" in refused
    assert others.endswith("none of them was ever refused.")


def test_a_broker_that_cannot_be_reached_is_one_sentence() -> None:
    ran = demo("--kafka", "127.0.0.1:9", "--json")
    assert ran.returncode == 3
    assert "127.0.0.1:9" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_database_in_use_is_left_alone(migrated_url: str) -> None:
    engine = open_engine(migrated_url)
    part = Partition("cluster", "topic-id", 0, "log", "another-log")
    SqlStore(engine, "another").begin(part, 0)
    engine.dispose()
    ran = demo("--database", migrated_url)
    assert ran.returncode == 3
    assert "another-log" in ran.stderr


def a_response(caller: str, at_s: float, status: int = 200, policy: str = "") -> ClientResponse:
    return ClientResponse(caller, at_s, 0.02, status, policy)


def a_run() -> DemoResults:
    """The noisy caller, with a limit of 3, is admitted at 1, 2, 3, 4, 5 and refused at 6; ann sends one."""
    responses = [a_response(NOISY, float(second)) for second in range(1, 6)]
    responses += [a_response(NOISY, 6.0, 429, POLICY), a_response("api_key:ann", 2.5)]
    counted = {NOISY: (5, 1), "api_key:ann": (1, 0)}
    return results_of(responses, counted, [NOISY], flood_began_s=0.5, limit=3, bound=4, gap_s=1.25)


def test_the_overshoot_and_the_delay_of_the_refusal() -> None:
    found = a_run()
    assert found.is_successful
    assert (found.overshoot, found.seconds_to_refusal) == (2, 3.0)
    assert len(summary(found, 3)) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"exact": False},
        {"locked_callers": []},
        {"locked_callers": [NOISY, "api_key:ann"]},
        {"refused_others": 1},
        {"seconds_to_refusal": None},
        {"overshoot": 5},
    ],
    ids=str,
)
def test_a_run_with_a_broken_promise_is_not_successful(change: dict[str, object]) -> None:
    assert not dataclasses.replace(a_run(), **change).is_successful


def test_a_request_counted_for_another_caller_is_not_exact() -> None:
    responses = [a_response("api_key:ann", 1.0), a_response("api_key:bob", 1.0)]
    found = results_of(responses, {"api_key:ann": (2, 0)}, [], flood_began_s=0, limit=9, bound=0, gap_s=0)
    assert found.counted == found.produced == 2
    assert not found.exact


def test_the_bound_is_that_of_the_limiters_over_the_delay_of_a_lock() -> None:
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 1.2, in_flight=0) == 320
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 0.9, in_flight=7) == 167
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 0.9, in_flight=7, weight=2) == 334
    assert LockDelay(0.6, 0.1, 0.2, 0.1, 0.2, 0.5).total_s == pytest.approx(1.7)
