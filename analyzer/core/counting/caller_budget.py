"""Which callers of a partition are counted by name, when there are too many for that.

The rule and its reasons: docs/decisions/0010. For a caller and an hour there is one record from which on it
is counted by name, and which one that is depends on the partition's earlier records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from analyzer.core.model import CounterState, NamedCallers, NamedHow

# Everybody else. Behind the colon of a caller there always is something, so that nobody has this name.
OVERFLOW = "overflow:"

HOUR_MS = 3_600_000
BEHIND_HOURS = 24
BEHIND_MAX = 10_000  # records in a row that are further behind: the hour was a mistake
WAYS: tuple[NamedHow, ...] = ("old", "new", "drawn")
MIX, WORD = 0x9E3779B97F4A7C15, 2**64 - 1
DRAWN_BITS = 10  # one record in 1,024


class NamedHour:
    """The callers that are counted by name in one hour."""

    def __init__(self, number: int, *, stored: bool) -> None:
        self.number = number
        self.stored = stored  # whether the database holds what is not in `added`
        self.names: set[str] = set()
        self.taken: dict[NamedHow, int] = dict.fromkeys(WAYS, 0)
        self.added: dict[NamedHow, list[str]] = {how: [] for how in WAYS}

    def add(self, how: NamedHow, callers: Iterable[str]) -> None:
        callers = list(callers)
        self.names.update(callers)
        self.taken[how] += len(callers)
        self.added[how] += callers

    def drain(self) -> list[NamedCallers]:
        """Who was added since the last call."""
        added = [
            NamedCallers(self.number, how, sorted(callers)) for how, callers in self.added.items() if callers
        ]
        self.added = {how: [] for how in WAYS}
        self.stored = True
        return added


class CallerBudget:
    """The callers of one partition that are counted by name: at most `callers_max` in each way and hour."""

    def __init__(self, callers_max: int, carried: CounterState) -> None:
        self._max = callers_max
        self._behind = carried.behind
        self._before = NamedHour(carried.before, stored=True)
        self._hour = NamedHour(carried.hour, stored=True)
        for named in carried.named:
            for hour in (self._before, self._hour):
                if hour.number == named.hour:
                    hour.add(named.how, set(named.callers) - hour.names)
        self._before.drain()
        self._hour.drain()

    def named(
        self,
        callers: list[str],
        times_ms: Sequence[int],
        span_ms: tuple[int, int],
        offsets: Callable[[], Sequence[int]],
    ) -> list[str]:
        """By which name each request is counted: its caller's, or that of the overflow. The same list when
        all have their own. `span_ms` is the earliest and the latest of `times_ms`; there are some."""
        first, last = (ms // HOUR_MS for ms in span_ms)
        if last == self._hour.number and first >= last - BEHIND_HOURS:
            self._behind = 0
            if self._all_fit(callers):
                return callers
        return [self._name(*each) for each in zip(callers, times_ms, offsets(), strict=True)]

    def drain(self) -> CounterState:
        """What the records to come depend on; of the names, those that are new since the last call."""
        hours = (self._before, self._hour)
        kept = None if all(hour.stored for hour in hours) else tuple(h.number for h in hours if h.stored)
        added = [named for hour in hours for named in hour.drain()]
        return CounterState(
            hour=self._hour.number, before=self._before.number, behind=self._behind, named=added, kept=kept
        )

    def _all_fit(self, callers: list[str]) -> bool:
        """Whether everybody has a name or can have one; then the order does not matter, and they have it."""
        hour = self._hour
        if hour.names.issuperset(callers):
            return True
        strangers = set(callers) - hour.names
        old = strangers & self._before.names
        new = strangers - old
        if hour.taken["old"] + len(old) > self._max or hour.taken["new"] + len(new) > self._max:
            return False
        hour.add("old", old)
        hour.add("new", new)
        return True

    def _name(self, caller: str, ms: int, offset: int) -> str:
        self._come_to(ms // HOUR_MS)
        hour = self._hour
        if caller in hour.names:
            return caller
        how: NamedHow = "old" if caller in self._before.names and hour.taken["old"] < self._max else "new"
        if hour.taken[how] >= self._max:
            if hour.taken["drawn"] >= self._max or not is_drawn(offset):
                return OVERFLOW
            how = "drawn"
        hour.add(how, [caller])
        return caller

    def _come_to(self, number: int) -> None:
        current = self._hour.number
        self._behind = self._behind + 1 if number < current - BEHIND_HOURS else 0
        if number <= current and self._behind < BEHIND_MAX:
            return
        self._behind = 0
        again = self._before if self._before.number == number else NamedHour(number, stored=False)
        self._before, self._hour = self._hour, again


def of_callers(grouping: str) -> bool:
    """Whether the key of `grouping` is a caller, so that it may be the overflow."""
    return grouping.partition("+")[0] == "caller"


def is_drawn(offset: int) -> bool:
    """Whether the record at `offset` gets its caller a name: one in 1,024, spread evenly and without a
    rhythm (Fibonacci hashing; Knuth, TAOCP 3, 6.4).

    >>> [offset for offset in range(4000) if is_drawn(offset)]
    [0, 610, 1597, 3194]
    """
    return (offset * MIX & WORD) >> (64 - DRAWN_BITS) == 0
