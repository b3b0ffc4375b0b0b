"""Recording what one gate reports about itself: hits per lock, and a sample of callers."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Sequence
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from gatekeeper.model import Decision, GateStatus, LockHits, LockKey, SourceError, StatusSink
from gatekeeper.telemetry.atomic_counts import AtomicCounts
from gatekeeper.telemetry.status_json import CALLER_CHARACTERS_MAX, WORD_CHARACTERS_MAX, WORDS_MAX
from gatekeeper.view.lock_tuples import ACTION, POLICY, LockKeyTuple, LockTuple, tuple_key

if TYPE_CHECKING:
    from gatekeeper.feed.poller import GateKnowledge

log = logging.getLogger("gatekeeper")

REPORT_EVERY_S = 5.0  # at most, however often the gate polls
RETRY_AFTER_S = 60.0  # after a failed report: no decision depends on it

LOCKS_COUNTED_MAX = 2_000  # counted apart; further ones are counted together
LOCKS_REPORTED_MAX = 100
CALLERS_REPORTED_MAX = 64  # distinguishes 90 % known callers from 75 % in 19 of 20 reports
SAMPLED_PER_REPORT = 32  # callers added to the sample after each report
SAMPLE_PERIOD_S = 600.0  # a sample covers the last one to two periods
HOST_CHARACTERS_MAX = 60


class HitCounts:
    """Requests that one lock applied to, and those of them that were denied."""

    __slots__ = ("checks", "denials")

    def __init__(self) -> None:
        self.checks = AtomicCounts()
        self.denials = AtomicCounts()


class CallerSample:
    """A uniform sample of distinct callers: those with the smallest hashes.

    Each caller is equally likely to be in it, however many requests it makes. A bottom-k sketch (Cohen and
    Kaplan, 2007).
    """

    def __init__(self) -> None:
        self._current: dict[int, str] = {}
        self._previous: dict[int, str] = {}
        self._next_period_s: float | None = None

    def add(self, caller: str) -> None:
        self._current[hash(caller)] = caller[:CALLER_CHARACTERS_MAX]

    def callers(self, now_s: float) -> tuple[str, ...]:
        """The sample; forgets callers beyond it, and those that did not come for two periods."""
        if self._next_period_s is None or now_s >= self._next_period_s:
            self._current, self._previous = {}, self._current
            self._next_period_s = now_s + SAMPLE_PERIOD_S
        by_hash = {**self._previous, **self._current}
        smallest = sorted(by_hash)[:CALLERS_REPORTED_MAX]
        # A caller that another thread adds at this moment may be lost, which a sample can bear.
        self._current = {number: by_hash[number] for number in smallest if number in self._current}
        return tuple(by_hash[number] for number in smallest)


class StatusRecorder:
    """Records and reports the status of one gate in one process. Requests add to it, the poller reads it."""

    def __init__(
        self, application: str, stale_after_s: float, now_s: float, values: Sequence[str] = ()
    ) -> None:
        self._instance = instance_name(os.uname().nodename, os.getpid(), secrets.token_hex(4))
        self._application = application[:WORD_CHARACTERS_MAX]
        self._stale_after_s = stale_after_s
        self._started_s = now_s
        self._values = tuple(values[:WORDS_MAX])
        self._due_s = -inf
        self._reports = 0
        self._hits: dict[LockKeyTuple, HitCounts] = {}
        self._hits_of_others = HitCounts()
        self._forgotten = [0, 0]  # checks and denials of locks that no longer have an entry in `_hits`
        self._reported_checks: dict[LockKeyTuple, int] = {}
        self._sample = CallerSample()
        self._to_sample = 0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def report(self, sink: StatusSink, now_s: float, knowledge: GateKnowledge, mode: str) -> None:
        """Reports to `sink` and starts to sample the next few callers. Never raises."""
        status = self._status(now_s, knowledge, mode)
        self._due_s = now_s + REPORT_EVERY_S
        try:
            sink.report_status(status)
        except SourceError as error:
            self._due_s = now_s + RETRY_AFTER_S
            log.info("the gate's status could not be reported: %s", error)
        except Exception:
            self._due_s = now_s + RETRY_AFTER_S
            log.exception("the source failed to report the gate's status")
        self._to_sample = SAMPLED_PER_REPORT

    @property
    def is_sampling(self) -> bool:
        """Whether more callers are to be added to the sample."""
        return self._to_sample > 0

    def sample(self, caller: str) -> bool:
        """Adds a caller to the sample; returns whether the sample is now complete."""
        self._to_sample -= 1  # two threads may count as one, then one more caller is sampled
        if caller:
            self._sample.add(caller)
        return self._to_sample <= 0

    def count_hits(self, locks: Sequence[LockTuple], decision: Decision) -> None:
        """Counts the locks that applied to one request, with the decision they led to."""
        for lock in locks:
            counts = self._hit_counts(tuple_key(lock))
            counts.checks.add()
            if not decision.allowed and (lock[ACTION] == "deny" or lock[POLICY] == decision.policy):
                counts.denials.add()

    def _hit_counts(self, key: LockKeyTuple) -> HitCounts:
        counts = self._hits.get(key)
        if counts is not None:
            return counts
        if len(self._hits) >= LOCKS_COUNTED_MAX:
            return self._hits_of_others
        return self._hits.setdefault(key, HitCounts())  # atomic, when two threads add the same lock

    def _status(self, now_s: float, knowledge: GateKnowledge, mode: str) -> GateStatus:
        hits = [
            LockHits(LockKey(*key), counts.checks.read(), counts.denials.read())
            for key, counts in list(self._hits.items())
        ]
        hits.sort(key=lambda lock: (-lock.checks, lock.at))
        reported, unreported = tuple(hits[:LOCKS_REPORTED_MAX]), hits[LOCKS_REPORTED_MAX:]
        more = (
            self._forgotten[0] + self._hits_of_others.checks.read() + sum(lock.checks for lock in unreported),
            self._forgotten[1]
            + self._hits_of_others.denials.read()
            + sum(lock.denials for lock in unreported),
        )
        self._forget_idle_locks(hits)
        self._reports += 1
        return GateStatus(
            instance=self._instance,
            number=self._reports,
            application=self._application,
            library=_library_version(),
            at=knowledge.view.at,
            age=now_s - knowledge.confirmed_s,
            locks=reported,
            more=more,
            callers=self._sample.callers(now_s),
            uptime=now_s - self._started_s,
            stale_after=self._stale_after_s,
            clock_skew=knowledge.clock_skew,
            mode=mode,
            ignored=tuple(word[:WORD_CHARACTERS_MAX] for word in islice(knowledge.view.ignored, WORDS_MAX)),
            values=self._values,
        )

    def _forget_idle_locks(self, hits: Sequence[LockHits]) -> None:
        """Counts together the locks without hits since the last report, once half the entries are in use."""
        if len(hits) > LOCKS_COUNTED_MAX // 2:
            for lock in hits:
                if self._reported_checks.get(lock.at) == lock.checks:
                    del self._hits[lock.at]
                    self._forgotten[0] += lock.checks
                    self._forgotten[1] += lock.denials
        self._reported_checks = {lock.at: lock.checks for lock in hits}


def instance_name(host: str, pid: int, random: str) -> str:
    """The name of one gate in one process, by which operators find that process.

    >>> instance_name("shop-7.example", 812, "1f3c99d0")
    'shop-7.example:812:1f3c99d0'
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:HOST_CHARACTERS_MAX]
    return f"{host}:{pid}:{random}"


def _library_version() -> str:
    # Imported late: it is a tenth of the start of a process that never reports.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gatelock")
    except PackageNotFoundError:  # used from a folder
        return ""
