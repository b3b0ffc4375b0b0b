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
