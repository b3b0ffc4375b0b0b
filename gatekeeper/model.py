"""The values that gates, limiters, lock sources and the analyzer share: decisions, locks, and the feed's
updates.

Standard library only. The analyzer imports this module; this module imports nothing from the analyzer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = [
    "ALLOWED",
    "Change",
    "Clear",
    "Cursor",
    "Decision",
    "GateStatus",
    "Lock",
    "LockHits",
    "LockKey",
    "LockSource",
    "Rate",
    "Refused",
    "Set",
    "SourceError",
    "StatusSink",
    "Update",
]


class Decision(NamedTuple):
    """The answer of a gate or a limiter; true when the request may pass.

    An immutable value, equal and hashable by its fields. All durations are seconds, rounded up to a whole
    nanosecond.

    Attributes:
        allowed: Whether the request may pass.
        policy: The policy of the lock, or the name of the limiter, that decided; "" if none did.
        reason: Why the request is denied or slowed: "quota-exceeded", "abnormal-usage-detected",
            "temporary-reduced-capacity", "limited" (by a limiter) or "stale" (the gate's locks are too old);
            "" for no reason.
        detail: One sentence about the reason, for the caller; may be "".
        limit: How many requests the limiter, or the rate of a lock that slows, allows; None if not known. A
            gate knows no limits of quotas.
        remaining: How many requests are left; None if not known.
        retry_after: Seconds until the request may be allowed: 0.0 if it is allowed, None if waiting alone
            never helps or the time is not known.
        reset_after: Seconds until the limit is restored completely; None if not known.
        until: When the lock ends, with its time zone; None if no lock decided.
        status: The HTTP status for a refusal.
        also: If the request is denied: the policies of the other locks that deny it, which the client learns.
            If it is allowed: those of the other locks that apply.
        shadow: Whether the request would have been denied, by a gate or limiter that denies none.
        tags: The policies of the locks that apply with the action "tag".

    Example:
        >>> decision = Decision(False, policy="daily", reason="quota-exceeded", retry_after=60.0)
        >>> if not decision:
        ...     print(decision.status, decision.policy, decision.retry_after)
        429 daily 60.0
    """

    allowed: bool
    policy: str = ""
    reason: str = ""
    detail: str = ""
    limit: int | None = None
    remaining: int | None = None
    retry_after: float | None = 0.0
    reset_after: float | None = None
    until: datetime | None = None
    status: int = 429
    also: tuple[str, ...] = ()
    shadow: bool = False
    tags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.allowed


ALLOWED = Decision(True)


class Refused(Exception):
    """A denied request, raised by `enforce`. All other methods return the decision instead.

    Attributes:
        decision: The decision, with its reason and the time until a retry.

    Example:
        >>> try:
        ...     raise Refused(Decision(False, policy="daily", detail="100 requests per day, 101 counted"))
        ... except Refused as refused:
        ...     print(refused, refused.decision.status)
        100 requests per day, 101 counted 429
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail or decision.reason or "refused")
        self.decision = decision


class LockKey(NamedTuple):
    """The key of a lock, unique in the database and in a view.

    Attributes:
        scope: "caller", "tenant", "address", "range", "resource" or "everyone"; with a named value
            "value:NAME", "caller+value:NAME" or "tenant+value:NAME".
        key: The caller, tenant, address, CIDR block, route pattern or value; "" for "everyone".
        resource: The route pattern that the lock is narrowed to, or the value of a caller's or tenant's lock
            with a named value; "" for all resources.
        policy: The name of the policy.

    Example:
        >>> LockKey("caller", "api_key:acme", "", "daily")
        LockKey(scope='caller', key='api_key:acme', resource='', policy='daily')
    """

    scope: str
    key: str
    resource: str
    policy: str


class Rate(NamedTuple):
    """A rate of requests, which a lock with the action "slow" allows.

    Attributes:
        limit: Requests, at least 1.
        period: The period of `limit` in seconds, more than 0.

    Example:
        >>> Rate(10)
        Rate(limit=10, period=1.0)
    """

    limit: int
    period: float = 1.0


