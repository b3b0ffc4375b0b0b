"""Which server a run used, and what counts where a change is judged."""

from __future__ import annotations

import pytest

from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed


def test_a_mock_will_do_at_home_but_not_under_ci() -> None:
    ServersUsed(in_ci=False).found("kafka", "mock", real=False)
    with pytest.raises(pytest.fail.Exception, match="kafka must be a real one"):
        ServersUsed(in_ci=True).found("kafka", "mock", real=False)


def test_a_server_that_is_lacking_skips_at_home_and_fails_under_ci() -> None:
    with pytest.raises(pytest.skip.Exception, match="no java"):
        ServersUsed(in_ci=False).lacks("kafka", Missing("no java"))
    with pytest.raises(pytest.fail.Exception, match="no java"):
        ServersUsed(in_ci=True).lacks("kafka", Missing("no java"))


def test_what_several_processes_used_is_told_as_one(pytester: pytest.Pytester) -> None:
    """Tests are shared among processes; the last lines are still about the whole run."""
    pytester.makeconftest(
        """
        import pytest
        from tests.support.servers.report import ServersUsed

        used = ServersUsed(in_ci=False)

        def pytest_configure(config):
            config.pluginmanager.register(used)

        @pytest.fixture
        def kafka():
            used.found("kafka", "native 4.3.1")
        """
    )
    pytester.makepyfile("import pytest\n\n@pytest.mark.parametrize('n', range(4))\ndef test(kafka, n): pass")
    told = pytester.runpytest_subprocess("-n2", "-pno:cacheprovider", f"--rootdir={pytester.path}")
    last = [line for line in told.outlines if line.startswith("servers: kafka native 4.3.1")]
    assert [line.endswith(": 4)") for line in last] == [True]
