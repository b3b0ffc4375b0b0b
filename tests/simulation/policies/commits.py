"""The state after a commit, besides counts, for the rules about rolling windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from kafka import TopicPartition

from analyzer.judging.earned_notices import NoticeKey
from analyzer.plan.plan import Plan
from analyzer.plan.sums import Sum
from gatekeeper.model import LockKey
from tests.simulation.database import SimulatedDatabase
from tests.simulation.kafka_log import TOPIC, Topic
from tests.simulation.policies.series import Series

SILENT_S = 60  # after its last heartbeat a partition is followed by no analyzer
# A flush knows how far it was behind when it began; it may be slow, and its process may be paused.
FLUSH_S_MAX = 16.0
LOCK_ROW = "select scope, key, resource, policy, until_ms, began_ms from locks"
# A sum of a rolling window is "caller requests rolling 24".
NOTICE_ROW = """
    select policy, sum, "key", resource, window_s, threshold, until_s, "limit", at_ms
    from notices where sum like '% rolling %'
"""
HOLD_ROW = "select scope, key, resource, policy, since_ms, seen_ms from holds"
FOLLOWED = "select partition from offsets where beat_ms > ?"
WAITING = """
    select catalog.name, postponed.key, postponed.resource from postponed
    join catalog on catalog.kind = 'sum' and catalog.number = postponed.sum
"""


class Wrong(AssertionError):
    """Something is not as it must be."""


class StoredLock(NamedTuple):
    """A lock as gates must see it."""

    at: LockKey
    until_ms: int
    action: str
    began_ms: int


class LockTime(NamedTuple):
    """A lock that denies requests, and when it is in force as long as it is not cleared."""

    at: LockKey
    until_ms: int
    began_ms: int


class NoticeRow(NamedTuple):
    """A stored notice without its key."""

    used: int
    limit: int
    at_ms: int


class SeenLock(NamedTuple):
    """A lock as it was stored."""

    until_ms: int
    began_ms: int


class SeenNotice(NamedTuple):
    """A notice as it was stored."""

    until_s: int
    limit: int
    at_ms: int


class Over(NamedTuple):
    """Since when a series is above its share in every look, and when the last look was."""

    since_ms: int
    seen_ms: int


class Commit(NamedTuple):
    """The database after a commit, and what the log says about it."""

    plan: Plan
    unready: frozenset[str]
    now_ms: int
    locks: Mapping[LockKey, SeenLock]  # of rolling windows
    holds: Mapping[LockKey, Over]
    notices: Mapping[NoticeKey, SeenNotice]  # of rolling windows
    waiting: Collection[tuple[str, str, str]]  # name of the sum, key, resource
    # Age of the oldest record that can be read and is not counted, of each partition that has moved.
    missing_s: Sequence[float]
    missing_anywhere_s: Sequence[float]  # of each partition that is followed
    has_slept: bool  # all machines, within the last FLUSH_S_MAX
    held_off: Collection[LockKey] = ()
    usual: Mapping[tuple[Sum, Series], int | None] = {}  # loads of this hour in the weeks before

    @property
    def now_s(self) -> int:
        return self.now_ms // 1000


def read_commit(
    database: SimulatedDatabase,
    topic: Topic,
    plan: Plan,
    unready: frozenset[str],
    policies: Collection[str],
    before: Mapping[int, int],
    next_: Mapping[int, int],
    slept_s: float,
) -> Commit:
    """Returns what the database has now.

    `policies` has the names of all policies with rolling windows so far, `before` and `next_` the position of
    each partition before the commit and now, `slept_s` is the time since all machines were suspended.
    """
    now_ms = round(database.clock_s() * 1000)
    locks = {LockKey(*row[:4]): SeenLock(*row[4:]) for row in database.read(LOCK_ROW)}
    followed = {row[0] for row in database.read(FOLLOWED, now_ms - SILENT_S * 1000)}
    ages_s = {
        number: missing_s(topic, number, next_[number], database.wall_s())
        for number in followed & next_.keys()
    }
    return Commit(
        plan,
        unready,
        now_ms,
        {at: lock for at, lock in locks.items() if at.policy in policies},
        {LockKey(*row[:4]): Over(*row[4:]) for row in database.read(HOLD_ROW)},
        {NoticeKey(*row[:6]): SeenNotice(*row[6:]) for row in database.read(NOTICE_ROW)},
        {(name, key, resource) for name, key, resource in database.read(WAITING)},
        [age_s for number, age_s in ages_s.items() if next_[number] != before.get(number)],
        list(ages_s.values()),
        slept_s < FLUSH_S_MAX,
    )


def missing_s(topic: Topic, number: int, next_: int, wall_s: float) -> float:
    """Returns the age of the oldest record of a partition that can be read and is not counted; 0: none."""
    log = topic.logs[TopicPartition(TOPIC, number)]
    if next_ >= log.stable_end:
        return 0.0
    _, kafka_ms, _ = next(log.records(next_, log.stable_end), (0, inf, None))
    return max(0.0, wall_s - kafka_ms / 1000)
