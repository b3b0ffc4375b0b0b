"""CPU seconds by folder of tests, compared with their budget, at the end of a run.

Those of a test are of its process and of what it started that has ended meanwhile: a server that outlives the
test is not among them; those that end with a worker's last test have a separate line. `tests/budget.toml` has
the seconds of each folder in `make test`. A folder whose part of the whole run has grown by a fifth is named,
in red; its part, because machines differ in speed.
"""

from __future__ import annotations

import resource
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import gatelock_processes

ROOT = Path(__file__).parents[2]
BUDGET = ROOT / "tests" / "budget.toml"
ALL = ROOT / ".cache" / "cpu_seconds.txt"
NAME = "cpu seconds"
SHARED = "shared servers"  # they end with the last test of a worker
PART_TIMES = 1.2
LARGEST = 10
WHOLE_RUN = 3  # items; of fewer the sum says nothing


def used_s() -> float:
    """Returns the CPU seconds of this process and of what it started that has ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + gatelock_processes.used_s()


def folder(nodeid: str) -> str:
    """Returns the folder of a test: the first below tests.

    >>> folder("tests/store/days/test_closing.py::test_a_day[sqlite]"), folder("README.md::README.md")
    ('store', 'README.md')
    """
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else parts[0]


class CpuMeter:
    """A plugin of pytest: measures in each worker, adds up and reports in the process that began the run."""

    def __init__(self, *, is_compared: bool) -> None:
        """`is_compared` says whether the run is to keep to the budget."""
        self._is_compared = is_compared
        self._began_s = used_s()
        self._shared_s = 0.0
        self._cpu_s: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Iterator[None]:
        began_s = used_s()
        try:
            yield
        finally:
            self._shared_s = used_s() - began_s if nextitem is None else 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
        report: Any = yield
        if call.when == "teardown":
            ended_s = used_s()
            report.user_properties.append((NAME, ended_s - self._began_s - self._shared_s))
            report.user_properties.append((SHARED, self._shared_s))
            self._began_s = ended_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            seconds = dict(report.user_properties)
            self._cpu_s[report.nodeid] += seconds.get(NAME, 0.0)
            self._cpu_s[SHARED] += seconds.get(SHARED, 0.0)

    def _by_folder(self) -> Counter[str]:
        seconds: Counter[str] = Counter()
        for nodeid, cpu_s in self._cpu_s.items():
            seconds[folder(nodeid)] += cpu_s
        return seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if len(self._cpu_s) <= WHOLE_RUN:
            return
        seconds, budget = self._by_folder(), read_budget()
        speed = self._cpu_s.total() / sum(budget.values())
        items = Counter(map(folder, self._cpu_s))
        terminalreporter.write_sep("-", f"CPU: {self._cpu_s.total():,.0f} s of {sum(budget.values()):,} s")
        for name, cpu_s in seconds.most_common():
            is_above = self._is_compared and cpu_s > budget.get(name, 0) * speed * PART_TIMES
            tests = "" if name == SHARED else f", {items[name]:6,} tests"
            line = f"{name:16}{cpu_s:7.0f} s of {budget.get(name, 0):4} s{tests}"
            terminalreporter.write_line(line + ("  ABOVE its budget" if is_above else ""), red=is_above)
        lines = [f"{cpu_s:7.1f} s  {nodeid}" for nodeid, cpu_s in self._cpu_s.most_common()]
        for line in lines[:LARGEST]:
            terminalreporter.write_line(line)
        ALL.parent.mkdir(exist_ok=True)
        ALL.write_text("\n".join(lines) + "\n")
        terminalreporter.write_line(f"all tests: {ALL.relative_to(ROOT)}")


def read_budget() -> dict[str, int]:
    """Returns the CPU seconds of each folder."""
    budget: dict[str, int] = tomllib.loads(BUDGET.read_text())["cpu_seconds"]
    return budget
