"""Time limits of tests and of a run; and which tests were slow, wrong, or not run.

A test is limited in the CPU time of its process: another load of the machine does not change that. A test
that waits for what never comes uses none, and ends by the wall clock, after `timeout` of pyproject.toml. A
run ends by itself when it has taken too long, or when several tests ran into a limit: more would say nothing.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import NotInTime

CPU_LIMIT_S = 60
# Folders whose tests explore, play or count a lot: ten times what their longest took alone.
CPU_LIMITS_S = {
    "tests/faults": 300,
    "tests/gatekeeper": 300,
    "tests/interleavings": 180,
    "tests/oracle": 300,
    "tests/scenarios": 400,
    "tests/simulation": 300,
    "tests/store": 200,
}
RUN_S = 75 * 60.0  # of 90 minutes; the last tests and the servers need the rest
SLOW_MAX = 5  # tests that ran into a limit, until the run ends
SHOWN_MAX = 40  # files in a list
BY_THE_CLOCK = "Timeout (>"  # how pytest-timeout begins
TOO_BUSY = "too busy"  # in errors of the product, about this machine
SLOW, LATE, WRONG = "slow (ran into a time limit)", "waited in vain (slow, or wrong)", "wrong"
VERDICTS = (SLOW, LATE, WRONG)


class TookTooLong(pytest.fail.Exception):
    """A test has used its CPU time."""


def cpu_limit_s(path: str, limits_s: Mapping[str, int] = CPU_LIMITS_S) -> int:
    """Returns the CPU seconds of a test in this file, by its folder."""
    return next(
        (limit_s for folder, limit_s in limits_s.items() if path.startswith(f"{folder}/")), CPU_LIMIT_S
    )


def reason_to_stop(elapsed_s: float, slow: int, run_s: float) -> str:
    """Returns why a run ends after this time, and this number of slow tests; "" to continue."""
    if elapsed_s > run_s:
        return f"the run has taken {elapsed_s / 60:.0f} minutes: more would not end in time"
    if slow >= SLOW_MAX:
        return f"{slow} tests ran into their time limits: this machine is too slow, or something hangs"
    return ""


def verdict_of(error: BaseException | None) -> str:
    """Returns what the failure of a test says about it: one of VERDICTS.

    A wait in vain does not tell a slow machine from what never comes, and no number of them ends a run.
    """
    by_the_clock = isinstance(error, pytest.fail.Exception) and str(error).startswith(BY_THE_CLOCK)
    if isinstance(error, TookTooLong) or by_the_clock:
        return SLOW
    return LATE if isinstance(error, NotInTime) or TOO_BUSY in str(error) else WRONG


def verdicts(failed: Mapping[str, str], not_run: Sequence[str]) -> list[str]:
    """Returns the last lines of a run that had failures, or did not come to its end.

    `failed` has the verdict about each test that failed.
    """
    lines = [f"{verdict}: {test}" for verdict in VERDICTS for test in failed if failed[test] == verdict]
    if not_run:
        files = Counter(test.partition("::")[0] for test in not_run)
        shown = [f"{name} ({count})" for name, count in files.most_common(SHOWN_MAX)]
        more = f" and {len(files) - SHOWN_MAX} files more" if len(files) > SHOWN_MAX else ""
        lines.append(f"not run: {len(not_run):,} tests: {', '.join(shown)}{more}")
    return lines


class TimeLimits:
    """A plugin that limits tests and the run, in each worker of pytest-xdist and in its controller.

    Args:
        run_s: After which the run ends by itself; None at night, when no number of slow tests ends it either.
        times: By which limits of tests are larger.
    """

    def __init__(self, config: pytest.Config, *, run_s: float | None, times: int = 1) -> None:
        given: Mapping[str, Any] = getattr(config, "workerinput", {})
        self._is_worker = bool(given)
        self._run_s, self._times = run_s, times
        self._began_s = given.get("began_s", time.time())
        # Exists when the run has to end; its text says why. All workers look at it.
        self._stop = Path(given.get("stop") or tempfile.mkdtemp(prefix="gatelock-tests-")) / "stop"
        self._left_s = 0.0  # CPU time of the test
        self._collected: dict[str, None] = {}
        self._finished: set[str] = set()
        self._failed: dict[str, str] = {}  # verdicts

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tells a worker when the run has begun."""
        node.workerinput |= {"began_s": self._began_s, "stop": str(self._stop.parent)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected |= dict.fromkeys(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected |= dict.fromkeys(item.nodeid for item in session.items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Ends the run after this test, if it is time."""
        path = item.path.relative_to(item.config.rootpath).as_posix()
        marked = item.get_closest_marker("cpu_limit")
        self._left_s = (marked.args[0] if marked else cpu_limit_s(path)) * self._times
        outcome = yield
        reason = self._reason()
        if not reason and self._run_s is not None:
            reason = reason_to_stop(
                time.time() - self._began_s, [*self._failed.values()].count(SLOW), self._run_s
            )
        if reason:
            self._stop.write_text(reason)
            item.session.shouldstop = reason
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        return (yield from self._limited())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        return (yield from self._limited())

    def _limited(self) -> Iterator[None]:
        """Fails a phase of a test that uses the CPU time that is left; what undoes it has no limit."""
        limit_s = self._left_s

        def fail(_number: int, _frame: object) -> None:
            raise TookTooLong(f"Timeout: more than the CPU time that was left of its limit, {limit_s:.0f} s")

        before = signal.signal(signal.SIGPROF, fail)
        signal.setitimer(signal.ITIMER_PROF, max(0.01, limit_s))
        try:
            return (yield)
        finally:
            self._left_s, _ = signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
        """Notes in the report what a failure says."""
        report = yield
        report.verdict = verdict_of(call.excinfo.value if call.excinfo else None)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._finished.add(report.nodeid)
        if report.failed:
            self._failed.setdefault(report.nodeid, getattr(report, "verdict", WRONG))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints what was slow, wrong and, of a run that did not come to its end, what was not run."""
        if self._is_worker:
            return
        reason = self._reason()
        not_run = [test for test in self._collected if test not in self._finished] if reason else []
        if reason:
            terminalreporter.write_line(f"the run was ended: {reason}", red=True)
        for line in verdicts(self._failed, not_run):
            terminalreporter.write_line(line)

    def _reason(self) -> str:
        """Returns why the run has to end, as a worker has written it; "" to continue."""
        return self._stop.read_text() if self._stop.exists() else ""

    def pytest_unconfigure(self) -> None:
        if not self._is_worker:
            self._stop.unlink(missing_ok=True)
            self._stop.parent.rmdir()
