"""Facts that records state about their callers: those that have changed, and the record that changed them.

Nearly every record repeats what the caller's last one has stated. So a column of values is compared with the
last known ones at once, and only the callers with a difference are read record by record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from analyzer.counting.counter.caller_budget import NOT_CALLERS
from analyzer.kernel.model import FactRun, Moment, Partition, StatedFacts
from analyzer.plan.value_rules import UNUSABLE


class FactLog:
    """The facts that one partition states, and those that have changed since the last drain.

    Args:
        names: The facts, in the order of their columns.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = tuple(names)
        self._known: list[dict[str, str]] = [{} for _ in names]  # of each fact, by caller
        self._runs: dict[str, list[FactRun | None]] = {}  # since the last drain
        self._unusable: Counter[str] = Counter()

    def __len__(self) -> int:
        """The number of values that the next drain returns, or more."""
        return len(self._runs) * len(self._names)

    @property
    def known(self) -> int:
        """The number of values in memory."""
        return sum(map(len, self._known))

    def forget(self) -> None:
        """Forgets what was stated before the last drain: what is repeated is returned once more."""
        self._known = [{} for _ in self._names]

    def add(
        self,
        callers: Sequence[str],
        facts: Sequence[Sequence[Any]],
        renamed: Sequence[bool],
        moment: Callable[[int], Moment],
    ) -> None:
        """Adds what records state, as columns; `moment` returns when the record at an index was written.

        Records that are counted under another name than their own (`renamed`), or beyond the limit on names,
        state nothing.
        """
        touched: set[str] = set()
        for name, values_by_caller, column in zip(self._names, self._known, facts, strict=True):
            last_values = list(map(values_by_caller.get, callers))
            if last_values != column:
                self._unusable[name] += column.count(UNUSABLE)
                pairs = zip(callers, last_values, column, strict=True)
                touched |= {caller for caller, last, value in pairs if value and last != value}
        touched.difference_update(NOT_CALLERS)
        if touched:
            for index, caller in enumerate(callers):
                if caller in touched and not (renamed and renamed[index]):
                    self._state(caller, [column[index] for column in facts], moment, index)

    def drain(self, part: Partition) -> StatedFacts | None:
        """Returns what has changed since the last call; None: nothing."""
        runs, unusable = self._runs, +self._unusable
        self._runs, self._unusable = {}, Counter()
        return StatedFacts(part, self._names, runs, unusable) if runs or unusable else None

    def _state(self, caller: str, values: Sequence[str], moment: Callable[[int], Moment], index: int) -> None:
        for position, value in enumerate(values):
            last = self._known[position].get(caller)
            if value and last != value:
                runs = self._runs.setdefault(caller, [None] * len(self._names))
                runs[position] = FactRun(value, moment(index), is_first=last is None)
                self._known[position][caller] = value
