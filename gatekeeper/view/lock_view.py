"""All locks of one version, found by what a request says of itself. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from gatekeeper.model import Cursor, Lock, Set, Update
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
    LockKeyTuple,
    LockTuple,
    is_set,
    key_of,
    packed,
    unpack_lock,
)
from gatekeeper.view.lookup_keys import (
    ADDRESS_BITS,
    RANGE_TABLES,
    normalize_route,
    parse_address,
    prefix_length,
    table_key,
)
from gatekeeper.view.sharded_table import LockTable, TableBuilder

# What this version enforces. Anything else is passed over and counted: that is how the feed may grow.
SCOPES = ("caller", "tenant", "address", "range", "resource", "everyone")
ACTIONS = ("deny", "slow", "tag", "suspend")
ON_STALES = ("keep", "allow")

IGNORED_MAX = 100  # different words counted apart; a source that makes up new ones costs no more memory

NEVER_NS = 1 << 63  # later than any lock ends

TABLES = ("caller", "tenant", "address", "resource", "everyone", *RANGE_TABLES.values())
PREFIX_TABLES = tuple(RANGE_TABLES.values())
LARGE = 10_000  # locks; of a larger view ended ones are pruned less often
PRUNE_LARGE_NS = 10_000_000_000


class ViewOutOfStep(Exception):  # nobody's fault: an answer was lost, or came twice
    """The update does not follow from the version that the view holds; only a snapshot will do."""


class RequestScopes(NamedTuple):
    """What a request says of itself; "" says nothing, and nobody is locked by having no name."""

    caller: str = ""
    tenant: str = ""
    address: str = ""
    resource: str = ""


NO_SCOPES = RequestScopes()


def request_scopes(*parts: object) -> RequestScopes:
    """What a request says of itself, in the order of `RequestScopes`; what is no text says nothing."""
    return RequestScopes(*(part if isinstance(part, str) else "" for part in parts))


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LockView:
    """Locks by where they are looked up. Nobody writes to it; the next one shares what did not change."""

    at: Cursor | None  # None: not confirmed by a source
    tables: Mapping[str, LockTable]
    lengths: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # prefix lengths in use, by table
    next_end_ns: int = NEVER_NS  # no lock ends before this; perhaps none then either
    ignored: Mapping[str, int] = field(default_factory=dict)  # what was passed over, and how often it was met
    slows: bool = False  # whether there is, or was, a lock that slows

    def __iter__(self) -> Iterator[Lock]:
        return map(unpack_lock, self.held())

    def held(self) -> Iterator[LockTuple]:
        """Every lock, with pauses between them where they are many."""
        found = (found for table in self.tables.values() for found in sharded_table.locks_in(table))
        return with_pauses(held for some in found for held in some)

    def __len__(self) -> int:
        """How many keys have a lock."""
        return sum(map(len, self.tables.values()))

    def of(self, asked: RequestScopes) -> list[LockTuple]:
        """The locks that apply to a request, without those that are narrowed to another resource."""
        by = self.tables
        found: list[LockTuple] = [*by["everyone"].get("", ())]
        if asked.caller:
            found += by["caller"].get(asked.caller, ())
        if asked.tenant:
            found += by["tenant"].get(asked.tenant, ())
        if asked.resource:
            found += by["resource"].get(normalize_route(asked.resource), ())
        if asked.address:
            found += self._around(asked.address)
        route = normalize_route(asked.resource)
        return [held for held in found if not held[RESOURCE] or normalize_route(held[RESOURCE]) == route]

    def suspended(self, wall_ns: int) -> bool:
        """Whether the fleet's off switch is thrown at this moment."""
        return any(
            held[ACTION] == "suspend" and wall_ns < held[END] and not held[RESOURCE]
            for held in self.tables["everyone"].get("", ())
        )

    def meets(self, address: str) -> bool:
        """Whether there is a lock on this address, or on a range around it. Never raises."""
        return bool(self._around(address))

    def _around(self, address: str) -> list[LockTuple]:
        found: list[LockTuple] = [*self.tables["address"].get(address, ())]
        if not self.lengths and ":" not in address:
            return found
        known = parse_address(address)
        if known is None:
            return found
        if known.text != address:  # an IPv4 address that is written as IPv6
            found += self.tables["address"].get(known.text, ())
        name = RANGE_TABLES[known.version]
        table, bits = self.tables[name], ADDRESS_BITS[known.version]
        for length in self.lengths.get(name, ()):  # those in use, not all that there could be
            found += table.get(1 << length | known.number >> (bits - length), ())
        return found


EMPTY = LockView(None, dict.fromkeys(TABLES, sharded_table.EMPTY))


