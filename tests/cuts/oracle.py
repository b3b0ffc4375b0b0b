"""The answers that a gate may give, computed from the history of the locks and the timeline of its source."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gatekeeper.model import Lock
from gatekeeper.view.lock_tuples import epoch_ns
from tests.cuts.bound import Period, SourceTiming, staleness, surely_known, youngest_possible

LIMIT, PERIOD_S = 3, 10.0  # of the limiter for callers without a lock while the view is stale
PASS, DENIED, STALE, LIMITED = "passes", "is denied", "is denied as stale", "is denied by the limiter"


def denied_by(policy: str) -> str:
    return f"is denied by {policy}"


class Version(NamedTuple):
    """One version of the locks, and when it was written."""

    before_s: float  # uptime; no reader could see them earlier
    after_s: float  # every later reader saw these locks, or later ones
    locks: Mapping[str, tuple[Lock, ...]]  # by caller


class LockHistory:
    """The locks at all times."""

    def __init__(self) -> None:
        self.versions = [Version(-inf, -inf, {})]

    def begin_write(self, locks: Iterable[Lock], before_s: float) -> None:
        """Records the locks that are going to be written."""
        by_caller: defaultdict[str, tuple[Lock, ...]] = defaultdict(tuple)
        for lock in locks:
            by_caller[lock.key] += (lock,)
        self.versions.append(Version(before_s, inf, dict(by_caller)))

    def end_write(self, after_s: float) -> None:
        """Records that they are written."""
        self.versions[-1] = self.versions[-1]._replace(after_s=after_s)


class Slack(NamedTuple):
    """The delay that a real machine may add to every bound: to learning of changes, and to deciding."""

    learning_s: float
    deciding_s: float


class Moment(NamedTuple):
    """The time of a check: between these two, by the monotonic clock and by the wall clock."""

    begin_s: float
    end_s: float
    begin_ns: int
    end_ns: int
    true_ns: int  # the correct wall time


@dataclass
class Oracle:
    """Compares the answers of one gate with the history of the locks."""

    history: LockHistory
    timeline: Sequence[Period]
    timing: SourceTiming
    on_stale: str  # "allow", "deny" or "limiter"
    begun_s: float
    seen: int = -1  # number of the newest version that its answers have shown
    set_back: list[tuple[float, int]] = field(
        default_factory=list
    )  # uptime of each step back of its clock, and the wall time before it
    counts: Counter[str] = field(default_factory=Counter)
    passed: defaultdict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))

    def restarted(self, now_s: float, *, has_saved_view: bool) -> None:
        """Records that the gate was stopped and started."""
        self.begun_s = now_s
        self.seen = self.seen if has_saved_view else -1
        self.passed.clear()

    def wrong(self, answers: Mapping[str, str], at: Moment, slack: Slack) -> str:
        """The error in these answers, which were given at one moment; "" if there is none.

        One version of the locks must explain all of them: not older than the newest that the gate must know
        or has shown to know, and not later than the check.
        """
        news_s, oldest_s = surely_known(
            self.timeline, self.timing, self.begun_s, at.begin_s - slack.learning_s
        )
        confirmed = oldest_s, youngest_possible(self.timeline, at.end_s)
        states = staleness(confirmed, self.begun_s, at.begin_s, self.timing.stale_after_s, slack.deciding_s)
        first, last = self._first_version(news_s), self._last_version(at.end_s)
        # Locks that a wrong clock made the gate forget are fetched again after the clock was corrected,
        # possibly only after a long poll. A source need not send locks that have really ended, by any clock.
        gone_ns = max([at.true_ns, *(from_ns for when_s, from_ns in self.set_back if when_s > oldest_s)])
        self._count(answers, states, must_know=news_s > -inf)
        for number in range(first, last + 1):
            for state in states:
                if all(
                    answer in self._possible_answers(caller, number, state, at, gone_ns)
                    for caller, answer in answers.items()
                ):
                    self.seen = number
                    return self._too_many(answers, number, states, at)
        return (
            f"at {at.begin_s:.3f} s: {', '.join(map(' '.join, answers.items()))}; but "
            f"{' or '.join(self._describe(n, at) for n in sorted({first, last}))}; stale {states}, "
            f"confirmed between {oldest_s:.3f} and {confirmed[1]:.3f}, must know all changes to {news_s:.3f}"
        )

    def wrong_age(self, age_s: float, at: Moment, slack: Slack) -> str:
        """The error in the age that the gate shows; "" if there is none."""
        _, oldest_s = surely_known(self.timeline, self.timing, self.begun_s, at.begin_s - slack.learning_s)
        least_s, most_s = at.begin_s - youngest_possible(self.timeline, at.end_s), at.end_s - oldest_s
        if least_s - slack.deciding_s <= age_s <= most_s + slack.deciding_s:
            return ""
        return f"at {at.begin_s:.3f} s: age {age_s:.3f}, but it is from {least_s:.3f} to {most_s:.3f}"

    def _first_version(self, news_s: float) -> int:
        first = self.seen
        for number in range(len(self.history.versions) - 1, self.seen, -1):
            if self.history.versions[number].after_s <= news_s:
                first = number
                break
        return first

    def _last_version(self, now_s: float) -> int:
        last = len(self.history.versions) - 1
        while self.history.versions[last].before_s > now_s:
            last -= 1
        return last

    def _possible_answers(
        self, caller: str, number: int, state: tuple[bool, bool], at: Moment, gone_ns: int
    ) -> set[str]:
        return {
            answer
            for now_ns in (at.begin_ns, at.end_ns)
            for answer in self._answers(caller, number, state, now_ns, gone_ns)
        }

    def _answers(
        self, caller: str, number: int, state: tuple[bool, bool], now_ns: int, gone_ns: int
    ) -> Iterator[str]:
        stale_for_locks, stale_for_others = state
        denying = sorted(
            (-epoch_ns(lock.until), lock.policy)
            for lock in self._locks(caller, number)
            if now_ns < epoch_ns(lock.until) and lock.action == "deny"
            if not (stale_for_locks and lock.on_stale == "allow")
        )
        for minus_end_ns, policy in denying:
            yield from (DENIED, denied_by(policy))
            if -minus_end_ns > gone_ns:  # otherwise the gate may have forgotten it
                return
        yield PASS if self.on_stale == "allow" or not stale_for_others else DENIED
        if stale_for_others and self.on_stale != "allow":
            yield from (STALE,) if self.on_stale == "deny" else (PASS, LIMITED)

    def _locks(self, caller: str, number: int) -> tuple[Lock, ...]:
        return self.history.versions[number].locks.get(caller, ()) if number >= 0 else ()

    def _too_many(
        self, answers: Mapping[str, str], number: int, states: Sequence[tuple[bool, bool]], at: Moment
    ) -> str:
        """The error if callers passed that the limiter should have denied; "" if there is none."""
        if self.on_stale != "limiter" or states != [(True, True)]:
            return ""
        for caller, answer in answers.items():
            if answer == PASS:
                times_s = self.passed[caller]
                times_s.append(at.end_s)
                while times_s[0] <= at.begin_s - PERIOD_S:
                    times_s.popleft()
                if len(times_s) > LIMIT:
                    return f"at {at.begin_s:.3f} s: {caller} passed {len(times_s)} times in {PERIOD_S} s"
        return ""

    def _count(
        self, answers: Mapping[str, str], states: Sequence[tuple[bool, bool]], *, must_know: bool
    ) -> None:
        for answer in answers.values():
            self.counts["is denied by a lock" if " by p" in answer else answer] += 1
        if states == [(True, True)]:
            self.counts["is surely stale"] += 1
        if must_know:
            self.counts["must know the latest changes"] += 1

    def _describe(self, number: int, at: Moment) -> str:
        locks = [
            f"{caller} {lock.policy} {lock.action} {lock.on_stale} for {left_s(lock, at):.3f} s"
            for caller in (self.history.versions[number].locks if number >= 0 else ())
            for lock in self._locks(caller, number)
        ]
        return f"version {number} has [{', '.join(locks)}]"


def left_s(lock: Lock, at: Moment) -> float:
    return (epoch_ns(lock.until) - at.begin_ns) / 1e9
