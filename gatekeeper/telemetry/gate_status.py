"""What a gate tells of itself: how often each lock was met, and a sample of those it was asked for."""

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
from gatekeeper.view.lock_tuples import ACTION, POLICY, LockKeyTuple, LockTuple, key_of

if TYPE_CHECKING:
    from gatekeeper.feed.poller import GateKnowledge

log = logging.getLogger("gatekeeper")

REPORT_EVERY_S = 5.0  # at most, however often it polls
RETRY_AFTER_S = 60.0  # to who could not hear it: nothing depends on it

LOCKS_COUNTED_MAX = 2_000  # apart; those beyond are counted together
LOCKS_REPORTED_MAX = 100
CALLERS_REPORTED_MAX = 64  # enough to tell 90 % known from 75 %, nineteen times in twenty
SAMPLED_PER_REPORT = 32  # callers, each time that the sample is added to
SAMPLE_PERIOD_S = 600.0  # a sample is of the last ten to twenty minutes
HOST_CHARACTERS_MAX = 60


class HitCounts:
    """How often one lock was met, and how often it refused."""

    __slots__ = ("checks", "denials")

    def __init__(self) -> None:
        self.checks = AtomicCounts()
        self.denials = AtomicCounts()


class CallerSample:
    """Some of the callers that were noted, each as likely as any other, however often it came: those
    whose hashes are the smallest (bottom-k; Cohen and Kaplan, 2007)."""

    def __init__(self) -> None:
        self._young: dict[int, str] = {}
        self._old: dict[int, str] = {}
        self._renew_s: float | None = None

    def add(self, caller: str) -> None:
        self._young[hash(caller)] = caller[:CALLER_CHARACTERS_MAX]

    def callers(self, now_s: float) -> tuple[str, ...]:
        """The sample. Forgets the rest, and what is older than ten to twenty minutes."""
        if self._renew_s is None or now_s >= self._renew_s:
            self._young, self._old = {}, self._young
            self._renew_s = now_s + SAMPLE_PERIOD_S
        every = {**self._old, **self._young}
        kept = sorted(every)[:CALLERS_REPORTED_MAX]
        # Who is noted just now may be lost by this; it is only a sample.
        self._young = {number: every[number] for number in kept if number in self._young}
        return tuple(every[number] for number in kept)


class StatusRecorder:
    """Everything that one gate in one process has to tell. Requests add to it, the poller reads."""

    def __init__(self, application: str, stale_after_s: float, now_s: float) -> None:
        self._instance = instance_name(os.uname().nodename, os.getpid(), secrets.token_hex(4))
        self._application = application[:WORD_CHARACTERS_MAX]
        self._stale_after_s = stale_after_s
        self._begun_s = now_s
        self._due_s = -inf
        self._told = 0  # times
        self._counts: dict[LockKeyTuple, HitCounts] = {}
        self._more = HitCounts()
        self._folded = [0, 0]  # of locks that nobody met for a while
        self._before: dict[LockKeyTuple, int] = {}  # checks, when they were told last
        self._sample = CallerSample()
        self._wanted = 0  # callers to note

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def report(self, sink: StatusSink, now_s: float, known: GateKnowledge, mode: str) -> None:
        """Tell all of it, from the beginning, and note the next few callers. Never raises."""
        status = self._status(now_s, known, mode)
        self._due_s = now_s + REPORT_EVERY_S
        try:
            sink.report_status(status)
        except SourceError as error:
            self._due_s = now_s + RETRY_AFTER_S
            log.info("nobody hears what this gate tells of itself: %s", error)
        except Exception:
            self._due_s = now_s + RETRY_AFTER_S
            log.exception("the source failed to hear what this gate tells of itself")
        self._wanted = SAMPLED_PER_REPORT

    @property
    def is_sampling(self) -> bool:
        """Whether callers are being noted."""
        return self._wanted > 0

    def sample(self, caller: str) -> bool:
        """Note this caller; whether it was the last that was wanted."""
        self._wanted -= 1  # two threads may count as one: then one more is noted
        if caller:
            self._sample.add(caller)
        return self._wanted <= 0

    def count_hits(self, locks: Sequence[LockTuple], decision: Decision) -> None:
        """These locks were met, and this is what they amounted to."""
        for held in locks:
            counts = self._of(key_of(held))
            counts.checks.add()
            if not decision.allowed and (held[ACTION] == "deny" or held[POLICY] == decision.policy):
                counts.denials.add()

    def _of(self, at: LockKeyTuple) -> HitCounts:
        counts = self._counts.get(at)
        if counts is not None:
            return counts
        if len(self._counts) >= LOCKS_COUNTED_MAX:
            return self._more
        return self._counts.setdefault(at, HitCounts())  # of two threads that make one, both get the same

    def _status(self, now_s: float, known: GateKnowledge, mode: str) -> GateStatus:
        met = [
            LockHits(LockKey(*at), c.checks.read(), c.denials.read()) for at, c in list(self._counts.items())
        ]
        met.sort(key=lambda each: (-each.checks, each.at))
        told, rest = tuple(met[:LOCKS_REPORTED_MAX]), met[LOCKS_REPORTED_MAX:]
        more = (
            self._folded[0] + self._more.checks.read() + sum(each.checks for each in rest),
            self._folded[1] + self._more.denials.read() + sum(each.denials for each in rest),
        )
        self._make_room(met)
        self._told += 1
        return GateStatus(
            instance=self._instance,
            number=self._told,
            application=self._application,
            library=_library_version(),
            at=known.view.at,
            age=now_s - known.confirmed_s,
            locks=told,
            more=more,
            callers=self._sample.callers(now_s),
            uptime=now_s - self._begun_s,
            stale_after=self._stale_after_s,
            clock_skew=known.clock_skew,
            mode=mode,
            ignored=tuple(word[:WORD_CHARACTERS_MAX] for word in islice(known.view.ignored, WORDS_MAX)),
        )

    def _make_room(self, met: Sequence[LockHits]) -> None:
        """Count those together that nobody met since the last time, once it becomes tight."""
        if len(met) > LOCKS_COUNTED_MAX // 2:
            for each in met:
                if self._before.get(each.at) == each.checks:
                    del self._counts[each.at]
                    self._folded[0] += each.checks
                    self._folded[1] += each.denials
        self._before = {each.at: each.checks for each in met}


def instance_name(host: str, pid: int, random: str) -> str:
    """A name for one gate in one process, by which people find that process.

    >>> instance_name("shop-7.example", 812, "1f3c99d0")
    'shop-7.example:812:1f3c99d0'
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:HOST_CHARACTERS_MAX]
    return f"{host}:{pid}:{random}"


def _library_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # a tenth of a start, for who never tells

    try:
        return version("gatelock")
    except PackageNotFoundError:  # run from a folder
        return ""
