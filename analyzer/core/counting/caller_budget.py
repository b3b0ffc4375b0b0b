"""The cardinality limit: selects the callers of a partition that are counted by name.

The rule and its reasons are in docs/decisions/0010. For each caller and hour, one record is the first that is
counted by name. Which one depends only on the earlier records of the partition, so that reading the log again
gives the same counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from analyzer.core.model import NO_HOUR, CounterState, NamedCallers, NamedHow

# The name of all callers beyond the limit. No caller can have it: a caller's name does not end with its
# colon.
OVERFLOW = "overflow:"
# The name of callers with few requests, whose old rows were joined; see store/operations/roll_up.py.
FOLDED = "folded:"
NOT_CALLERS = (OVERFLOW, FOLDED)  # rows of many callers: no policy judges them

HOUR_MS = 3_600_000
FAR_HOURS = 24  # a record further from the reached hour may have a wrong time
# So many more records far behind the reached hour than others show that the hour was wrong; so many far ahead
# of it, that time has passed: a topic that rests for a weekend.
BEHIND_RUN_MAX = 10_000
AHEAD_RUN_MAX = 100
NAMING_RULES: tuple[NamedHow, ...] = ("old", "new", "drawn")
FIBONACCI_MULTIPLIER, WORD_MASK = 0x9E3779B97F4A7C15, 2**64 - 1
DRAWN_BITS = 10  # one record in 1,024


class NamedHour:
    """The callers that are counted by name in one hour."""

    def __init__(self, number: int, *, stored: bool) -> None:
        self.number = number
        self.stored = stored  # whether the database holds what is not in `added`
        self.names: set[str] = set()
        self.used: dict[NamedHow, int] = dict.fromkeys(NAMING_RULES, 0)
        self.added: dict[NamedHow, list[str]] = {how: [] for how in NAMING_RULES}

    def add(self, how: NamedHow, callers: Iterable[str]) -> None:
        callers = list(callers)
        self.names.update(callers)
        self.used[how] += len(callers)
        self.added[how] += callers

    def drain(self) -> list[NamedCallers]:
        """Returns the callers that were added since the last call."""
        added = [
            NamedCallers(self.number, how, sorted(callers)) for how, callers in self.added.items() if callers
        ]
        self.added = {how: [] for how in NAMING_RULES}
        self.stored = True
        return added


class CallerBudget:
    """The callers of one partition that are counted by name: at most `callers_max` per rule and hour."""

    def __init__(self, callers_max: int, state: CounterState) -> None:
        self._max = callers_max
        self._behind_run = state.behind_run
        self._before = NamedHour(state.hour_before, stored=True)
        self._hour = NamedHour(state.hour, stored=True)
        for named in state.named:
            for hour in (self._before, self._hour):
                if hour.number == named.hour:
                    hour.add(named.how, set(named.callers) - hour.names)
        self._before.drain()
        self._hour.drain()

    def names_of(
        self,
        callers: list[str],
        times_ms: Sequence[int],
        span_ms: tuple[int, int],
        offsets: Callable[[], Sequence[int]],
    ) -> list[str]:
        """Returns the name under which each request is counted: its caller's, or OVERFLOW.

        The list `callers` itself when every caller is counted by name. `span_ms` is the earliest and the
        latest of `times_ms`, which is not empty.
        """
        first, last = (ms // HOUR_MS for ms in span_ms)
        if last == self._hour.number and first >= last - FAR_HOURS:
            run, near = self._behind_run, len(callers)
            if run:
                self._behind_run = max(0, run - near) if run > 0 else min(0, run + near)
            if self._all_fit(callers):
                return callers
            self._behind_run = run
        return [self._name(*request) for request in zip(callers, times_ms, offsets(), strict=True)]

    def drain(self) -> CounterState:
        """Returns the state for the records to come, with the names that are new since the last call."""
        hours = (self._before, self._hour)
        hours_to_keep = None
        if not all(hour.stored for hour in hours):
            hours_to_keep = tuple(hour.number for hour in hours if hour.stored)
        return CounterState(
            hour=self._hour.number,
            hour_before=self._before.number,
            behind_run=self._behind_run,
            named=[named for hour in hours for named in hour.drain()],
            kept=hours_to_keep,
        )

    def _all_fit(self, callers: list[str]) -> bool:
        """Names all callers at once. Returns False, and names none, if a limit would be exceeded."""
        hour = self._hour
        if hour.names.issuperset(callers):
            return True
        unnamed = set(callers) - hour.names
        old = unnamed & self._before.names
        new = unnamed - old
        if hour.used["old"] + len(old) > self._max or hour.used["new"] + len(new) > self._max:
            return False
        hour.add("old", old)
        hour.add("new", new)
        return True

    def _name(self, caller: str, ms: int, offset: int) -> str:
        self._advance_to(ms // HOUR_MS)
        hour = self._hour
        if caller in hour.names:
            return caller
        how: NamedHow = "old" if caller in self._before.names and hour.used["old"] < self._max else "new"
        if hour.used[how] >= self._max:
            if hour.used["drawn"] >= self._max or not is_drawn(offset):
                return OVERFLOW
            how = "drawn"
        hour.add(how, [caller])
        return caller

    def _advance_to(self, number: int) -> None:
        current, run = self._hour.number, self._behind_run
        if current == NO_HOUR or abs(number - current) <= FAR_HOURS:
            self._behind_run = run - (run > 0) + (run < 0)
            if number <= current:
                return
        else:
            # One absurd time neither moves the hour nor keeps it where it is wrong.
            self._behind_run = run = run + 1 if number < current else run - 1
            if not (run >= BEHIND_RUN_MAX if number < current else run <= -AHEAD_RUN_MAX):
                return
            self._behind_run = 0
        known = self._before if self._before.number == number else NamedHour(number, stored=False)
        self._before, self._hour = self._hour, known


def is_drawn(offset: int) -> bool:
    """Whether the record at `offset` gives its caller a name although the limit is reached: one in 1,024.

    Spread evenly and without a period (Fibonacci hashing; Knuth, TAOCP 3, 6.4).

    >>> [offset for offset in range(4000) if is_drawn(offset)]
    [0, 610, 1597, 3194]
    """
    return (offset * FIBONACCI_MULTIPLIER & WORD_MASK) >> (64 - DRAWN_BITS) == 0
