"""The cardinality limit: selects the callers of a partition that are counted by name.

The rule and its reasons are in docs/decisions/0010. Which callers have a name depends only on the earlier
records of the partition, so that reading the log again gives the same counts.

Each kind of name (`api_key`, `user`, `address`) has separate budgets, so that many names of one kind take no
room of another. Paths of a source without routes are names of one more kind, `resource`, and the texts of
each named value of another one. Names by the rules "old" and "new" last for the hour. Those by the rule
"drawn" are an LRU cache whose uses are sampled: a record at a drawn offset gives its caller a name, or makes
the name the most recent one, and the least recent name makes room. Sampling keeps the stored state small: one
name per 1,024 offsets at most.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from analyzer.kernel.model import NO_HOUR, CounterState, NamedCallers, NamedHow

# The name of all callers beyond the limit. No caller can have it: a caller's name does not end with its
# colon.
OVERFLOW = "overflow:"
# The name of callers with few requests, whose old rows were joined; see store/operations/roll_up.py.
FOLDED = "folded:"
# In front of a resource among the names; no field of a caller is called so.
OF_RESOURCE = "resource:"
# The same for a text of a named value: no field's name has a slash.
OF_VALUE = "value/{name}:"
NOT_CALLERS = (OVERFLOW, FOLDED)  # rows of many callers: no policy judges them

HOUR_MS = 3_600_000
FAR_HOURS = 24  # a record further from the reached hour may have a wrong time
# So many more records far behind the reached hour than others show that the hour was wrong; so many far ahead
# of it, that time has passed: a topic that rests for a weekend.
BEHIND_RUN_MAX = 10_000
AHEAD_RUN_MAX = 100
NAMING_RULES: tuple[NamedHow, ...] = ("old", "new", "drawn")
BLOCK_BITS = 10  # one offset of each 1,024 is drawn
BLOCK_MASK = (1 << BLOCK_BITS) - 1


class ChosenNames(NamedTuple):
    """A column of texts that clients choose, which are bounded in number as callers are."""

    prefix: str  # in front of each among the names
    texts: list[str]  # an empty one needs no name

    @property
    def typed(self) -> set[str]:
        """Returns the texts as they stand among the names of callers.

        >>> sorted(ChosenNames(OF_RESOURCE, ["/a", "", "/b", "/a"]).typed)
        ['resource:/a', 'resource:/b']
        """
        return {self.prefix + text for text in set(self.texts) if text}


class NamedHour:
    """The callers that are counted by name in one hour."""

    def __init__(self, number: int, *, stored: bool) -> None:
        self.number = number
        self.stored = stored  # whether the database holds what is not in `added`
        self.names: set[str] = set()
        self.total: dict[NamedHow, int] = {"old": 0, "new": 0}
        self.used: dict[NamedHow, Counter[str]] = {"old": Counter(), "new": Counter()}  # by kind
        self.unsorted: dict[NamedHow, list[str]] = {"old": [], "new": []}  # not in `used` yet
        self.drawn: dict[str, OrderedDict[str, None]] = {}  # by kind; the caller drawn last is at the end
        self.added: dict[NamedHow, list[str]] = {how: [] for how in NAMING_RULES}

    def add(self, how: NamedHow, callers: Collection[str]) -> None:
        """Names callers by the rule "old" or "new"."""
        self.names.update(callers)
        self.total[how] += len(callers)
        self.unsorted[how] += callers
        self.added[how] += callers

    def has_room(self, how: NamedHow, callers: Collection[str], callers_max: int) -> bool:
        """Whether the rule "old" or "new" may name all of `callers`."""
        if self.total[how] + len(callers) <= callers_max:
            return True
        used = self._used_by_kind(how)
        return all(used[kind] + number <= callers_max for kind, number in count_kinds(callers).items())

    def is_full(self, how: NamedHow, kind: str, callers_max: int) -> bool:
        """Whether the rule "old" or "new" may name no further caller of a kind."""
        return self.total[how] >= callers_max and self._used_by_kind(how)[kind] >= callers_max

    def _used_by_kind(self, how: NamedHow) -> Counter[str]:
        # Sorted by kind only when there are too many callers of all kinds together: ordinarily never.
        used, unsorted = self.used[how], self.unsorted[how]
        if unsorted:
            used += count_kinds(unsorted)
            unsorted.clear()
        return used

    def draw(self, caller: str, callers_max: int) -> None:
        """Names a caller by the rule "drawn", or makes it the one drawn last; the first one makes room."""
        drawn = self.drawn.setdefault(caller_kind(caller), OrderedDict())
        drawn[caller] = None
        drawn.move_to_end(caller)
        self.names.add(caller)
        self.added["drawn"].append(caller)
        if len(drawn) > callers_max:
            self.names.discard(drawn.popitem(last=False)[0])

    def is_drawn(self, caller: str) -> bool:
        """Whether the caller has its name by the rule "drawn"."""
        return caller in self.drawn.get(caller_kind(caller), ())

    def drain(self) -> list[NamedCallers]:
        """Returns the callers that were added since the last call."""
        # Only the last time that a caller was drawn matters.
        drawn = [*dict.fromkeys(reversed(self.added["drawn"]))][::-1]
        ordered: dict[NamedHow, list[str]] = {
            "old": sorted(self.added["old"]), "new": sorted(self.added["new"]), "drawn": drawn
        }  # fmt: skip
        self.added = {how: [] for how in NAMING_RULES}
        self.stored = True
        return [NamedCallers(self.number, how, callers) for how, callers in ordered.items() if callers]


class CallerBudget:
    """The callers of one partition that are counted by name.

    At most `callers_max` at a time for each rule, kind of name and hour.
    """

    def __init__(self, callers_max: int, state: CounterState) -> None:
        self._max = callers_max
        self._behind_run = state.behind_run
        self._before = NamedHour(state.hour_before, stored=True)
        self._hour = NamedHour(state.hour, stored=True)
        for entry in sorted(state.named, key=lambda entry: entry.how == "drawn"):
            for hour in (self._before, self._hour):
                if hour.number == entry.hour:
                    self._restore(hour, entry)
        self._before.drain()
        self._hour.drain()

    def _restore(self, hour: NamedHour, entry: NamedCallers) -> None:
        if entry.how != "drawn":
            hour.add(entry.how, set(entry.callers) - hour.names)
            return
        for caller in entry.callers:
            if caller not in hour.names or hour.is_drawn(caller):
                hour.draw(caller, self._max)

    def names_to_count(
        self,
        callers: list[str],
        times_ms: Sequence[int],
        span_ms: tuple[int, int],
        offsets: Sequence[int],
        chosen: Sequence[ChosenNames] = (),
    ) -> tuple[list[str], list[list[str]]]:
        """Returns the names under which each request is counted: its caller's, and its chosen texts.

        OVERFLOW takes the place of what has no name. The given lists themselves when everything is counted by
        name. `span_ms` is the earliest and the latest of `times_ms`, which is not empty. `chosen` has the
        columns of resources and named values that are not bounded already.
        """
        if self._stays_in_hour(span_ms):
            run, near = self._behind_run, len(callers)
            if run:
                self._behind_run = max(0, run - near) if run > 0 else min(0, run + near)
            if self._all_fit(callers, typed_names(chosen)):
                if self._hour.drawn:
                    self._draw_again(callers, offsets, chosen)
                return callers, [column.texts for column in chosen]
            self._behind_run = run
        drawn = set(drawn_among(offsets))
        names: list[str] = []
        columns: list[list[str]] = [[] for _ in chosen]
        for index, (caller, ms) in enumerate(zip(callers, times_ms, strict=True)):
            if ms // HOUR_MS != self._hour.number or self._behind_run:
                self._advance_to(ms // HOUR_MS)
            names.append(caller if self._has_name(caller, is_drawn=index in drawn) else OVERFLOW)
            for column, (prefix, texts) in zip(columns, chosen, strict=True):
                text = texts[index]
                has_name = not text or self._has_name(prefix + text, is_drawn=index in drawn)
                column.append(text if has_name else OVERFLOW)
        return names, columns

    def has_names(
        self, callers: Collection[str], span_ms: tuple[int, int], chosen: Sequence[ChosenNames] = ()
    ) -> bool:
        """Whether all callers and chosen texts have a name, now and behind any requests within `span_ms`."""
        hour = self._hour
        return (
            self._stays_in_hour(span_ms)
            and not hour.drawn
            and hour.names.issuperset(callers)
            and hour.names >= typed_names(chosen)
        )

    def known_names(self, callers: Iterable[str], prefix: str = "") -> list[str]:
        """Returns each caller, or OVERFLOW for one without a name; gives none of them a name.

        With the prefix of chosen texts each of them, of which an empty one stays as it is.
        """
        names, previous = self._hour.names, self._before.names
        return [
            name
            if (prefix and not name) or (typed := prefix + name) in names or typed in previous
            else OVERFLOW
            for name in callers
        ]

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
            named=[entry for hour in hours for entry in hour.drain()],
            kept=hours_to_keep,
        )

    def _stays_in_hour(self, span_ms: tuple[int, int]) -> bool:
        """Whether requests within `span_ms`, with one at its end, leave the hour as it is."""
        first, last = (ms // HOUR_MS for ms in span_ms)
        return last == self._hour.number and first >= last - FAR_HOURS

    def _all_fit(self, callers: list[str], typed: Collection[str]) -> bool:
        """Names all callers and typed texts at once; False, and names none, if a limit were exceeded."""
        hour = self._hour
        if hour.names.issuperset(callers) and hour.names.issuperset(typed):
            return True
        unnamed = set(callers).union(typed) - hour.names
        old = unnamed & self._before.names
        new = unnamed - old
        if not (hour.has_room("old", old, self._max) and hour.has_room("new", new, self._max)):
            return False
        hour.add("old", old)
        hour.add("new", new)
        return True

    def _draw_again(self, callers: list[str], offsets: Sequence[int], chosen: Sequence[ChosenNames]) -> None:
        for index in drawn_among(offsets):
            for name in (callers[index], *(prefix + texts[index] for prefix, texts in chosen)):
                if self._hour.is_drawn(name):
                    self._hour.draw(name, self._max)

    def _has_name(self, caller: str, *, is_drawn: bool) -> bool:
        """Whether a request at this place has its caller's name, which it may give to the caller."""
        hour = self._hour
        if caller in hour.names:
            if is_drawn and hour.is_drawn(caller):
                hour.draw(caller, self._max)
            return True
        kind = caller_kind(caller)
        if caller in self._before.names and not hour.is_full("old", kind, self._max):
            hour.add("old", [caller])
        elif not hour.is_full("new", kind, self._max):
            hour.add("new", [caller])
        elif is_drawn:
            hour.draw(caller, self._max)
        else:
            return False
        return True

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
        hour = self._before if self._before.number == number else NamedHour(number, stored=False)
        self._before, self._hour = self._hour, hour


