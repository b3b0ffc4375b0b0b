"""Tests wait for conditions, with `tests.support.waiting`. A fixed sleep needs a reason here.

A fixed sleep is too short on a busy machine and too long on every other one.
"""

from __future__ import annotations

import re

from tests.house.reading import ROOT, tracked_files

VIRTUAL = "the clock of its event loop is virtual"
LIMITERS = "limiters on real threads, a real Redis or a yield of the event loop"
# Files, or folders with a slash at the end, and why they sleep.
SLEEPS = {
    "tests/store/database/test_poolers.py": "an analyzer counts for a second behind a pooler",
    "tests/gatekeeper/test_uwsgi.py": "no request may come, so nothing is polled",
    "tests/faults/starved_analyzer.py": "the share of a core is given by stopping and continuing a process",
    "tests/faults/test_deadlocks.py": "the length of a round of the run",
    "tests/interleavings/test_stage.py": "a test that hangs, in the text of a script",
    "tests/house/test_time_limits.py": "a test that hangs, in the text of a script",
    "tests/benchmarks/": "measures real time",
    "tests/cli/test_doctor.py": "the pace of requests in a process that runs until it is killed",
    "tests/cli/test_serve.py": "nothing shows from outside when a gate's next long poll has begun",
    "tests/examples/": "yields the event loop while a server is asked",
    "tests/cli/test_look.py": "a process that reads a pipe: nothing says that it waits for more",
    "tests/faults/fault_run.py": "the clock of the faults: the sequence runs in real time",
    "tests/faults/mutations.py": "a mutation that widens the moment in which a kill loses records",
    "tests/faults/test_outages.py": "the length of an outage, and a second of counting without a flush",
    "tests/faults/traffic.py": "the pace of the traffic",
    "tests/gatekeeper/adapters/": "applications that take their time to answer",
    "tests/gatekeeper/requestlog/": "applications and proxies in other processes",
    "tests/gatekeeper/test_close.py": "a gate polls for a while in another process before it is closed",
    "tests/gatekeeper/test_http.py": "servers and resolvers that answer late, or never",
    "tests/gatekeeper/test_startup.py": "turns of an event loop that must not be blocked",
    "tests/gatekeeper/test_testing_plugin.py": VIRTUAL,
    "tests/house/test_readme.py": "an analyzer runs for a while next to other commands",
    "tests/house/test_waits.py": "examples",
    "tests/store/transaction/test_activation.py": "milliseconds of a clock pass while a plan comes in force",
    "tests/kafka/test_silent_failures.py": "nothing may be logged for five seconds of failing attempts",
    "tests/web/test_shared_gzip.py": VIRTUAL,
    "tests/limits/": LIMITERS,
    "tests/web/test_refusals.py": "the database is away for two writes",
    "tests/support/installation.py": "the pause that the analyzer's loop asks for",
    "tests/support/proxy.py": "the delay of a slow network",
    "tests/support/servers/child.py": "waits until a server is ready or has ended",
    "tests/support/waiting.py": "the waits for a condition",
    "tests/web/test_bounded_connection.py": VIRTUAL,
    "tests/web/test_connections.py": "the pace of a slow client",
    "tests/web/test_feed_cache.py": VIRTUAL,
    "tests/web/test_locks_endpoint.py": "the duration of a read, in which another thread may come",
}
SLEEP = re.compile(r"\b(time|asyncio)\.sleep\(|from (time|asyncio) import .*\bsleep\b|Event\(\)\.wait\([\d.]")


def sleeping_files() -> set[str]:
    """Returns the test files that sleep, also within the text of a script."""
    paths = (path for path in tracked_files() if path.parts[0] == "tests" and path.suffix == ".py")
    return {str(path) for path in paths if SLEEP.search((ROOT / path).read_text())}


def permits(place: str, path: str) -> bool:
    return path.startswith(place) if place.endswith("/") else path == place


def test_each_sleep_has_a_reason() -> None:
    found = {path for path in sleeping_files() if not any(permits(place, path) for place in SLEEPS)}
    assert found == set(), "wait for a condition with tests.support.waiting"


def test_each_reason_is_needed() -> None:
    files = sleeping_files()
    assert {place for place in SLEEPS if not any(permits(place, path) for path in files)} == set()


def test_sleeps_are_found_in_code_and_in_scripts() -> None:
    for line in ("time.sleep(1)", "from time import sleep", "await asyncio.sleep(0.1)", "Event().wait(0.3)"):
        assert SLEEP.search(line)
    assert not SLEEP.search("ready.wait(10)")
