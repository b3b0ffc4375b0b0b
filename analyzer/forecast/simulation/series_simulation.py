"""One policy on the buckets of one series, in the order of time.

The clock of a simulation is the time of the records. A bucket is judged at its last second: what is in it has
happened by then, so a window is never given more than it had. Between two buckets only the ends of locks and
of waits matter. Each decision is that of `judge`, asked for when the sum has reached its next threshold, as
in a flush.

What a simulated lock would have refused counts as it came. What a gate had refused counts, too, unless the
simulated lock would have refused it as well: so a policy that was in force is simulated as it was judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from analyzer.judging.caller_limits import Limits
from analyzer.judging.circumstances import Circumstances
from analyzer.judging.earned_notices import LastNotice, Notice, NoticeKey, notice_key
from analyzer.judging.judge import judge
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.rolling import Slot
from analyzer.judging.totals import Standing, TotalKey
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy
from analyzer.plan.sums import NEVER
from analyzer.plan.windows import Rolling
from gatekeeper.model import Lock, Set


class SeriesBucket(NamedTuple):
    """The counts of one series in [start, start + width)."""

    start_s: int
    width_s: int
    admitted: int  # of the policy's meter
    denied: int  # of it, by a gate
    requests: int  # admitted and denied


@dataclass(slots=True)
class SimulatedLock:
    """A lock that would have been set, and the requests that came while it was in force."""

    began_s: int
    until_s: int
    requests: int = 0


class SimulatedPolicy(NamedTuple):
    """A policy, alone in a plan, and the limits that callers have by it at present."""

    plan: Plan
    limits: Limits

    @property
    def policy(self) -> Policy:
        return self.plan.policies[0]


@dataclass(slots=True)
class SeriesSimulation:
    """The locks of one series by one policy.

    Attributes:
        of: The policy, as all series have it.
        key: Key of the series.
        resource: Resource of the series, or "".
        from_s: Requests before this time, in the windows that it lies in, are counted as use alone.
        locks: The locks, in the order of time.
        notices: How often each threshold was reached, in thousandths of the limit.
    """

    of: SimulatedPolicy
    key: str
    resource: str
    from_s: int = 0
    locks: list[SimulatedLock] = field(default_factory=list)
    notices: Counter[int] = field(default_factory=Counter)
    _total: TotalKey | None = None
    _used: int = 0
    _next: int = 0
    _slots: list[Slot] = field(default_factory=list)
    _lock: Lock | None = None
    _waits_until_s: float | None = None
    _width_s: int = 1
    _noticed: dict[NoticeKey, LastNotice] = field(default_factory=dict)
    _ended_s: list[int] = field(default_factory=list)  # ends of locks that have run to them

    def add(self, bucket: SeriesBucket) -> None:
        """Adds the next bucket."""
        self.pass_to(bucket.start_s)
        self._enter_window(bucket.start_s)
        self._width_s = bucket.width_s
        previous = len(self.locks), self._locked_until_s
        self._count(bucket, bucket.admitted)
        if bucket.denied and self._locked_until_s <= bucket.start_s:
            self._count(bucket, bucket.denied)
        self._share_out(bucket, *previous)

    def pass_to(self, now_s: int) -> None:
        """Lets locks and waits end that are over by `now_s`, the beginning of a bucket."""
        while (due_s := self._due_s()) is not None and due_s <= now_s:
            if due_s % self._width_s:  # within a bucket: judged at its last second
                due_s += self._width_s - due_s % self._width_s - 1
                if due_s >= now_s:
                    return
            self._judge(due_s)

    @property
    def _locked_until_s(self) -> int:
        return 0 if self._lock is None else int(self._lock.until.timestamp())

    def _due_s(self) -> int | None:
        """Returns when something must be judged without growth."""
        times = [] if self._lock is None else [self._locked_until_s]
        times += [] if self._waits_until_s is None else [int(self._waits_until_s)]
        return min(times, default=None)

    def _enter_window(self, at_s: int) -> None:
        [sum_] = plan_sums(self.of.plan).policies_by_sum
        window = self.of.limits.series_window(sum_, self.key, at_s)
        if self._total is None or window != self._total.window:
            self._total = TotalKey(sum_, self.key, self.resource, window)
            self._used, self._waits_until_s = 0, None
            self._next = next(iter(self.of.limits.series_thresholds(sum_, self.key)), NEVER)

    def _count(self, bucket: SeriesBucket, amount: int) -> None:
        assert self._total is not None  # noqa: S101 - a window was entered
        sum_, now_s = self._total.sum, bucket.start_s + bucket.width_s - 1
        if isinstance(sum_.window, Rolling):
            self._used += amount
            self._add_slot(sum_.window, bucket, amount)
        else:
            self._used = sum_.joined.merge(self._used, amount)
        due_s = self._due_s()
        if self._used >= self._next or (due_s is not None and due_s <= now_s):
            self._judge(now_s)

    def _add_slot(self, rolling: Rolling, bucket: SeriesBucket, amount: int) -> None:
        start_s, slots = bucket.start_s, self._slots
        if rolling.slot_s % bucket.width_s == 0:
            start_s -= start_s % rolling.slot_s
        if slots and slots[-1].start_s == start_s:
            slots[-1] = Slot(start_s, slots[-1].value + amount)
        elif amount:
            oldest_s = bucket.start_s - rolling.period_s - rolling.slot_s
            slots[:] = [slot for slot in slots if slot.start_s > oldest_s]
            slots.append(Slot(start_s, amount))

    def _judge(self, now_s: int) -> None:
        """Sets, extends or ends the lock by what is counted at `now_s`."""
        assert self._total is not None  # noqa: S101 - nothing is due before
        standing = Standing(self._total, self._used, tuple(self._slots))
        present = self._lock
        locks = {} if present is None else {present.at: present}
        judged = judge(self.of.plan, [standing], locks, self._circumstances(now_s))
        for notice in judged.notices:
            self._note(notice, self._total, now_s)
        wait = judged.waiting.get(self._total)
        self._waits_until_s = None if wait is None or wait.until_s <= now_s else wait.until_s
        self._next = self.of.limits.next_judgement(standing, now_s)
        for change in judged.changes:
            if isinstance(change, Set):
                self._set(change.lock, now_s)
        if self._lock is not None and self._locked_until_s <= now_s:
            self._ended_s.append(self._locked_until_s)
            self._lock = None

    def _note(self, notice: Notice, total: TotalKey, now_s: int) -> None:
        """Remembers the last notice of a threshold, and counts those that are raised."""
        key = notice_key(notice.at.policy, total, notice.at.threshold)
        last = self._noticed.get(key)
        is_new = last is None or (last.window_s != notice.at.window_s and not notice.was_raised)
        if is_new:
            self.notices[notice.at.threshold] += 1
        raised_s = now_s if last is None or is_new else last.raised_s
        self._noticed[key] = LastNotice(notice.at.window_s, notice.until_s, raised_s)

    def _circumstances(self, now_s: int) -> Circumstances:
        policy = self.of.policy
        remembered_s = policy_kind(policy).needs(policy).ended_locks_s
        ended = sum(now_s - remembered_s < ended_s <= now_s for ended_s in self._ended_s)
        offences = {}
        if remembered_s and self._lock is not None:
            # Live, the lock that ends here is in the history.
            ended += self._locked_until_s <= now_s
        if ended:
            assert self._total is not None  # noqa: S101 - as in `_judge`
            offences = {lock_key(policy, self._total): ended}
        return Circumstances(
            datetime.fromtimestamp(now_s, UTC), 0.0, offences, self.of.limits, notices=self._noticed
        )

    def _set(self, lock: Lock, now_s: int) -> None:
        until_s = int(lock.until.timestamp())
        if self._lock is not None and not policy_kind(self.of.policy).locks_last:
            self.locks[-1].until_s = until_s  # what is in the window makes it last
        else:
            if self._lock is not None:
                self._ended_s.append(self._locked_until_s)
            began_s = max(now_s - now_s % self._width_s, self._locked_until_s)
            self.locks.append(SimulatedLock(began_s, until_s))
        self._lock = lock

    def _share_out(self, bucket: SeriesBucket, locks: int, locked_until_s: int) -> None:
        """Adds those requests of a bucket to its lock that came after it had begun and before it ended.

        There were so many `locks` before the bucket, the last one until `locked_until_s`.
        """
        if bucket.start_s < self.from_s or not self.locks:
            return
        if len(self.locks) > locks:
            self.locks[-1].requests += round(bucket.requests * self._part_beyond(bucket))
        locked_s = (locked_until_s if len(self.locks) > locks else self._locked_until_s) - bucket.start_s
        if locks and locked_s > 0:
            self.locks[locks - 1].requests += round(bucket.requests * min(locked_s / bucket.width_s, 1.0))

    def _part_beyond(self, bucket: SeriesBucket) -> float:
        """Returns which part of a bucket came after the limit was reached in it."""
        assert self._total is not None  # noqa: S101 - as in `_judge`
        policy = self.of.limits.policy_for(self.of.policy, self.key, self.resource)
        amount = bucket.admitted + bucket.denied
        if policy is None or not amount:
            return 0.0
        standing = Standing(self._total, self._used, tuple(self._slots))
        context = self._circumstances(bucket.start_s + bucket.width_s - 1)
        used, limit = policy_kind(policy).amounts(policy, standing, context)
        return min((used - limit) / amount, 1.0)
