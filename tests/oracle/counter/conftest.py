"""The counters that are compared with the slow one."""

from __future__ import annotations

import pytest

from tests.support.counters import COUNTERS, CounterClass


@pytest.fixture(scope="session", params=COUNTERS)
def counter_class(request: pytest.FixtureRequest) -> CounterClass:
    """Each implementation of `Counter`."""
    return COUNTERS[request.param]
