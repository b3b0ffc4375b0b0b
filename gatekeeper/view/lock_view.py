"""The view: all locks of one version, found by the scopes of a request. Immutable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from gatekeeper.model import Cursor, Lock, Update
from gatekeeper.view import sharded_table
from gatekeeper.view.cooperative import drain, with_pauses
from gatekeeper.view.lock_tuples import (
    ACTION,
    END,
    KEY,
    ON_STALE,
    RESOURCE,
    SCOPE,
    SLOW,
    ChangeTuple,
    LockKeyTuple,
    LockTuple,
    is_set,
    packed,
    tuple_key,
    unpack_lock,
)
from gatekeeper.view.lookup_keys import (
    ADDRESS_BITS,
    PAIR_SCOPES,
    RANGE_TABLES,
    VALUE_NAME,
    VALUE_SCOPE,
    is_of_callers,
    normalize_route,
    pair_value,
    parse_address,
    prefix_length,
    table_keys,
    value_key,
)
from gatekeeper.view.sharded_table import LockTable, TableBuilder

# What this version enforces. Other words are ignored and counted, so that the feed may grow.
# Those of named values have a colon and a name behind them.
SCOPES = ("caller", "tenant", "address", "range", "resource", "everyone")
VALUE_SCOPES = (VALUE_SCOPE, *PAIR_SCOPES)
ACTIONS = ("deny", "slow", "tag", "suspend")
ON_STALES = ("keep", "allow")

IGNORED_MAX = 100  # distinct words counted apart, so that a source cannot use up memory by inventing words

NEVER_NS = 1 << 63  # later than any lock ends

TABLES = ("caller", "tenant", "address", "resource", "everyone", *RANGE_TABLES.values(), *VALUE_SCOPES)
PREFIX_TABLES = tuple(RANGE_TABLES.values())
LARGE = 10_000  # locks; ended ones are removed from a larger view less often
PRUNE_LARGE_NS = 10_000_000_000


class ViewOutOfStep(Exception):  # expected: an answer was lost, or came twice
    """The update does not follow from the view's version; only a snapshot helps."""


NO_VALUES: Mapping[str, str] = MappingProxyType({})


class RequestScopes(NamedTuple):
    """The scopes by which one request may be locked; "" is absent, and no lock applies to an absent scope.

    `values` has the named values of the request.
    """

    caller: str = ""
    tenant: str = ""
    address: str = ""
    resource: str = ""
    values: Mapping[str, str] = NO_VALUES


NO_SCOPES = RequestScopes()


def request_scopes(caller: object, tenant: object, address: object, resource: object) -> RequestScopes:
    """The scopes from these values; one that is not a str counts as absent."""
    return RequestScopes(*map(_present, (caller, tenant, address, resource)))


def _present(part: Any) -> Any:
    return part if isinstance(part, str) else ""


