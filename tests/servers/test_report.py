"""The report of the servers that a run used, and of the tests that were left out."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed, left_out

CONFTEST = """
import pytest
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed

used = ServersUsed(in_ci={in_ci})

def pytest_configure(config):
    config.pluginmanager.register(used)

@pytest.fixture(scope="session")
def kafka():
    used.found("kafka", "native 4.3.1")

@pytest.fixture(scope="session")
def redis_server():
    used.lacks("redis", Missing("no redis-server"))

@pytest.fixture
def nginx():
    used.lacks("nginx", Missing("not installed"))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(4))
def test_kafka(kafka, n): pass

@pytest.mark.parametrize("n", range(3))
def test_redis(redis_server, n): pass

def test_nginx(nginx): pass

def test_other(): pytest.skip("for another reason")
"""


def run(pytester: pytest.Pytester, workers: str, *, in_ci: bool = False) -> list[str]:
    """Returns the lines that a run of TESTS prints."""
    pytester.makeconftest(CONFTEST.format(in_ci=in_ci))
    pytester.makepyfile(TESTS)
    return pytester.runpytest_subprocess(workers, "-pno:cacheprovider", f"--rootdir={pytester.path}").outlines


def test_a_mock_is_enough_except_under_ci() -> None:
    ServersUsed(in_ci=False).found("kafka", "mock", real=False)
    with pytest.raises(pytest.fail.Exception, match="kafka must be a real server"):
        ServersUsed(in_ci=True).found("kafka", "mock", real=False)


def test_a_missing_server_skips_and_fails_under_ci() -> None:
    with pytest.raises(pytest.skip.Exception, match="no java"):
        ServersUsed(in_ci=False).lacks("kafka", Missing("no java"))
    with pytest.raises(pytest.fail.Exception, match="no java"):
        ServersUsed(in_ci=True).lacks("kafka", Missing("no java"))


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_the_report_is_about_the_whole_run(pytester: pytest.Pytester, workers: str) -> None:
    lines = run(pytester, workers)
    (servers,) = [line for line in lines if line.startswith("servers: ")]
    assert "kafka native 4.3.1 (test_the_report_is_about_the_whole_run.py: 4)" in servers
    assert "redis none (no redis-server)" in servers
    assert lines[-1] == (
        "left out: 1 test that needs nginx (apt-get install nginx-light), "
        "3 tests that need redis (apt-get install redis-server)"
    )
    assert "4 passed, 5 skipped" in lines[-2]


def test_under_ci_nothing_is_left_out(pytester: pytest.Pytester) -> None:
    lines = run(pytester, "-n0", in_ci=True)
    assert "left out" not in "\n".join(lines)
    assert "4 passed, 1 skipped, 4 errors" in lines[-1]


def test_each_missing_server_has_its_packages() -> None:
    assert left_out(Counter(kafka=2, postgresql=1)) == (
        "left out: 2 tests that need kafka (apt-get install default-jre-headless maven), "
        "1 test that needs postgresql (apt-get install postgresql)"
    )
