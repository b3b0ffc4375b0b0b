"""All locks of one version, found by what a request says of itself. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

from gatekeeper.model import Change, Cursor, Lock, Set, Update

# What this version enforces. Anything else is passed over and counted: that is how the feed may grow.
SCOPES = ("caller", "tenant", "address", "resource", "everyone")
ACTIONS = ("deny",)
ON_STALE = ("keep", "allow")

IGNORED_MAX = 100  # different words counted apart; a source that makes up new ones costs no more memory

NEVER_NS = 1 << 63  # later than any lock ends
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Locks = dict[str, tuple[Lock, ...]]  # of one scope, by key; mostly one at each


class OutOfStep(Exception):  # nobody's fault: an answer was lost, or came twice
    """The update does not follow from the version that the view holds; only a snapshot will do."""


@dataclass(frozen=True, slots=True)
class View:
    """Locks by scope and key. Nobody writes to it; the next one shares the scopes that did not change."""

    at: Cursor | None  # None: not confirmed by a source
    scopes: Mapping[str, Locks]
    next_end_ns: int = NEVER_NS  # no lock ends before this; perhaps none then either
    ignored: Mapping[str, int] = field(default_factory=dict)  # what was passed over, and how often it was met

    def __iter__(self) -> Iterator[Lock]:
        return (lock for locks in self.scopes.values() for found in locks.values() for lock in found)

    def of(self, asked: Iterable[tuple[str, str]], resource: str) -> list[Lock]:
        """The locks at these (scope, key), without those that are narrowed to another resource."""
        return [
            lock
            for scope, key in asked
            for lock in self.scopes[scope].get(key, ())
            if not lock.resource or lock.resource == resource
        ]


EMPTY = View(None, {scope: {} for scope in SCOPES})


def end_ns(lock: Lock) -> int:
    """When the lock ends, nanoseconds since 1970; exact, where a float would not be."""
    past = lock.until - EPOCH
    return ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 1_000


def apply(view: View, update: Update) -> View:
    """The view after `update`. Raises OutOfStep when it does not follow from `view`.

    So an update that comes twice changes nothing the second time, and none can be left out.
    """
    if update.snapshot:
        return _changed(replace(view, scopes=EMPTY.scopes, next_end_ns=NEVER_NS), update)
    if view.at is None or update.since != view.at.version or update.at.version < update.since:
        raise OutOfStep(f"the view is at {view.at}, the answer leads from {update.since} to {update.at}")
    if update.at.version == view.at.version and (update.changes or update.at != view.at):
        raise OutOfStep(f"there is another version {update.at.version} than the view's")
    return _changed(view, update) if update.changes or update.unknown or update.at != view.at else view


def without_ended(view: View, wall_ns: int) -> View:
    """The view without the locks that have ended by `wall_ns`; the same object when none can have."""
    if wall_ns < view.next_end_ns:
        return view
    lasting = [lock for lock in view if wall_ns < end_ns(lock)]
    return with_locks(replace(view, scopes=EMPTY.scopes, next_end_ns=NEVER_NS), lasting)


def with_locks(view: View, locks: Iterable[Lock]) -> View:
    """The view with these locks set as well."""
    return _changed_by(view, [Set(lock) for lock in locks])


def _changed(view: View, update: Update) -> View:
    words = [*update.unknown, *(word for change in update.changes for word in _strange_in(change))]
    ignored = _counted(view.ignored, words) if words else view.ignored
    return replace(_changed_by(view, update.changes), at=update.at, ignored=ignored)


def _changed_by(view: View, changes: Iterable[Change]) -> View:
    scopes = dict(view.scopes)
    ours = set()  # scopes that were copied: nobody reads them yet
    next_end_ns = view.next_end_ns
    for change in changes:
        scope = change.at.scope
        if scope not in scopes:
            continue
        if scope not in ours:
            scopes[scope] = dict(scopes[scope])
            ours.add(scope)
        _put(scopes[scope], change)
        if isinstance(change, Set):
            next_end_ns = min(next_end_ns, end_ns(change.lock))
    return replace(view, scopes=scopes, next_end_ns=next_end_ns)


def _put(locks: Locks, change: Change) -> None:
    # Also when the new action is unknown: the old one is over, and to keep it would be to refuse on.
    rest = tuple(lock for lock in locks.get(change.at.key, ()) if lock.at != change.at)
    if isinstance(change, Set) and change.lock.action in ACTIONS:
        rest = (*rest, change.lock)
    if rest:
        locks[change.at.key] = rest
    else:
        locks.pop(change.at.key, None)


def _strange_in(change: Change) -> Iterator[str]:
    if isinstance(change, Set):
        lock = change.lock
        if lock.scope not in SCOPES:
            yield f"scope {lock.scope}"
        if lock.action not in ACTIONS:
            yield f"action {lock.action}"
        if lock.on_stale not in ON_STALE:
            yield f"on_stale {lock.on_stale}"


def _counted(ignored: Mapping[str, int], words: Iterable[str]) -> Mapping[str, int]:
    counts = dict(ignored)
    for word in words:
        known = word if word in counts or len(counts) < IGNORED_MAX else "more"
        counts[known] = counts.get(known, 0) + 1
    return MappingProxyType(counts)
