"""`gatelock demo` as a newcomer runs it, and its results."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from analyzer.delays.delay_bound import FrontLimiter, LockDelay, overshoot_max
from analyzer.demo.load_generator import CALLERS, NOISY, ClientResponse, LoadGenerator, NoAnswer
from analyzer.demo.processes import POLICY
from analyzer.demo.results import DemoResults, is_behind, measure_run, summary
from analyzer.demo.traffic_size import TrafficSize, size_for
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.model import Partition

FIELDS = {
    "produced", "counted", "exact", "late", "speed", "limit", "locked_callers", "refused_others",
    "seconds_to_refusal", "overshoot", "overshoot_bound", "assumed_delay_s", "delay_s", "others_p95_ms",
    "analyzer_gap_s",
}  # fmt: skip


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "analyzer.faces.cli", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_the_demo_succeeds_on_the_servers_that_it_starts() -> None:
    ran = demo("--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found.keys() == FIELDS
    assert found["exact"]
    assert found["produced"] == found["counted"] > 100
    assert found["locked_callers"] == [NOISY]
    assert found["refused_others"] == 0
    assert found["seconds_to_refusal"] > 0
    assert found["overshoot"] <= found["overshoot_bound"]
    assert found["analyzer_gap_s"] > 0
    if found["speed"] == 1:  # elsewhere the flood is too small to delay others
        waits = found["others_p95_ms"]
        assert waits["during"] > 1.5 * waits["before"]
        assert waits["after"] < waits["during"]
    steps = [line[8:] for line in ran.stderr.splitlines() if " s  " in line[:10]]
    computed = next(n for n, step in enumerate(steps) if "computed, before the flood" in step)
    assert computed < next(n for n, step in enumerate(steps) if "flood" in step and "starts" in step)


@pytest.mark.slow
@pytest.mark.deep("the demo with its own servers is another test")
def test_the_demo_runs_on_a_given_kafka_and_postgresql(real_kafka: object, postgres: object) -> None:
    arguments = ("--kafka", real_kafka.bootstrap, "--database", postgres.new_database(), "--stay")
    with subprocess.Popen(
        [sys.executable, "-m", "analyzer.faces.cli", "demo", *arguments], stdout=subprocess.PIPE, text=True
    ) as ran:
        try:
            address = next(found[0] for line in ran.stdout if (found := re.search(r"http://\S+", line)))
            token = next(found[0] for line in ran.stdout if (found := re.search(r"gatelock_\S+", line)))
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            asked = urllib.request.Request(f"{address}v1/locks/list", headers=headers)  # noqa: S310
            with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310
                locks = json.load(answer)["items"]
            body = json.dumps({"caller": NOISY, "reason": "the demo is over"}).encode()
            act = urllib.request.Request(f"{address}v1/locks/unlock", body, headers)  # noqa: S310
            with urllib.request.urlopen(act, timeout=20) as answer:  # noqa: S310
                assert [lock["changed"] for lock in json.load(answer)["locks"]] == [True]
            ran.send_signal(signal.SIGINT)
            printed = ran.communicate(timeout=60)[0]
        finally:
            ran.kill()  # has ended, unless something above has failed
    assert ran.returncode == 0, printed
    assert [(lock["key"], lock["policy"]) for lock in locks] == [(NOISY, POLICY)]
    *_, counted, killed, refused, others = printed.splitlines()
    assert "as many as it sent" in counted
    assert "counted again" in killed
    assert "beyond it, of at most" in refused
    assert "NOT COUNTED" not in printed
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


USUAL, TENTH = TrafficSize(1.0), TrafficSize(0.1)


def a_noisy_run(admitted_s: Sequence[float], size: TrafficSize = USUAL) -> DemoResults:
    """The noisy caller reaches its limit at second 0, is admitted at some times more, and refused once."""
    responses = [a_response(NOISY, at / size.limit) for at in range(1 - size.limit, 1)]
    responses += [a_response(NOISY, at_s) for at_s in admitted_s]
    responses += [a_response(NOISY, 3.0, 429, POLICY), a_response("api_key:ann", 2.5)]
    counted = {NOISY: (size.limit + len(admitted_s), 1), "api_key:ann": (1, 0)}
    return measure_run(responses, counted, [NOISY], flood_began_s=-2, size=size, gap_s=1.25)


def test_the_overshoot_and_the_delay_of_the_refusal() -> None:
    results = a_noisy_run([1.0, 2.0])
    assert results.is_successful
    assert (results.overshoot, results.seconds_to_refusal, results.delay_s) == (2, 3.0, 2.0)
    assert len(summary(results)) == 4


def test_a_lock_that_took_longer_than_assumed_is_compared_with_the_bound_of_its_delay() -> None:
    results = a_noisy_run([number / 10 for number in range(1, 120)])
    assert results.delay_s == 11.9 > results.assumed_delay_s == 2.9
    assert results.overshoot_bound == USUAL.overshoot_bound(11.9) == 4 * 20 * 12 + 24
    assert results.is_successful
    assert "this machine is busy" in summary(results)[2]
    assert "busy" not in summary(a_noisy_run([1.0]))[2]


def test_more_than_limiters_can_admit_is_a_broken_promise() -> None:
    assert a_noisy_run([0.5] * USUAL.overshoot_bound(2.9)).is_successful
    assert not a_noisy_run([0.5] * (USUAL.overshoot_bound(2.9) + 1)).is_successful


@pytest.mark.parametrize(
    ("counted", "lag", "is_late"),
    [
        ({NOISY: (1, 0)}, 3, True),
        ({NOISY: (1, 0)}, None, True),  # the analyzer does not answer
        ({}, 3, True),
        ({NOISY: (1, 0)}, 0, False),  # nothing is left to read: a record is lost
        ({NOISY: (3, 1)}, 3, False),
        ({NOISY: (2, 1)}, 3, False),  # equal
        ({"api_key:bob": (1, 0)}, 3, False),
    ],
)
def test_late_counts_differ_from_wrong_ones(
    counted: dict[str, tuple[int, int]], lag: int | None, is_late: bool
) -> None:
    assert is_behind(counted, {NOISY: (2, 1)}, lag) is is_late


def test_the_summary_says_late_or_wrong() -> None:
    late = dataclasses.replace(a_noisy_run([]), exact=False, late=True)
    wrong = dataclasses.replace(a_noisy_run([]), exact=False, late=False)
    assert "NOT COUNTED YET" in summary(late)[0]
    assert "WRONG" in summary(wrong)[0]
    assert not late.is_successful


def test_the_counts_of_the_time_afterwards_take_the_place_of_the_first_ones() -> None:
    sent = Counter({(NOISY, False): 5, (NOISY, True): 2})
    later = a_noisy_run([]).with_counts(sent, {NOISY: (5, 2)}, 0)
    assert (later.exact, later.produced, later.counted) == (True, 7, 7)
    behind = a_noisy_run([]).with_counts(sent, {NOISY: (5, 1)}, 1)
    assert (behind.exact, behind.late, behind.counted) == (False, True, 6)


def test_traffic_is_sized_to_the_speed_of_the_machine() -> None:
    assert size_for(0.0001) == USUAL
    assert (USUAL.limit, USUAL.limiter, USUAL.connections) == (2_400, FrontLimiter(20, 1.0, 4), 24)
    assert (TENTH.limit, TENTH.limiter, TENTH.connections) == (100, FrontLimiter(2, 1.0, 2), 2)
    assert USUAL.interval_s == 1
    assert TENTH.interval_s == pytest.approx(31.6, abs=0.1)
    assert TENTH.patience_s(30) == 300
    assert size_for(60.0).speed == 0.02


async def answered(load: LoadGenerator, seconds: float) -> None:
    """Runs the callers against an application that answers at once."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    load.ports = [server.sockets[0].getsockname()[1]]
    running = asyncio.create_task(load.run())
    await asyncio.wait([running], timeout=seconds)
    load.stopped.set()
    await running
    server.close()


