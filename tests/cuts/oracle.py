"""What a gate may say, worked out from the lock table's history and from when its source could be read."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gatekeeper.model import Lock
from gatekeeper.view.lock_tuples import end_ns
from tests.cuts.bound import Manner, Stretch, certain, possible, staleness

LIMIT, PERIOD_S = 3, 10.0  # what a limiter lets a caller without a lock do while the view is stale
PASS, NO, STALE, LIMITED = "passes", "is refused", "is refused as stale", "is refused by the limiter"


def by(policy: str) -> str:
    return f"is refused by {policy}"


class Version(NamedTuple):
    """The lock table from one moment on."""

    before_s: float  # uptime: nobody could see it earlier
    after_s: float  # everybody who asked later saw this one, or one that followed
    locks: Mapping[str, tuple[Lock, ...]]  # by caller


class Truth:
    """The lock table, at all times."""

    def __init__(self) -> None:
        self.versions = [Version(-inf, -inf, {})]

    def becomes(self, locks: Iterable[Lock], before_s: float) -> None:
        """This is what is being written from now on."""
        by_caller: defaultdict[str, tuple[Lock, ...]] = defaultdict(tuple)
        for lock in locks:
            by_caller[lock.key] += (lock,)
        self.versions.append(Version(before_s, inf, dict(by_caller)))

    def became(self, after_s: float) -> None:
        """It is written."""
        self.versions[-1] = self.versions[-1]._replace(after_s=after_s)


class Slack(NamedTuple):
    """What a real machine may add to every bound: to hearing of something, and to deciding."""

    hearing_s: float
    deciding_s: float


class Moment(NamedTuple):
    """When a gate was asked: between these two, by the clock that does not jump and by the one that may."""

    begin_s: float
    end_s: float
    begin_ns: int
    end_ns: int
    true_ns: int  # what a clock shows that is right


@dataclass
class Oracle:
    """One gate, held against the truth."""

    truth: Truth
    sky: Sequence[Stretch]
    manner: Manner
    on_stale: str  # "allow", "deny" or "limiter"
    begun_s: float
    seen: int = -1  # the gate has shown that it knows this version, or a later one
    set_back: list[tuple[float, int]] = field(default_factory=list)  # when its clock was, and from where
    tally: Counter[str] = field(default_factory=Counter)
    passed: defaultdict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))

    def begins_anew(self, now_s: float, *, remembers: bool) -> None:
        """It was stopped and started; its view was saved, or not."""
        self.begun_s = now_s
        self.seen = self.seen if remembers else -1
        self.passed.clear()

    def wrong(self, said: Mapping[str, str], at: Moment, slack: Slack) -> str:
        """What is wrong with these answers, which were given together; "" when nothing is.

        There must be one version of the lock table that explains all of them: not older than the newest
        that the gate must know, or has shown to know, and none that is still to come.
        """
        news_s, oldest_s = certain(self.sky, self.manner, self.begun_s, at.begin_s - slack.hearing_s)
        confirmed = oldest_s, possible(self.sky, at.end_s)
        states = staleness(confirmed, self.begun_s, at.begin_s, self.manner.stale_after_s, slack.deciding_s)
        first, last = self._from(news_s), self._to(at.end_s)
        # What had ended by a clock that was wrong is learnt again with the next answer to a question that was
        # asked after it was set right; one may have been waiting for news. What has really ended a source
        # need not tell of, whatever the gate's clock says.
        gone_ns = max([at.true_ns, *(from_ns for when_s, from_ns in self.set_back if when_s > oldest_s)])
        self._count(said, states, must_know=news_s > -inf)
        for number in range(first, last + 1):
            for state in states:
                if all(
                    answer in self._may_say(caller, number, state, at, gone_ns)
                    for caller, answer in said.items()
                ):
                    self.seen = number
                    return self._too_many(said, number, states, at)
        return (
            f"at {at.begin_s:.3f} s: {', '.join(f'{who} {what}' for who, what in said.items())}; but "
            f"{' or '.join(self._told(n, at) for n in sorted({first, last}))}; stale {states}, "
            f"confirmed between {oldest_s:.3f} and {confirmed[1]:.3f}, all must be known up to {news_s:.3f}"
        )

    def wrong_age(self, age_s: float, at: Moment, slack: Slack) -> str:
        """What is wrong with what the gate says of itself; "" when nothing is."""
        _, oldest_s = certain(self.sky, self.manner, self.begun_s, at.begin_s - slack.hearing_s)
        least_s, most_s = at.begin_s - possible(self.sky, at.end_s), at.end_s - oldest_s
        if least_s - slack.deciding_s <= age_s <= most_s + slack.deciding_s:
            return ""
        return f"at {at.begin_s:.3f} s: age {age_s:.3f}, but it is from {least_s:.3f} to {most_s:.3f}"

    def _from(self, news_s: float) -> int:
        first = self.seen
        for number in range(len(self.truth.versions) - 1, self.seen, -1):
            if self.truth.versions[number].after_s <= news_s:
                first = number
                break
        return first

    def _to(self, now_s: float) -> int:
        last = len(self.truth.versions) - 1
        while self.truth.versions[last].before_s > now_s:
            last -= 1
        return last

    def _may_say(
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
            (-end_ns(lock), lock.policy)
            for lock in self._locks(caller, number)
            if now_ns < end_ns(lock) and lock.action == "deny"
            if not (stale_for_locks and lock.on_stale == "allow")
        )
        for minus_end_ns, policy in denying:
            yield from (NO, by(policy))
            if -minus_end_ns > gone_ns:  # else it may be forgotten
                return
        yield PASS if self.on_stale == "allow" or not stale_for_others else NO
        if stale_for_others and self.on_stale != "allow":
            yield from (STALE,) if self.on_stale == "deny" else (PASS, LIMITED)

    def _locks(self, caller: str, number: int) -> tuple[Lock, ...]:
        return self.truth.versions[number].locks.get(caller, ()) if number >= 0 else ()

    def _too_many(
        self, said: Mapping[str, str], number: int, states: Sequence[tuple[bool, bool]], at: Moment
    ) -> str:
        """Whether callers passed whom the limiter should have stopped."""
        if self.on_stale != "limiter" or states != [(True, True)]:
            return ""
        for caller, answer in said.items():
            if answer == PASS:
                times_s = self.passed[caller]
                times_s.append(at.end_s)
                while times_s[0] <= at.begin_s - PERIOD_S:
                    times_s.popleft()
                if len(times_s) > LIMIT:
                    return f"at {at.begin_s:.3f} s: {caller} passed {len(times_s)} times in {PERIOD_S} s"
        return ""

    def _count(
        self, said: Mapping[str, str], states: Sequence[tuple[bool, bool]], *, must_know: bool
    ) -> None:
        self.tally.update("is refused by a lock" if " by p" in answer else answer for answer in said.values())
        if states == [(True, True)]:
            self.tally["is surely stale"] += 1
        if must_know:
            self.tally["must know of what is new"] += 1

    def _told(self, number: int, at: Moment) -> str:
        held = [
            f"{caller} {lock.policy} {lock.action} {lock.on_stale} for {left_s(lock, at):.3f} s"
            for caller in (self.truth.versions[number].locks if number >= 0 else ())
            for lock in self._locks(caller, number)
        ]
        return f"version {number} has [{', '.join(held)}]"


def left_s(lock: Lock, at: Moment) -> float:
    return (end_ns(lock) - at.begin_ns) / 1e9