@dataclass(frozen=True, slots=True)
class Lock:
    """A decision to deny, slow or tag the requests of one scope, with its policy and the time when it ends.

    Args:
        scope: "caller", "tenant", "address", "range", "resource" or "everyone"; with a named value
            "value:NAME", "caller+value:NAME" or "tenant+value:NAME".
        key: The caller with its kind (`api_key:acme`), the tenant, the address, the CIDR block, the route
            pattern or the value; "" for "everyone".
        policy: The name of the policy.
        began: When the lock was set, with its time zone.
        until: When it ends by itself, with its time zone; WITHOUT_END: not by itself.
        resource: A route pattern that the lock is narrowed to, or the value of a caller's or tenant's lock
            with a named value; "" (the default) for all resources.
        kind: The kind of the policy: "quota", "share" or "surge".
        action: "deny" refuses requests with `status`. "slow" allows the rate `slow` and refuses the rest.
            "tag" refuses none and names the policy in `Decision.tags`. "suspend", for "everyone", disables
            all locks.
        status: The HTTP status of refusals.
        reason: The reason of the decision: see `Decision.reason`.
        detail: One sentence for the caller.
        on_stale: What a gate with a stale view does with the lock: "keep" enforces it until its end, "allow"
            ignores it.
        slow: The rate that "slow" allows in each process; None for the other actions.

    Example:
        >>> from datetime import UTC, datetime, timedelta
        >>> now = datetime(2026, 11, 20, tzinfo=UTC)
        >>> lock = Lock("caller", "api_key:acme", "daily", began=now, until=now + timedelta(hours=1))
        >>> lock.at.key, lock.action, lock.status
        ('api_key:acme', 'deny', 429)
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
    slow: Rate | None = None

    @property
    def at(self) -> LockKey:
        """The key of this lock."""
        return LockKey(self.scope, self.key, self.resource, self.policy)


# As the end of a lock: it has none, and ends when its limit does. Waiting alone does not help.
WITHOUT_END = datetime(9999, 1, 1, tzinfo=UTC)

# A lock that opens every gate until its end. Older gates, which do not know the action, ignore it. Snapshots
# contain it, and it ends like any other lock. Configuration allows no policy with this name.
SUSPENSION = LockKey("everyone", "", "", ":suspended")


class Set(NamedTuple):
    """The change that sets a lock, in place of one with the same key.

    Attributes:
        lock: The lock.

    Example:
        >>> from datetime import UTC, datetime
        >>> end = datetime(2026, 11, 21, tzinfo=UTC)
        >>> Set(Lock("caller", "api_key:acme", "daily", began=end, until=end)).at.policy
        'daily'
    """

    lock: Lock

    @property
    def at(self) -> LockKey:
        """The key of the lock."""
        return self.lock.at


class Clear(NamedTuple):
    """The change that removes the lock with this key.

    Attributes:
        at: The key of the lock.

    Example:
        >>> Clear(LockKey("caller", "api_key:acme", "", "daily")).at.key
        'api_key:acme'
    """

    at: LockKey


Change = Set | Clear


class Cursor(NamedTuple):
    """A version of the feed, as a client holds it.

    Attributes:
        version: Its number.
        mark: A random word that was made with the version. After a restore or a failover the database may
            count to the same number again; only the mark shows that it is another version.

    Example:
        >>> Cursor(58, "9f3c") == Cursor(58, "0a77")
        False
    """

    version: int
    mark: str


class Update(NamedTuple):
    """An answer of the feed: the changes after a version, or a snapshot of all locks.

    Attributes:
        at: The version that the client holds after this update.
        since: The version that the changes follow; None in a snapshot.
        snapshot: Whether `changes` set all locks there are, and all others must be forgotten.
        now: The source's time, with its time zone.
        behind: Seconds that the analyzers are behind the log.
        next_poll: Seconds until the source wants the next question.
        changes: The changes, in the order in which they must be applied.
        unknown: Words of the answer that this version does not know, such as "op warn".
        waited: Seconds from the question to the moment that the answer describes, such as those of a long
            poll; below 0 if the answer was already there before the question.

    Example:
        >>> from datetime import UTC, datetime
        >>> now = datetime(2026, 11, 20, tzinfo=UTC)
        >>> update = Update(Cursor(1, "9f3c"), None, True, now, behind=0.0, next_poll=0.4, changes=())
        >>> update.at.version, len(update.changes)
        (1, 0)
    """

    at: Cursor
    since: int | None
    snapshot: bool
    now: datetime
    behind: float
    next_poll: float
    changes: Sequence[Change]
    unknown: tuple[str, ...] = ()
    waited: float = 0.0


class SourceError(Exception):
    """The feed could not be read; the next attempt may succeed.

    Args:
        why: What is wrong and where, on one line, without secrets.

    Example:
        >>> str(SourceError("https://gatelock:8080: Connection refused"))
        'https://gatelock:8080: Connection refused'
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)