def test_callers_wait_when_too_much_is_not_counted_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.demo.load_generator.BACKLOG_MAX", 50)
    load = LoadGenerator([], Random(1), USUAL, is_flooding=True)
    asyncio.run(answered(load, 0.5))
    assert 50 <= load.backlog <= 50 + USUAL.connections + CALLERS
    assert load.is_idle


def test_the_noisy_caller_sends_no_more_than_it_may() -> None:
    load = LoadGenerator([], Random(1), TENTH, is_flooding=True, noisy_left=7)
    asyncio.run(answered(load, 0.3))
    assert load.sent[NOISY, False] == 7


def test_an_application_that_does_not_answer_ends_the_load() -> None:
    with pytest.raises(NoAnswer, match="port 9"):
        asyncio.run(LoadGenerator([9], Random(1), USUAL).run())


@pytest.mark.parametrize(
    "change",
    [
        {"exact": False},
        {"locked_callers": []},
        {"locked_callers": [NOISY, "api_key:ann"]},
        {"refused_others": 1},
        {"seconds_to_refusal": None},
        {"overshoot": 10_000},
    ],
    ids=str,
)
def test_a_run_with_a_broken_promise_is_not_successful(change: dict[str, object]) -> None:
    assert not dataclasses.replace(a_noisy_run([]), **change).is_successful


def test_a_request_counted_for_another_caller_is_not_exact() -> None:
    responses = [a_response("api_key:ann", 1.0), a_response("api_key:bob", 1.0)]
    results = measure_run(responses, {"api_key:ann": (2, 0)}, [], flood_began_s=0, size=USUAL, gap_s=0)
    assert results.counted == results.produced == 2
    assert not results.exact
    assert not results.late


def test_the_bound_is_that_of_the_limiters_over_the_delay_of_a_lock() -> None:
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 1.2, in_flight=0) == 320
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 0.9, in_flight=7) == 167
    assert overshoot_max(FrontLimiter(20, 1.0, 8), 0.9, in_flight=7, weight=2) == 334
    assert LockDelay(0.6, 0.1, 0.2, 0.1, 0.2, 0.5).total_s == pytest.approx(1.7)