def typed_names(chosen: Iterable[ChosenNames]) -> set[str]:
    """Returns the texts of all columns as they stand among the names of callers."""
    return set[str]().union(*(column.typed for column in chosen))


def caller_kind(caller: str) -> str:
    """Returns the kind of a caller's name: the field that named it, or "unnamed"."""
    return caller.partition(":")[0]


def count_kinds(callers: Iterable[str]) -> Counter[str]:
    """Returns how many callers there are of each kind."""
    return Counter([caller.partition(":")[0] for caller in callers])


def drawn_among(offsets: Sequence[int]) -> Iterator[int]:
    """Yields the indices of the drawn offsets, ascending, as `offsets` are.

    Each offset is drawn with a chance of 1 in 1,024, independent of the distances between the records of one
    caller: a hash selects one offset of each block of 1,024.

    >>> list(drawn_among(range(4096)))
    [1004, 1926, 2163, 3591]
    """
    for block in sorted({offset >> BLOCK_BITS for offset in offsets}):
        drawn = drawn_offset(block)
        index = bisect_left(offsets, drawn)
        if index < len(offsets) and offsets[index] == drawn:
            yield index


def drawn_offset(block: int) -> int:
    """Returns the drawn offset of the block that begins at offset `block * 1024`."""
    digest = hashlib.sha256(b"%d" % block).digest()
    return block << BLOCK_BITS | int.from_bytes(digest[:2]) & BLOCK_MASK