def named_values(values: Mapping[str, Any]) -> dict[str, str]:
    """The named values of a request that are present: text, and not empty."""
    return {name: value for name, value in values.items() if isinstance(value, str) and value}


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LockView:
    """All locks of one version. Immutable; the next view shares what did not change.

    Attributes:
        at: The version that the view is at; None until a source has confirmed it.
        tables: Locks by table and lookup key.
        lengths: Prefix lengths in use with the number of their keys, by table.
        next_end_ns: No lock ends before this time, in nanoseconds since 1970.
        ignored: Unknown words of the feed, and how often each was seen.
        slows: Whether a lock with the action "slow" is, or was, in the view.
    """

    at: Cursor | None
    tables: Mapping[str, LockTable]
    lengths: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    next_end_ns: int = NEVER_NS
    ignored: Mapping[str, int] = field(default_factory=dict)
    slows: bool = False

    def __iter__(self) -> Iterator[Lock]:
        return map(unpack_lock, self.lock_tuples())

    def lock_tuples(self) -> Iterator[LockTuple]:
        """Every lock, with pauses in between."""
        by_key = (
            (name, locks) for name, table in self.tables.items() for locks in sharded_table.locks_in(table)
        )
        # A lock on a caller that is an address is also in a table of addresses.
        return with_pauses(
            lock
            for name, locks in by_key
            for lock in locks
            if is_of_callers(name) or not is_of_callers(lock[SCOPE])
        )

    def __len__(self) -> int:
        """The number of keys that have a lock; a caller that is an address is counted as both."""
        return sum(map(len, self.tables.values()))

    def matching(self, scopes: RequestScopes) -> list[LockTuple]:
        """The locks that apply to a request, those that have ended included."""
        tables = self.tables
        locks: list[LockTuple] = [*tables["everyone"].get("", ())]
        if scopes.caller:
            locks += tables["caller"].get(scopes.caller, ())
        if scopes.tenant:
            locks += tables["tenant"].get(scopes.tenant, ())
        if scopes.resource:
            locks += tables["resource"].get(normalize_route(scopes.resource), ())
        if scopes.address:
            on_address = self._on_address(scopes.address)
            # Only a request without a caller is counted by its address.
            locks += [lock for lock in on_address if not (scopes.caller and is_of_callers(lock[SCOPE]))]
        if scopes.values:
            locks += self._on_values(scopes)
        route = normalize_route(scopes.resource)
        return [lock for lock in locks if _is_narrowed_to(lock, route, scopes.values)]

    def _on_values(self, scopes: RequestScopes) -> list[LockTuple]:
        """The locks on a value, a caller or a tenant of a request with named values."""
        table = self.tables[VALUE_SCOPE]
        locks = [lock for item in scopes.values.items() for lock in table.get(value_key(*item), ())]
        for scope, key in zip(PAIR_SCOPES, (scopes.caller, scopes.tenant), strict=True):
            locks += self.tables[scope].get(key, ()) if key else ()
        return locks

    def is_suspended(self, wall_ns: int) -> bool:
        """Whether a suspension (the off switch of the whole fleet) is in force at this time."""
        locks = self.tables["everyone"].get("", ())
        return bool(locks) and any(
            lock[ACTION] == "suspend" and wall_ns < lock[END] and not lock[RESOURCE] for lock in locks
        )

    def has_lock_on_address(self, address: str) -> bool:
        """Whether a lock is on this address or on a range around it. Never raises."""
        return bool(self._on_address(address))

    def _on_address(self, address: str) -> list[LockTuple]:
        locks: list[LockTuple] = [*self.tables["address"].get(address, ())]
        if not self.lengths and ":" not in address:
            return locks
        parsed = parse_address(address)
        if parsed is None:
            return locks
        if parsed.text != address:  # an IPv4-mapped IPv6 address
            locks += self.tables["address"].get(parsed.text, ())
        name = RANGE_TABLES[parsed.version]
        table, bits = self.tables[name], ADDRESS_BITS[parsed.version]
        for length in self.lengths.get(name, ()):
            locks += table.get(1 << length | parsed.number >> (bits - length), ())
        return locks


def _is_narrowed_to(lock: LockTuple, route: str, values: Mapping[str, str]) -> bool:
    """Whether the second part of a lock's key, if it has one, is that of the request."""
    if name := pair_value(lock[SCOPE]):
        return name in values and bool(values[name] == lock[RESOURCE])
    return not lock[RESOURCE] or normalize_route(lock[RESOURCE]) == route


EMPTY = LockView(None, dict.fromkeys(TABLES, sharded_table.EMPTY))


def apply(view: LockView, update: Update) -> LockView:
    """The view after `update`. Raises ViewOutOfStep when the update does not follow from `view`.

    An update that comes twice changes nothing the second time, and none can be left out. A long one is
    applied with pauses; readers see the whole old view, and then the whole new one.
    """
    if update.snapshot:
        return _after_update(_without_locks(view), update)
    if view.at is None or update.since != view.at.version or update.at.version < update.since:
        raise ViewOutOfStep(f"the view is at {view.at}, the answer leads from {update.since} to {update.at}")
    if update.at.version == view.at.version and (update.changes or update.at != view.at):
        raise ViewOutOfStep(f"the answer's version {update.at.version} is not the view's of that number")
    return _after_update(view, update) if update.changes or update.unknown or update.at != view.at else view