class LockSource(Protocol):
    """The source from which a gate learns of locks: SQL, HTTP, a file, a fixed list, or a custom one.

    A source may have an attribute `longest`, the seconds that a fetch may take at most, and may implement
    `StatusSink`. One that can be asked for the views of callers has a method `caller_view`: it takes a caller
    and returns a `gatekeeper.caller_view.CallerView`, or raises SourceError; any thread may call it.
    """

    def fetch(self, since: Cursor | None) -> Update:
        """Returns the changes after `since`, perhaps none, or a snapshot.

        A snapshot is returned when `since` is None, too old, or of another history. The client holds the
        cursor, so a lost answer costs nothing and calling twice is safe. After a fork parent and child call
        it on their own copies; a connection that was open at the fork belongs to the parent.

        Raises:
            SourceError: The feed cannot be read now. Raised within the source's time-out.
        """

    def close(self) -> None:
        """Releases connections and files; a later fetch opens them again.

        May be called while another thread fetches; a source that waits for news stops waiting.
        """


class LockHits(NamedTuple):
    """Requests that one lock applied to, since its gate started.

    Attributes:
        at: The key of the lock.
        checks: How many requests it applied to.
        denials: How many of them were denied.

    Example:
        >>> LockHits(LockKey("caller", "api_key:acme", "", "daily"), checks=12, denials=12).denials
        12
    """

    at: LockKey
    checks: int
    denials: int


class GateStatus(NamedTuple):
    """The status that a gate reports about itself.

    All counts are totals since the gate started, so a report that is lost or arrives twice counts nothing
    twice.

    Attributes:
        instance: The name of one gate in one process; another one after a fork or a restart.
        number: The number of this report, from 1. An older report must not replace a newer one.
        application: The name that the application gave the gate.
        library: The version of this package.
        at: The version of the gate's view.
        age: Seconds since the view was confirmed; None before the first answer.
        locks: The locks with the most hits.
        more: Checks and denials by the locks that are not in `locks`.
        callers: A sample of the callers in the last ten to twenty minutes.
        uptime: Seconds since the gate started.
        stale_after: The gate's setting, in seconds.
        clock_skew: Seconds that its machine's clock is ahead of the source's.
        mode: "" while it enforces locks; "shadow" if it denies no request; "process" or "fleet" if it is
            switched off.
        ignored: Words of the feed that the gate does not know and does not enforce.
        values: The named values that the gate takes.

    Example:
        >>> at = Cursor(57, "9f3c")
        >>> status = GateStatus("web-3:812:3e221d79", 1, "shop", "0.1.0", at, 0.4, (), (0, 0), ())
        >>> status.application, status.at.version, status.mode
        ('shop', 57, '')
    """

    instance: str
    number: int
    application: str
    library: str
    at: Cursor | None
    age: float | None
    locks: tuple[LockHits, ...]
    more: tuple[int, int]
    callers: tuple[str, ...]
    uptime: float = 0.0
    stale_after: float = 30.0
    clock_skew: float = 0.0
    mode: str = ""
    ignored: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


@runtime_checkable
class StatusSink(Protocol):
    """A LockSource that also takes reports of a gate's status. Other sources need not implement it."""

    wants_status: bool  # whether gates report to it by default

    def report_status(self, status: GateStatus) -> None:
        """Passes the status on. Losing it is always safe.

        Called from the thread that fetches, every few seconds.

        Raises:
            SourceError: The report failed. Raised within the source's time-out.
        """
