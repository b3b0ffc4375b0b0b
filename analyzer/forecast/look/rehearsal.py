"""Locks that a surge policy would have set on the requests of a log.

Each series is judged by `judge` of the core, as by an analyzer without delay that commits at the end of each
slot. A window counts the same slots during the whole of a slot, so a policy is reached within a slot
exactly if it is reached at its end. What follows from that:

- A lock begins at the end of its slot; in operation up to one slot earlier, or later by the delay of the log.
- Its end is later by as much. It is judged again at the end of the slot in which it ends.
- The requests of a log were all answered, so those during a lock count: a caller that continues is locked
  again when its lock ends, as by a policy whose action is "notify". Behind a gate they are denied, and do not
  count: the next lock then comes after the limit is reached again.
- Lines that are later than others of their slot count in the slot of their time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from analyzer.forecast.look.traffic_profile import COUNT_BITS, COUNT_MAX, Cells, SeriesTraffic, joined_cells
from analyzer.judging.circumstances import Circumstances, Wait
from analyzer.judging.judge import judge
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.rolling import AddressSums, Slot
from analyzer.judging.totals import Standing, TotalKey, is_judged
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Surge
from analyzer.plan.windows import ALWAYS
from gatekeeper.model import LockKey, Set


class RehearsedLock(NamedTuple):
    """A lock that a series would have had, in whole seconds since 1970 UTC."""

    key: str
    resource: str
    began_s: int
    until_s: int
    refused: int  # requests in the slots within it
    detail: str


def rehearse(policy: Surge, series: Iterable[SeriesTraffic]) -> list[RehearsedLock]:
    """Returns the locks in the order of their begin."""
    plan = make_plan((), (), [policy], {})
    grouping = parse_grouping(policy.per)
    locks = [
        lock
        for traffic in series
        if traffic.peak >= policy.limit and is_judged(grouping, traffic.key, traffic.resource)
        for lock in SeriesRehearsal(policy, plan, traffic).locks()
    ]
    return sorted(locks, key=lambda lock: (lock.began_s, lock.key, lock.resource))


class SeriesRehearsal:
    """The judgements of one series, slot by slot."""

    def __init__(self, policy: Surge, plan: Plan, series: SeriesTraffic) -> None:
        self._policy, self._plan, self._series = policy, plan, series
        self._width_s = policy.window.slot_s
        self._span = policy.window.period_s // self._width_s + 1
        self._cells = joined_cells(series.members)
        self._slots = [cell >> COUNT_BITS for cell in self._cells]
        self._until = [0, *accumulate(cell & COUNT_MAX for cell in self._cells)]
        self._total = TotalKey(policy_kind(policy).judged_sum(policy), series.key, series.resource, ALWAYS)
        self._ends_s: list[int] = []  # of its locks

    def locks(self) -> Iterator[RehearsedLock]:
        """Yields the locks one after the other."""
        index, awaited = (
            0,
            None,
        )  # the next slot with requests, by its index; a slot that is judged in any case
        while index < len(self._slots) or awaited is not None:
            has_requests = index < len(self._slots) and (awaited is None or self._slots[index] <= awaited)
            slot = self._slots[index] if has_requests or awaited is None else awaited
            index += has_requests
            awaited = None if awaited == slot else awaited
            answer = (
                self._judged(slot) if self._sum(slot - self._span + 1, slot) >= self._policy.limit else None
            )
            if isinstance(answer, Wait):
                awaited = slot + 1
            elif answer is not None:
                awaited = answer.until_s // self._width_s
                index = bisect_left(self._slots, awaited)
                self._ends_s.append(answer.until_s)
                yield answer._replace(refused=self._sum(slot + 1, awaited - 1))

    def _sum(self, first: int, last: int) -> int:
        """Returns the requests in these slots and those between them."""
        end = bisect_left(self._slots, last + 1)
        return max(0, self._until[end] - self._until[min(end, bisect_left(self._slots, first))])

    def _judged(self, slot: int) -> RehearsedLock | Wait | None:
        now_s = (slot + 1) * self._width_s - 1
        window = _window(self._cells, slot, self._span)
        slots = [Slot((cell >> COUNT_BITS) * self._width_s, cell & COUNT_MAX) for cell in window]
        used = self._until[bisect_left(self._slots, slot + 1)]
        standing = Standing(self._total, used, slots, addresses=self._addresses(slot, now_s))
        context = Circumstances(datetime.fromtimestamp(now_s, UTC), offences=self._offences(now_s))
        judged = judge(self._plan, [standing], {}, context)
        for change in judged.changes:
            if isinstance(change, Set):
                until_s = ceil(change.lock.until.timestamp())
                return RehearsedLock(*self._total[1:3], now_s, until_s, 0, change.lock.detail)
        return judged.waiting.get(self._total)

    def _addresses(self, slot: int, now_s: int) -> Mapping[int, AddressSums] | None:
        if not policy_kind(self._policy).needs(self._policy).addresses:
            return None
        windows = [_window(cells, slot, self._span) for cells in self._series.members]
        sums = [sum(cell & COUNT_MAX for cell in window) for window in windows if window]
        return {now_s: AddressSums(len(sums), max(sums, default=0))}

    def _offences(self, now_s: int) -> Mapping[LockKey, int]:
        remembered_s = policy_kind(self._policy).needs(self._policy).ended_locks_s
        ended = sum(now_s - end_s < remembered_s for end_s in self._ends_s)
        return {lock_key(self._policy, self._total): ended}


def _window(cells: Cells, slot: int, span: int) -> Sequence[int]:
    """Returns the cells of the window that ends in `slot`."""
    first = bisect_left(cells, (slot - span + 1) << COUNT_BITS)
    return cells[first : bisect_left(cells, (slot + 1) << COUNT_BITS)]
