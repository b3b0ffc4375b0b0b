"""What a gate is made of, put together from what an application says."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from gatekeeper.clock import Clock
from gatekeeper.model import Decision, LockSource, StatusSink
from gatekeeper.sources import open_source

if TYPE_CHECKING:
    from gatekeeper.feed.saved_view import ViewFile
    from gatekeeper.view.precedence import SlowLimit

SWITCH = "GATEKEEPER"  # the environment variable; "off" opens the gates of this process

STALE = Decision(
    False, reason="stale", detail="The locks are not known at the moment.", retry_after=None, status=503
)


class CheckingLimiter(Protocol):
    """A limiter, as far as a gate needs one."""

    def check(self, key: str, /) -> Decision: ...


def check_stale(stale_after_s: float, on_stale: Literal["allow", "deny"] | CheckingLimiter) -> None:
    """Raises ValueError for what cannot be."""
    if not 0 < stale_after_s < inf:
        raise ValueError(f"stale_after: expected seconds above 0, got {stale_after_s!r}")
    if isinstance(on_stale, str) and on_stale not in ("allow", "deny"):
        raise ValueError(f"on_stale: expected 'allow', 'deny' or a limiter, got {on_stale!r}")


def open_lock_source(source: str | LockSource, token: str | Path | None, stale_after_s: float) -> LockSource:
    """The source that was named. Raises ValueError, ImportError."""
    if isinstance(source, str):
        # A fetch that waits for news must be back long before the view is stale.
        return open_source(source, token=token, longest=stale_after_s / 3)
    if token is not None:
        raise ValueError("token: this source was made without the gate; give it the token")
    return source


def share_poller(source: LockSource, saved: Path | None, stale_after_s: float, clock: Clock) -> LockSource:
    """`source`, asked by one process for all those that keep their view at `saved`. Raises ValueError."""
    from gatekeeper.sources.shared_poller import SharedSource

    if saved is None:
        raise ValueError("shared: needs `saved`, the file beside which the processes meet")
    return SharedSource(source, saved, stale_after_s / 2, clock.uptime_s)


def open_view_file(path: Path) -> ViewFile:
    from gatekeeper.feed.saved_view import (
        ViewFile,  # what it needs for its digest is a tenth of a start without it
    )

    return ViewFile(path)


def make_slow_locks(clock: Clock) -> SlowLimit:
    from gatekeeper.slow_locks import SlowLocks  # what it needs is half of a start, for who has no such lock

    return SlowLocks(lambda: int(clock.uptime_s() * 1e9))


def status_sink(source: LockSource, wanted: bool | None) -> StatusSink | None:
    """The source, if it is to be told. Raises ValueError when it cannot be."""
    if isinstance(source, StatusSink):
        return source if wanted or (wanted is None and source.wants_status) else None
    if wanted:
        raise ValueError("report_status: this source takes no reports")
    return None


def is_switched_off() -> bool:
    return os.environ.get(SWITCH, "").strip().lower() == "off"
