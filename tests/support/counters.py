"""The implementations of `Counter` under test.

Another implementation is added by one line in COUNTERS. It then runs through the contract suite
(tests/contracts/counter), as the oracle's slow counter does, and is compared with that slow counter on
generated records (tests/oracle/counter).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from analyzer.counting.counter.counter import PythonCounter
from analyzer.kernel.model import Counter

# Takes mappings by source, names of groupings, meters, and slots and bounds by keyword: `PythonCounter`
# describes them.
CounterClass = Callable[..., Counter]

COUNTERS: Mapping[str, CounterClass] = {"python": PythonCounter}

# The counter of analyzers, for tests with another subject.
reference_counter: CounterClass = COUNTERS["python"]
