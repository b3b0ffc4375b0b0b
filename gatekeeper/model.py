"""The words that both sides share: what a gate answers, what a lock is, how the feed tells of changes.

Standard library only. The analyzer imports this module, never the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable


class Decision(NamedTuple):
    """The answer of a gate or a limiter; true when the request may pass.

    Durations are seconds, rounded up to a whole nanosecond. A value: equal and hashable by
    what it says, and nobody can write to it, least of all to the shared `ALLOWED`.
    """

    allowed: bool
    policy: str = ""  # who says no
    # "quota-exceeded", "abnormal-usage-detected", "temporary-reduced-capacity", "limited" or "stale"
    reason: str = ""
    detail: str = ""  # one sentence for a person
    limit: int | None = None  # None: not known; a gate hears of denials only
    remaining: int | None = None
    retry_after: float | None = 0.0  # 0.0 when allowed; None: waiting alone never helps, or nobody knows
    reset_after: float | None = None
    until: datetime | None = None
    status: int = 429
    also: tuple[str, ...] = ()  # other policies whose locks apply
    shadow: bool = False  # would have been denied; the policy or the gate only watches
    tags: tuple[str, ...] = ()  # policies whose locks refuse nobody and tell the application

    def __bool__(self) -> bool:
        return self.allowed


ALLOWED = Decision(True)


class Refused(Exception):
    """Raised by `enforce` alone; everybody else answers with the decision that it carries."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail or decision.reason or "refused")
        self.decision = decision


class LockKey(NamedTuple):
    """What a lock is found by: one row, one entry in a view. Clearing one leaves the others."""

    scope: str
    key: str
    resource: str  # "" for every resource
    policy: str


class Rate(NamedTuple):
    """So many requests in so many seconds."""

    limit: int
    period: float = 1.0


@dataclass(frozen=True, slots=True)
class Lock:
    """A closed gate for one scope, with who closed it, why, and until when.

    Its action: "deny" refuses with `status`, "slow" lets the rate `slow` through and refuses the rest,
    "tag" refuses nobody and is named in the decision. "suspend" is the off switch of a whole fleet.
    """

    scope: str
    key: str
    policy: str
    began: datetime
    until: datetime
    resource: str = ""
    kind: str = "quota"
    action: str = "deny"
    status: int = 429
    reason: str = "quota-exceeded"
    detail: str = ""
    on_stale: str = "keep"
    slow: Rate | None = None  # what a lock that slows lets through, in each process

    @property
    def at(self) -> LockKey:
        return LockKey(self.scope, self.key, self.resource, self.policy)


# A lock that opens every gate until its end. A gate that does not know the action passes it over; it is
# told of in snapshots and ended like any other lock. No policy can have this name.
SUSPENSION = LockKey("everyone", "", "", ":suspended")


class Set(NamedTuple):
    """The gate of `lock.at` is closed, in the way that `lock` says."""

    lock: Lock

    @property
    def at(self) -> LockKey:
        return self.lock.at


class Clear(NamedTuple):
    """The lock at this key is gone."""

    at: LockKey


Change = Set | Clear


class Cursor(NamedTuple):
    """The version a client holds. The random mark tells two histories with equal numbers apart:
    a restored or failed-over database may hand out 58 a second time."""

    version: int
    mark: str


class Update(NamedTuple):
    """One answer of the feed: what changed after `since`, or every lock when `snapshot` is true."""

    at: Cursor
    since: int | None
    snapshot: bool
    now: datetime  # the clock over there
    behind: float  # seconds that the analyzers lag behind the log
    next_poll: float  # seconds until the server wants to be asked again
    changes: Sequence[Change]
    unknown: tuple[str, ...] = ()  # words in the answer that this version does not know: "op warn"
    waited: float = 0.0  # seconds from the question to the moment that this tells of; below 0: before it


class SourceError(Exception):
    """The feed could not be read; the next attempt may succeed."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


class LockSource(Protocol):
    """Where a gate learns of locks: SQL, HTTP, a file, a fixed list."""

    def fetch(self, since: Cursor | None) -> Update:
        """What changed after `since`, perhaps nothing; every lock when `since` is None, too old,
        or of another history.

        The client holds the cursor, so a lost answer costs nothing and calling twice is safe.
        Returns or raises SourceError within the source's own time-out. After a fork parent and
        child each call it on their own copy: a connection that was open then is the parent's.
        """

    def close(self) -> None:
        """Give back what is held; fetching again afterwards opens it anew.

        May be called while another thread fetches; a source that waits for news stops waiting.
        """


class LockHits(NamedTuple):
    """How often one lock was met since the gate began, and how often it refused."""

    at: LockKey
    checks: int
    denials: int


class GateStatus(NamedTuple):
    """What a gate tells of itself. Everything is counted from its beginning and nothing since the last
    time, so that one that gets lost, or comes twice, costs nothing."""

    instance: str  # one gate in one process; another after a fork or a restart
    number: int  # how often it has told, with this one: what comes late must not replace what is newer
    application: str  # what the application calls the gate
    library: str  # this package's version
    at: Cursor | None  # what its view is at
    age: float | None  # seconds; None before the first answer
    locks: tuple[LockHits, ...]  # those that were met most often
    more: tuple[int, int]  # checks and denials by the locks that are not among them
    callers: tuple[str, ...]  # a sample of those it was asked for in the last ten to twenty minutes
    uptime: float = 0.0  # seconds since it began
    stale_after: float = 30.0
    clock_skew: float = 0.0  # seconds that its machine's clock is ahead of the source's
    mode: str = ""  # "shadow": it refuses nobody; "process", "fleet": the off switch was thrown
    ignored: tuple[str, ...] = ()  # what the feed said that it does not know, and does not enforce


@runtime_checkable
class StatusSink(Protocol):
    """A LockSource that also takes along what a gate tells. The others need not know of it."""

    wants_status: bool  # whether gates tell it, unless they are told otherwise

    def report_status(self, status: GateStatus) -> None:
        """Pass `told` on, at once or with the next fetch; it is always safe to forget.

        Called from the thread that fetches, every few seconds. Returns or raises SourceError within
        the source's own time-out.
        """
