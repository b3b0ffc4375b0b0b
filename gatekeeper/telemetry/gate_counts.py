"""Counts of one gate in one process, for metrics: checks that met a lock, and polls.

A request without a lock is not counted: it takes the fast path, to which metrics add nothing. Requests that
take the slow path add to one counter, without a mutex, and only after metrics were asked for once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from gatekeeper.model import Decision
from gatekeeper.telemetry.atomic_counts import AtomicCounts
from gatekeeper.view.lock_tuples import ACTION, ON_STALE, LockTuple

__all__ = ["GateMeasurements"]

KEYS_MAX = 1_000  # outcomes of policies that are counted apart; those of further policies have no name
Failure = Literal["stale", "limiter"]


class GateMeasurements(NamedTuple):
    """Numbers about one gate in this process. Counts are totals since they were first asked for.

    Attributes:
        name: The name that the application gave the gate.
        checks: Requests that a lock or a stale view decided, by outcome and policy. Outcomes: "denied",
            "shadow" (would have been denied), "slowed" (passed within a rate) and "tagged" (passed). The
            policy is "" where a stale view denied.
        failed_open: Requests that passed because something failed, by reason: "stale", a lock was ignored
            because the view is stale; "limiter", the limiter for a stale view raised an error.
        polls: Polls that have ended, those that failed included.
        poll_failures: Polls that failed.
        poll_seconds: The time that polls took, without the server's wait for news.
        age: Seconds since the view was confirmed; infinite before the first answer.
        version: The version of the view; 0 before the first answer.
        locks: Keys in the view that have a lock.
        healthy: Whether the gate polls and its view is not stale.
        off: The off switch that is in force: "process", "fleet" or "".
        behind: Seconds that the analyzers were behind the log, by the last answer.

    Example:
        >>> from gatekeeper import Gate
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> with Gate(FixedSource(), name="shop") as gate:
        ...     gate.ready(timeout=5), gate.measure().name, gate.measure().locks
        (True, 'shop', 0)
    """

    name: str
    checks: Mapping[tuple[str, str], int]
    failed_open: Mapping[str, int]
    polls: int
    poll_failures: int
    poll_seconds: float
    age: float
    version: int
    locks: int
    healthy: bool
    off: str
    behind: float


class GateCounts:
    """The counters of one gate. Requests add from any thread; polls are added by the poller alone."""

    __slots__ = ("_checks", "_failed_open", "_reading", "poll_failures", "poll_s", "polls")

    def __init__(self) -> None:
        self._checks: dict[tuple[str, str], AtomicCounts] = {}
        self._failed_open: dict[Failure, AtomicCounts] = {"stale": AtomicCounts(), "limiter": AtomicCounts()}
        self._reading = threading.Lock()  # of readers alone: no request waits for it
        self.polls = 0
        self.poll_failures = 0
        self.poll_s = 0.0

    def add_check(self, decision: Decision, applying: Sequence[LockTuple]) -> None:
        """Counts one request of the slow path by its decision, if a lock or a stale view made it.

        `applying` has the locks that apply, those included that a stale view ignores; empty if it is not
        stale.
        """
        if not decision.allowed:
            self._add("denied", decision.policy)
        elif decision.shadow:
            self._add("shadow", decision.policy)
        elif decision.policy:
            self._add("tagged" if decision.policy in decision.tags else "slowed", decision.policy)
        if decision.allowed and any(lock[ON_STALE] == "allow" and lock[ACTION] != "tag" for lock in applying):
            self.add_failing_open("stale")

    def _add(self, outcome: str, policy: str) -> None:
        key = outcome, policy
        counts = self._checks.get(key)
        if counts is None:
            if len(self._checks) >= KEYS_MAX:
                key = outcome, ""
            counts = self._checks.setdefault(key, AtomicCounts())  # atomic, when two threads add the same key
        counts.add()

    def add_failing_open(self, reason: Failure) -> None:
        """Counts one request that passes because something failed."""
        self._failed_open[reason].add()

    def add_poll(self, seconds: float, *, has_failed: bool) -> None:
        """Counts one poll."""
        self.polls += 1
        self.poll_failures += has_failed
        self.poll_s += seconds

    def checks(self) -> dict[tuple[str, str], int]:
        """Returns the requests by outcome and policy."""
        with self._reading:
            return {key: counts.read() for key, counts in list(self._checks.items())}

    def failed_open(self) -> dict[str, int]:
        """Returns the requests that passed because something failed, by reason."""
        with self._reading:
            return {reason: counts.read() for reason, counts in self._failed_open.items()}