def apply(view: LockView, update: Update) -> LockView:
    """The view after `update`. Raises OutOfStep when it does not follow from `view`.

    So an update that comes twice changes nothing the second time, and none can be left out. A long one
    is applied in pieces, with pauses; `view` stays as it is, so that who asks meanwhile sees the whole
    old version, and then the whole new one.
    """
    if update.snapshot:
        return _after_update(_without_locks(view), update)
    if view.at is None or update.since != view.at.version or update.at.version < update.since:
        raise ViewOutOfStep(f"the view is at {view.at}, the answer leads from {update.since} to {update.at}")
    if update.at.version == view.at.version and (update.changes or update.at != view.at):
        raise ViewOutOfStep(f"there is another version {update.at.version} than the view's")
    return _after_update(view, update) if update.changes or update.unknown or update.at != view.at else view


def without_ended(view: LockView, wall_ns: int) -> LockView:
    """The view without the locks that have ended by `wall_ns`; the same object when none can have."""
    if wall_ns < view.next_end_ns:
        return view
    ended: list[LockKeyTuple] = []
    next_end_ns = NEVER_NS
    for held in view.held():
        if held[END] <= wall_ns:
            ended.append(key_of(held))
        else:
            next_end_ns = min(next_end_ns, held[END])
    if len(view) > LARGE:  # to look through all of them takes time, and one that has ended refuses nobody
        next_end_ns = max(next_end_ns, wall_ns + PRUNE_LARGE_NS)
    return replace(_with_changes(view, drain(ended))[0], next_end_ns=next_end_ns)


def with_locks(view: LockView, locks: Iterable[Lock]) -> LockView:
    """The view with these locks set as well."""
    return _with_changes(view, packed(map(Set, locks)))[0]


def _without_locks(view: LockView) -> LockView:
    return replace(view, tables=EMPTY.tables, lengths={}, next_end_ns=NEVER_NS, slows=False)


def _after_update(view: LockView, update: Update) -> LockView:
    changed, strange = _with_changes(view, packed(update.changes))
    words = (*update.unknown, *strange)
    ignored = _add_counts(view.ignored, words) if words else view.ignored
    return replace(changed, at=update.at, ignored=ignored)


def _with_changes(view: LockView, rows: Iterable[LockTuple | LockKeyTuple]) -> tuple[LockView, list[str]]:
    """The view after these changes, and the words among them that this version does not know."""
    drafts: dict[str, TableBuilder] = {}
    lengths = {name: dict(some) for name, some in view.lengths.items()}
    strange: list[str] = []
    next_end_ns, slows = view.next_end_ns, view.slows
    for row in with_pauses(rows):
        place = table_key(row[SCOPE], row[KEY])
        if is_set(row) and (words := _unknown_words(row, placed=place is not None)):
            strange += words
        if place is None:
            continue
        # Also when the new action is unknown: the old one is over, and to keep it would be to refuse on.
        enforced = is_set(row) and _is_enforced(row)
        draft = drafts.get(place.table) or drafts.setdefault(
            place.table, TableBuilder(view.tables[place.table])
        )
        more = draft.change(place.key, row if enforced or not is_set(row) else key_of(row))
        if more and place.table in PREFIX_TABLES:
            _add_count(lengths.setdefault(place.table, {}), prefix_length(place.key), more)
        if enforced:
            next_end_ns = min(next_end_ns, row[END])
            slows = slows or row[ACTION] == "slow"
    changed = {name: draft.finished() for name, draft in drafts.items()}
    return replace(
        view,
        tables={**view.tables, **changed},
        lengths={name: some for name, some in lengths.items() if some},
        next_end_ns=next_end_ns,
        slows=slows,
    ), strange


def _add_count(counts: dict[int, int], length: int, more: int) -> None:
    counts[length] = counts.get(length, 0) + more
    if not counts[length]:
        del counts[length]


def _is_enforced(held: LockTuple) -> bool:
    return held[ACTION] in ACTIONS and (held[ACTION] != "slow" or held[SLOW] is not None)


def _unknown_words(held: LockTuple, *, placed: bool) -> list[str]:
    """The words of a lock that this version does not know; mostly none."""
    words = []
    if held[SCOPE] not in SCOPES:
        words.append(f"scope {held[SCOPE]}")
    elif not placed:
        words.append("range that is none")
    if held[ACTION] not in ACTIONS:
        words.append(f"action {held[ACTION]}")
    elif not _is_enforced(held):
        words.append("action slow without a rate")
    if held[ON_STALE] not in ON_STALES:
        words.append(f"on_stale {held[ON_STALE]}")
    return words


def _add_counts(ignored: Mapping[str, int], words: Iterable[str]) -> Mapping[str, int]:
    counts = dict(ignored)
    for word in words:
        known = word if word in counts or len(counts) < IGNORED_MAX else "more"
        counts[known] = counts.get(known, 0) + 1
    return MappingProxyType(counts)
