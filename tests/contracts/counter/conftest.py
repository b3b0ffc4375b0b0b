"""Fixtures that build the counters which must keep to docs/spec/counter.md."""

from __future__ import annotations

from functools import partial

import pytest

from tests.oracle.counter.slow_counter import SlowCounter
from tests.support import counting
from tests.support.counters import COUNTERS, CounterClass
from tests.support.counting import Counted


@pytest.fixture(scope="session", params=[*COUNTERS, "slow"])
def counter_class(request: pytest.FixtureRequest) -> CounterClass:
    """Each implementation of `Counter`, and the slow one of the oracle.

    Called with mappings by source, groupings, meters and bounds.
    """
    return SlowCounter if request.param == "slow" else COUNTERS[request.param]


@pytest.fixture(scope="session")
def counted(counter_class: CounterClass) -> Counted:
    """`tests.support.counting.counted` with the counter under test."""
    return partial(counting.counted, counter_class=counter_class)
