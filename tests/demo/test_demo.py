"""`gatelock demo` as a newcomer runs it, and what it makes of its figures."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from analyzer.core.judging.delay_bound import FrontLimiter, LockDelay, overshoot_max
from analyzer.core.model import Partition
from analyzer.demo.load_generator import NOISY, ClientResponse
from analyzer.demo.processes import POLICY
from analyzer.demo.results import DemoResults, findings_of, sentences
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
def test_the_demonstration_keeps_every_promise_on_what_it_brings_along() -> None:
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
    assert bound < next(n for n, step in enumerate(steps) if "storm" in step and "starts" in step)


@pytest.mark.slow
def test_it_runs_on_a_real_kafka_and_a_real_postgresql_too(real_kafka: object, postgres: object) -> None:
    ran = demo("--kafka", real_kafka.bootstrap, "--database", postgres.new_database())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *_, counted, killed, refused, others = ran.stdout.splitlines()
    assert "as many as it sent" in counted
    assert "counted again" in killed
    assert "slipped through, of at most" in refused
    assert others.endswith("none of them was ever refused.")


def test_a_broker_that_is_not_there_is_one_clear_sentence() -> None:
    ran = demo("--kafka", "127.0.0.1:9", "--json")
    assert ran.returncode == 3
    assert "127.0.0.1:9" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_database_in_which_somebody_counts_is_left_alone(migrated_url: str) -> None:
    engine = open_engine(migrated_url)
    part = Partition("cluster", "topic-id", 0, "log", "their-log")
    SqlStore(engine, "them").begin(part, 0)
    engine.dispose()
    ran = demo("--database", migrated_url)
    assert ran.returncode == 3
    assert "their-log" in ran.stderr


def an_answer(caller: str, at_s: float, status: int = 200, policy: str = "") -> ClientResponse:
    return ClientResponse(caller, at_s, 0.02, status, policy)


def a_story() -> DemoResults:
    """The noisy caller may send 3: it sends 5 at 1, 2, 3, 4, 5 and is refused at 6; ann sends one."""
    answers = [an_answer(NOISY, float(second)) for second in range(1, 6)]
    answers += [an_answer(NOISY, 6.0, 429, POLICY), an_answer("api_key:ann", 2.5)]
    counted = {NOISY: (5, 1), "api_key:ann": (1, 0)}
    return findings_of(answers, counted, [NOISY], storm_s=0.5, limit=3, bound=4, gap_s=1.25)


def test_what_slipped_through_and_how_late_the_gate_closed() -> None:
    found = a_story()
    assert found.held
    assert (found.overshoot, found.seconds_to_refusal) == (2, 3.0)
    assert len(sentences(found, 3)) == 4


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
def test_a_promise_that_did_not_hold_is_said(change: dict[str, object]) -> None:
    assert not dataclasses.replace(a_story(), **change).held


def test_one_request_that_was_counted_for_somebody_else_is_not_exact() -> None:
    answers = [an_answer("api_key:ann", 1.0), an_answer("api_key:bob", 1.0)]
    found = findings_of(answers, {"api_key:ann": (2, 0)}, [], storm_s=0, limit=9, bound=0, gap_s=0)
    assert found.counted == found.produced == 2
    assert not found.exact


def test_the_bound_is_the_limiters_own_times_what_the_waits_allow() -> None:
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 1.2, in_flight=0) == 320
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 0.9, in_flight=7) == 167
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 0.9, in_flight=7, weight=2) == 334
    assert LockDelay(0.6, 0.1, 0.2, 0.1, 0.2, 0.5).total_s == pytest.approx(1.7)
