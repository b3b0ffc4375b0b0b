"""The options of a gate: checking what an application passed, and making the parts that they ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from gatekeeper.clock import Clock
from gatekeeper.model import Decision, LockSource, StatusSink
from gatekeeper.sources import open_source

if TYPE_CHECKING:
    from gatekeeper.feed.saved_view import ViewFile
    from gatekeeper.view.precedence import SlowLimit

SWITCH = "GATEKEEPER"  # an environment variable; "off" switches off the gates of a process

STALE = Decision(
    False, reason="stale", detail="The locks are not known at the moment.", retry_after=None, status=503
)


class CheckingLimiter(Protocol):
    """The part of a limiter that a gate calls."""

    def check(self, key: str, /) -> Decision: ...


@dataclass(frozen=True, slots=True)
class GateOptions:
    """The checked options of one gate, described at `Gate`. Durations are in seconds."""

    source: LockSource
    clock: Clock
    stale_after_s: float = 30.0
    on_stale: Literal["allow", "deny"] | CheckingLimiter = "allow"
    view_file: ViewFile | None = None
    name: str = ""
    shadow: bool = False
    status_sink: StatusSink | None = None


def make_options(
    source: str | LockSource,
    *,
    token: str | Path | None,
    stale_after: float,
    on_stale: Literal["allow", "deny"] | CheckingLimiter,
    saved: Path | None,
    shared: bool,
    name: str,
    shadow: bool,
    report_status: bool | None,
    clock: Clock,
) -> GateOptions:
    """The options from the arguments of `Gate`. Raises ValueError, ImportError."""
    if not 0 < stale_after < inf:
        raise ValueError(f"stale_after: expected seconds above 0, got {stale_after!r}")
    if isinstance(on_stale, str) and on_stale not in ("allow", "deny"):
        raise ValueError(f"on_stale: expected 'allow', 'deny' or a limiter, got {on_stale!r}")
    source = open_lock_source(source, token, stale_after)
    return GateOptions(
        source=share_poller(source, saved, stale_after, clock) if shared else source,
        clock=clock,
        stale_after_s=stale_after,
        on_stale=on_stale,
        view_file=None if saved is None else open_view_file(saved),
        name=name,
        shadow=shadow,
        status_sink=find_status_sink(source, report_status),
    )


def open_lock_source(source: str | LockSource, token: str | Path | None, stale_after_s: float) -> LockSource:
    """The source itself, or the one that a URL names. Raises ValueError, ImportError."""
    if isinstance(source, str):
        # A long poll must end well before the view becomes stale.
        return open_source(source, token=token, longest=stale_after_s / 3)
    if token is not None:
        raise ValueError("token: not used for a source that is already made; pass it to the source")
    return source


def share_poller(source: LockSource, saved: Path | None, stale_after_s: float, clock: Clock) -> LockSource:
    """A source that one process fetches for all that save their view at `saved`. Raises ValueError."""
    from gatekeeper.sources.shared_poller import SharedSource

    if saved is None:
        raise ValueError("shared: needs `saved`, the path that the processes have in common")
    return SharedSource(source, saved, stale_after_s / 2, clock.uptime_s)


# The imports below are late because each is a notable part of the start of a process that does not need it.


def open_view_file(path: Path) -> ViewFile:
    from gatekeeper.feed.saved_view import ViewFile

    return ViewFile(path)


def make_slow_locks(clock: Clock) -> SlowLimit:
    from gatekeeper.slow_locks import SlowLocks

    return SlowLocks(lambda: int(clock.uptime_s() * 1e9))


def find_status_sink(source: LockSource, report_status: bool | None) -> StatusSink | None:
    """The source, if status is to be reported to it. Raises ValueError when it must but cannot be."""
    if isinstance(source, StatusSink):
        return source if report_status or (report_status is None and source.wants_status) else None
    if report_status:
        raise ValueError("report_status: this source takes no reports; leave it out")
    return None


def is_switched_off() -> bool:
    """Whether GATEKEEPER=off is set in this process's environment."""
    return os.environ.get(SWITCH, "").strip().lower() == "off"
