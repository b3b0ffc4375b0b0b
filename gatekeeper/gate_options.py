"""The options of a gate: checking what an application passed, and making the parts that they ask for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from gatekeeper.clock import Clock
from gatekeeper.model import Decision, LockSource, StatusSink
from gatekeeper.sources import open_source
from gatekeeper.view.lookup_keys import VALUE_NAME

if TYPE_CHECKING:
    from gatekeeper.feed.saved_view import ViewFile
    from gatekeeper.view.precedence import SlowLimit

ARGUMENTS = ("self", "caller", "resource", "address", "tenant")  # of `check`
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
    startup_wait_s: float = 0.5
    on_stale: Literal["allow", "deny"] | CheckingLimiter = "allow"
    view_file: ViewFile | None = None
    name: str = ""
    values: tuple[str, ...] = ()
    shadow: bool = False
    status_sink: StatusSink | None = None


def make_options(
    source: str | LockSource,
    *,
    token: str | Path | None,
    stale_after: float,
    on_stale: Literal["allow", "deny"] | CheckingLimiter,
    saved: Path | str | None,
    shared: bool,
    name: str,
    startup_wait: float,
    values: Iterable[str],
    shadow: bool,
    report_status: bool | None,
    clock: Clock,
) -> GateOptions:
    """The options from the arguments of `Gate`. Raises ValueError, TypeError, ImportError."""
    require_options(source, saved, stale_after, startup_wait, on_stale, name)
    saved = None if saved is None else Path(saved)
    source = open_lock_source(source, token, stale_after)
    return GateOptions(
        source=share_poller(source, saved, stale_after, clock) if shared else source,
        clock=clock,
        stale_after_s=stale_after,
        startup_wait_s=startup_wait,
        on_stale=on_stale,
        view_file=None if saved is None else open_view_file(saved),
        name=name,
        values=value_names(values),
        shadow=shadow,
        status_sink=find_status_sink(source, report_status),
    )


def require_options(
    source: object, saved: object, stale_after: object, startup_wait: object, on_stale: object, name: object
) -> None:
    """Raises TypeError or ValueError for an argument of `Gate` that the polling thread would fail with."""
    if not isinstance(source, str) and not callable(getattr(source, "fetch", None)):
        raise TypeError(f"source: expected a URL or a LockSource, got {source!r:.80}")
    if saved is not None and not isinstance(saved, str | os.PathLike):
        raise TypeError(f"saved: expected the path of a file, got {saved!r:.80}")
    if saved is not None and not Path(saved).name:
        raise ValueError(f"saved: expected the path of a file, got {saved!r}")
    for option, value in (("stale_after", stale_after), ("startup_wait", startup_wait)):
        if not isinstance(value, int | float):
            raise TypeError(f"{option}: expected seconds, got {value!r:.80}")
        if not 0 <= value < inf or (option == "stale_after" and not value):
            least = "above 0" if option == "stale_after" else "from 0 on"
            raise ValueError(f"{option}: expected seconds {least}, got {value!r}")
    if on_stale not in ("allow", "deny") and not callable(getattr(on_stale, "check", None)):
        raise ValueError(f"on_stale: expected 'allow', 'deny' or a limiter, got {on_stale!r:.80}")
    if not isinstance(name, str):
        raise TypeError(f"name: expected text, got {name!r:.80}")


def value_names(values: Iterable[str]) -> tuple[str, ...]:
    """The names of named values, sorted. Raises TypeError or ValueError for what cannot be one."""
    if isinstance(values, str):
        raise TypeError(f"values: expected a list of names, got {values!r:.80}")
    names = sorted({*values})
    for name in names:
        if VALUE_NAME.fullmatch(name) is None or name in ARGUMENTS:
            raise ValueError(f"values: expected names of [[groupings]], got {name!r:.80}")
    return tuple(names)


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
