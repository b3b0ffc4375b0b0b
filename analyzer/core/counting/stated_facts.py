"""Facts that records state about their callers: the last value of each, and where its run of records began.

Nearly every caller states the same in all of its records. So each chunk of records is reduced to its
different pairs of a caller and what is stated about it, and only callers with several are read one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from analyzer.core.counting.caller_budget import NOT_CALLERS
from analyzer.core.model import FactRun, Moment, Partition, StatedFacts
from analyzer.core.records.value_rules import UNUSABLE

Values = tuple[str, ...]  # of each fact; "" for what is not stated


class FactLog:
    """The facts that one partition has stated since the last drain.

    Args:
        names: The facts, in the order of their columns.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = tuple(names)
        self._steady: dict[str, tuple[Values, Moment]] = {}
        self._varied: dict[str, list[FactRun | None]] = {}
        self._unusable: Counter[str] = Counter()

    def __len__(self) -> int:
        """The number of values in memory."""
        return (len(self._steady) + len(self._varied)) * len(self._names)

    def __bool__(self) -> bool:
        return bool(self._steady or self._varied or self._unusable)

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
        columns = [self._usable(name, column) for name, column in zip(self._names, facts, strict=True)]
        stated: Sequence[Values] = list(zip(*columns, strict=True))
        places: Sequence[int] = range(len(stated))
        if renamed:
            places = [place for place in places if not renamed[place]]
            callers, stated = [callers[place] for place in places], [stated[place] for place in places]
        single, several = self._changed(set(zip(callers, stated, strict=True)))
        if single:
            first = dict(zip(reversed(callers), reversed(places), strict=True))
            self._steady |= {caller: (values, moment(first[caller])) for caller, values in single.items()}
        if several:
            for place, caller, values in zip(places, callers, stated, strict=True):
                if caller in several:
                    self._vary(caller, values, moment, place)

    def of(self, part: Partition) -> StatedFacts:
        """Returns what was stated in the partition."""
        return StatedFacts(part, self._names, self._steady, self._varied, self._unusable)

    def _usable(self, name: str, column: Sequence[Any]) -> Sequence[str]:
        if UNUSABLE not in column:
            return column
        self._unusable[name] += column.count(UNUSABLE)
        return [value or "" for value in column]

    def _changed(self, pairs: Iterable[tuple[str, Values]]) -> tuple[dict[str, Values], set[str]]:
        """Returns what is stated of callers for the first time, and the callers with several statements."""
        single: dict[str, Values] = {}
        several: set[str] = set()
        silent: set[str] = set()  # some of their records state nothing, perhaps the first one
        for caller, values in pairs:
            known = self._steady.get(caller)
            if (known is not None and known[0] == values) or caller in NOT_CALLERS:
                continue
            if not any(values):
                silent.add(caller)
            elif known is not None or caller in single or caller in self._varied:
                several.add(caller)
            else:
                single[caller] = values
        several |= silent & single.keys()
        for caller in several:
            single.pop(caller, None)
        return single, several

    def _vary(self, caller: str, values: Values, moment: Callable[[int], Moment], place: int) -> None:
        runs = self._varied.get(caller)
        if runs is None:
            known, since = self._steady.pop(caller, ((), Moment(0, 0)))
            runs = [FactRun(value, since, is_only=True) if value else None for value in known]
            runs = self._varied[caller] = runs or [None] * len(self._names)
        for at, value in enumerate(values):
            run = runs[at]
            if value and (run is None or run.value != value):
                runs[at] = FactRun(value, moment(place), is_only=run is None)
