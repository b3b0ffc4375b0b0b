"""Facts that records state about callers and tenants: those that have changed, and the record of the change.

Nearly every record repeats what the caller's last one has stated. So a column of values is compared with the
last known ones at once, and only the callers with a difference are read record by record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from analyzer.counting.counter.caller_budget import NOT_CALLERS
from analyzer.kernel.model import FactRun, Moment, Partition, StatedFacts
from analyzer.plan.mapping import CALLER_FACTS, TENANT, TENANT_FACTS
from analyzer.plan.value_rules import UNUSABLE


class PartitionFacts:
    """The facts that one partition states, about callers and about tenants.

    Args:
        names: Those of the mapping, in the order of their columns.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        of_callers = [name for name in names if name in CALLER_FACTS]
        of_tenants = [name for name in names if name in TENANT_FACTS]
        self._columns = [[names.index(name) for name in kind] for kind in (of_callers, of_tenants)]
        self._tenant = names.index("tenant") if of_tenants else None
        self._logs = FactLog(of_callers), FactLog([TENANT_FACTS[name] for name in of_tenants])

    def __len__(self) -> int:
        """The number of values that the next drain returns, or more."""
        return sum(map(len, self._logs))

    @property
    def known(self) -> int:
        """The number of values in memory."""
        return sum(log.known for log in self._logs)

    def forget(self) -> None:
        """Forgets what was stated before the last drain: what is repeated is returned once more."""
        for log in self._logs:
            log.forget()

    def add(
        self,
        callers: Sequence[str],
        facts: Sequence[Sequence[Any]],
        renamed: Sequence[bool],
        moment: Callable[[int], Moment],
    ) -> None:
        """Adds what records state, as columns; `moment` returns when the record at an index was written.

        Records that are counted under another name than their own (`renamed`), or beyond the limit on names,
        state nothing about their callers.
        """
        of_callers, of_tenants = ([facts[index] for index in columns] for columns in self._columns)
        log, tenant_log = self._logs
        log.add(callers, of_callers, renamed, moment)
        if self._tenant is not None:
            tenants = [TENANT + name if name else "" for name in facts[self._tenant]]
            tenant_log.add(tenants, of_tenants, (), moment)

    def drain(self, part: Partition) -> list[StatedFacts]:
        """Returns what has changed since the last call, about callers and about tenants."""
        return [stated for log in self._logs if (stated := log.drain(part)) is not None]


class FactLog:
    """The facts that one partition states about one kind of names, and what has changed since the last drain.

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

        Those that are `renamed` state nothing, nor do those without a name.
        """
        touched: set[str] = set()
        for name, values_by_caller, column in zip(self._names, self._known, facts, strict=True):
            last_values = list(map(values_by_caller.get, callers))
            if last_values != column:
                self._unusable[name] += column.count(UNUSABLE)
                pairs = zip(callers, last_values, column, strict=True)
                touched |= {caller for caller, last, value in pairs if value and last != value}
        touched.difference_update(("", *NOT_CALLERS))
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