def without_ended(view: LockView, wall_ns: int) -> LockView:
    """The view without the locks that have ended by `wall_ns`; the same object when none can have ended."""
    if wall_ns < view.next_end_ns:
        return view
    ended: list[LockKeyTuple] = []
    next_end_ns = NEVER_NS
    for lock in view.lock_tuples():
        if lock[END] <= wall_ns:
            ended.append(tuple_key(lock))
        else:
            next_end_ns = min(next_end_ns, lock[END])
    # Looking through a large view takes long, and an ended lock applies to no request anyway.
    if len(view) > LARGE:
        next_end_ns = max(next_end_ns, wall_ns + PRUNE_LARGE_NS)
    return replace(_with_changes(view, drain(ended))[0], next_end_ns=next_end_ns)


def with_locks(view: LockView, locks: Iterable[LockTuple]) -> LockView:
    """The view with these locks set in addition."""
    return _with_changes(view, locks)[0]


def _without_locks(view: LockView) -> LockView:
    return replace(view, tables=EMPTY.tables, lengths={}, next_end_ns=NEVER_NS, slows=False)


def _after_update(view: LockView, update: Update) -> LockView:
    changed, unknown = _with_changes(view, packed(update.changes))
    words = (*update.unknown, *unknown)
    ignored = _add_counts(view.ignored, words) if words else view.ignored
    return replace(changed, at=update.at, ignored=ignored)


def _with_changes(view: LockView, changes: Iterable[ChangeTuple]) -> tuple[LockView, list[str]]:
    """The view after these changes, and the unknown words in them."""
    builders: dict[str, TableBuilder] = {}
    lengths = {name: dict(counts) for name, counts in view.lengths.items()}
    unknown: list[str] = []
    next_end_ns, slows = view.next_end_ns, view.slows
    for change in with_pauses(changes):
        places = table_keys(change[SCOPE], change[KEY])
        if is_set(change) and (words := _unknown_words(change, has_key=bool(places))):
            unknown += words
        # A lock whose action became an unknown one is removed: keeping it would enforce the old action.
        enforced = is_set(change) and _is_enforced(change)
        for place in places:
            builder = builders.get(place.table) or builders.setdefault(
                place.table, TableBuilder(view.tables[place.table])
            )
            added = builder.change(place.key, change if enforced or not is_set(change) else tuple_key(change))
            if added and place.table in PREFIX_TABLES:
                _add_count(lengths.setdefault(place.table, {}), prefix_length(place.key), added)
        if enforced and places:
            next_end_ns = min(next_end_ns, change[END])
            slows = slows or change[ACTION] == "slow"
    changed = {name: builder.build() for name, builder in builders.items()}
    return replace(
        view,
        tables={**view.tables, **changed},
        lengths={name: counts for name, counts in lengths.items() if counts},
        next_end_ns=next_end_ns,
        slows=slows,
    ), unknown


def _add_count(counts: dict[int, int], length: int, added: int) -> None:
    counts[length] = counts.get(length, 0) + added
    if not counts[length]:
        del counts[length]


def _is_enforced(lock: LockTuple) -> bool:
    return lock[ACTION] in ACTIONS and (lock[ACTION] != "slow" or lock[SLOW] is not None)


def _unknown_words(lock: LockTuple, *, has_key: bool) -> list[str]:
    """The words of a lock that this version does not know, mostly none."""
    words = []
    kind, _, name = lock[SCOPE].partition(":")
    if lock[SCOPE] not in SCOPES and (kind not in VALUE_SCOPES or VALUE_NAME.fullmatch(name) is None):
        words.append(f"scope {lock[SCOPE]}")
    elif not has_key:
        words.append("malformed range")
    if lock[ACTION] not in ACTIONS:
        words.append(f"action {lock[ACTION]}")
    elif not _is_enforced(lock):
        words.append("action slow without a rate")
    if lock[ON_STALE] not in ON_STALES:
        words.append(f"on_stale {lock[ON_STALE]}")
    return words


def _add_counts(counts: Mapping[str, int], words: Iterable[str]) -> Mapping[str, int]:
    added = dict(counts)
    for word in words:
        counted = word if word in added or len(added) < IGNORED_MAX else "more"
        added[counted] = added.get(counted, 0) + 1
    return MappingProxyType(added)
