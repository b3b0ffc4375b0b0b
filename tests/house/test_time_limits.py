"""Limits of tests and of runs, and what a run says about slow and wrong tests."""

from __future__ import annotations

import pytest

from tests.house.reading import ROOT
from tests.support.time_limits import CPU_LIMITS_S, RUN_S, SLOW_MAX, cpu_limit_s, reason_to_stop, verdicts

CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support import time_limits

def pytest_configure(config):
    config.pluginmanager.register(time_limits.TimeLimits(config, run_s={{run_s}}))
"""
INI = "[pytest]\nmarkers =\n    cpu_limit: of one test\n"
TESTS = """
import time
import pytest

@pytest.mark.cpu_limit(0.1)
def test_counts():
    while True:
        pass

@pytest.mark.timeout(1)
def test_waits():
    time.sleep(60)

def test_waits_in_vain():
    from tests.support.waiting import wait_until
    wait_until(lambda: False, 0.1)

def test_is_wrong():
    assert 1 == 2

def test_is_fine():
    pass
"""


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_the_limit_of_a_test_is_that_of_its_folder() -> None:
    assert cpu_limit_s("tests/cli/test_doctor.py") == 60
    assert cpu_limit_s("tests/interleavings/test_orders.py") == CPU_LIMITS_S["tests/interleavings"]
    assert cpu_limit_s("tests/storefront/test_a.py") == 60
    assert all((ROOT / folder).is_dir() for folder in CPU_LIMITS_S)


def test_a_run_ends_after_its_time_or_when_tests_hang() -> None:
    assert reason_to_stop(74 * 60, SLOW_MAX - 1, RUN_S) == ""
    assert "76 minutes" in reason_to_stop(76 * 60, 0, RUN_S)
    assert "hangs" in reason_to_stop(60, SLOW_MAX, RUN_S)


def test_tests_that_were_not_run_are_counted_by_file() -> None:
    assert verdicts({}, []) == []
    assert verdicts({}, ["a.py::x", "a.py::y", "b.py::x"]) == ["not run: 3 tests: a.py (2), b.py (1)"]
    assert verdicts({}, [f"{n}.py::x" for n in range(50)])[0].endswith("and 10 files more")


def test_a_run_names_slow_tests_apart_from_wrong_ones(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST.format(run_s=3600))
    pytester.makepyfile(test_them=TESTS)
    done = pytester.runpytest_subprocess("-p", "pytest_timeout")
    done.assert_outcomes(passed=1, failed=4)
    done.stdout.fnmatch_lines([
        "slow (ran into a time limit): test_them.py::test_counts",
        "slow (ran into a time limit): test_them.py::test_waits",
        "waited in vain (slow, or wrong): test_them.py::test_waits_in_vain",
        "wrong: test_them.py::test_is_wrong",
    ])  # fmt: skip
    done.stdout.no_fnmatch_line("not run:*")


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_run_that_takes_too_long_ends_with_the_list_of_what_was_not_run(
    pytester: pytest.Pytester, workers: str
) -> None:
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST.format(run_s=0))
    pytester.makepyfile(test_many="\n".join(f"def test_{n}(): pass" for n in range(20)))
    done = pytester.runpytest_subprocess("-p", "xdist", workers)
    assert done.ret != 0
    done.stdout.fnmatch_lines(
        ["the run was ended: the run has taken*", "not run: 1? tests: test_many.py (1?)"]
    )
