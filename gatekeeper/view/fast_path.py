"""The fast path: the containers in which a request is looked up, and the modes that select them.

Most requests have no lock. For them `Gate.allow` is one look-up in a container of callers, and `Gate.check`
one look-up per scope: no clock is read, no mutex is taken, nothing is called in the poller. A request that is
found in a container takes the slow path (`Gate._decide`), which reads the clock, restarts a dead poller,
samples callers, and decides by the locks that apply.

Reading needs no mutex because no reader can see a change. A container that a gate refers to is never written
to. The poller builds a new `FastPath` and then replaces the gate's two references to it, one for `allow` and
one for `check`. Replacing a reference is atomic, so a request sees the old containers or the new ones, never
a mixture; it reads its reference once and needs no other, so that the two need not be replaced together.

A mode in which a look-up is not enough needs no flag that each request would have to test: the gate then
refers to TO_SLOW_PATH, whose containers claim to hold every name. MODES is the table of modes with their
containers; `FastPathSwitch` moves a gate from one to another as that table allows, and nothing else replaces
the references.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from enum import Enum
from socket import AF_INET, inet_pton
from typing import Literal, NamedTuple

from gatekeeper.view.lock_view import EMPTY, LockView
from gatekeeper.view.lookup_keys import ADDRESS_BITS, PAIR_SCOPES, RANGE_TABLES, VALUE_SCOPE, value_key
from gatekeeper.view.sharded_table import LockTable

# Global names: looking up attributes of modules would be a third of the cost of a range.
IPV4, from_bytes = int(AF_INET), int.from_bytes


class EveryName:
    """A container that claims to hold every name."""

    def __contains__(self, name: object) -> bool:
        return True


EVERY_NAME = EveryName()


class AddressRanges:
    """Tests whether an address has a lock by its number: through a range, or under another spelling."""

    __slots__ = ("_prefixes", "_view")

    def __init__(self, view: LockView) -> None:
        self._view = view
        name, bits = RANGE_TABLES[4], ADDRESS_BITS[4]
        lengths = view.lengths.get(name, ())
        self._prefixes = tuple((1 << length, bits - length, view.tables[name]) for length in lengths)

    def has_lock(self, address: str) -> bool:
        """Whether a lock applies; for IPv4 one look-up per prefix length in use. Never raises."""
        if ":" in address:
            return self._view.has_lock_on_address(address)
        if not self._prefixes:
            return False
        try:
            number = from_bytes(inet_pton(IPV4, address))
        except (OSError, ValueError):  # ValueError: half of a surrogate pair
            return False
        return has_prefix(self._prefixes, number)


class ValueLocks:
    """Tests whether a request with named values may have a lock by one of them."""

    __slots__ = ("_callers", "_tenants", "_values")

    def __init__(self, view: LockView) -> None:
        self._values = view.tables[VALUE_SCOPE]
        self._callers, self._tenants = (view.tables[scope] for scope in PAIR_SCOPES)

    def has_lock(self, caller: str, tenant: str, values: Mapping[str, str]) -> bool:
        """Whether a lock is on one of the values, or on the caller or tenant with some value."""
        if caller in self._callers or (tenant and tenant in self._tenants):
            return True
        table = self._values
        return bool(table) and any(value_key(name, value) in table for name, value in values.items())


def has_prefix(prefixes: tuple[tuple[int, int, LockTable], ...], number: int) -> bool:
    """Whether one of the tables holds the leading bits of `number` (see `lookup_keys.range_key`)."""
    for leading_one, shift, table in prefixes:  # noqa: SIM110 - a generator costs as much as three look-ups
        if leading_one | number >> shift in table:
            return True
    return False


@dataclass(frozen=True, slots=True)
class FastPath:
    """The names that have a lock, by scope. A request that is in none of these containers passes.

    Attributes:
        callers: Callers with a lock.
        tenants: Tenants with a lock.
        addresses: Addresses with a lock, as they are spelt in the locks.
        routes: Normalised routes with a lock; None if there are none.
        ranges: Test for ranges and spellings; None if no lock is on a range or an address.
        values: Test for named values; None if no lock is on one.
    """

    callers: Container[object]
    tenants: Container[object]
    addresses: Container[object]
    routes: Container[object] | None
    ranges: AddressRanges | None
    values: ValueLocks | None = None


def build_fast_path(view: LockView) -> FastPath:
    """The fast path for the locks of a view."""
    tables = view.tables
    if tables["everyone"]:
        return TO_SLOW_PATH
    return FastPath(
        callers=tables["caller"],
        tenants=tables["tenant"],
        addresses=tables["address"],
        routes=tables["resource"] if len(tables["resource"]) else None,
        ranges=AddressRanges(view) if view.lengths or tables["address"] else None,
        values=ValueLocks(view) if any(tables[name] for name in (VALUE_SCOPE, *PAIR_SCOPES)) else None,
    )


TO_SLOW_PATH = FastPath(EVERY_NAME, EVERY_NAME, EVERY_NAME, EVERY_NAME, None)
ALLOW_ALL = build_fast_path(EMPTY)


class Mode(Enum):
    """The modes of a gate; MODES says what each one means for requests."""

    COLD = "no poll has ended since the gate was made, started again or forked"
    READY = "requests are looked up in the view"
    OFF = "GATEKEEPER=off in this process"
    STALE = "the view is stale, or may become so during the next poll, and on_stale is not 'allow'"
    SAMPLING = "callers are added to the sample that the gate reports"
    CRASHED = "the poller's thread ended with an exception"
    CLOSED = "the gate was closed"


Mover = Literal["poller", "request", "application"]


class ModeRule(NamedTuple):
    """The rule of a mode: the containers for requests, and which mover may move the gate to which modes.

    Attributes:
        path: The containers for `allow` and `check`; None: those of the view.
        poller: Modes to which the poller's thread may move the gate.
        request: Modes to which a request may move it.
        application: Modes to which `start`, `close` and a fork may move it.
    """

    path: FastPath | None
    poller: frozenset[Mode] = frozenset()
    request: frozenset[Mode] = frozenset()
    application: frozenset[Mode] = frozenset()


_POLLED = frozenset({Mode.READY, Mode.OFF, Mode.STALE, Mode.SAMPLING, Mode.CRASHED})
_SAMPLED = frozenset({Mode.COLD, Mode.READY, Mode.OFF, Mode.STALE})
_STOPPED = frozenset({Mode.COLD, Mode.CLOSED})

MODES = {
    Mode.COLD: ModeRule(TO_SLOW_PATH, poller=_POLLED, application=_STOPPED),
    # A request that finds the poller overdue and the view stale does what the poller would have done.
    Mode.READY: ModeRule(None, poller=_POLLED, request=frozenset({Mode.STALE}), application=_STOPPED),
    Mode.OFF: ModeRule(ALLOW_ALL, poller=_POLLED, application=_STOPPED),
    Mode.STALE: ModeRule(TO_SLOW_PATH, poller=_POLLED, application=_STOPPED),
    # The request that completes the sample moves the gate to where the last poll would have left it.
    Mode.SAMPLING: ModeRule(TO_SLOW_PATH, poller=_POLLED, request=_SAMPLED, application=_STOPPED),
    # The next request restarts the poller, whose first poll ends this mode.
    Mode.CRASHED: ModeRule(TO_SLOW_PATH, poller=_POLLED, application=_STOPPED),
    # A poll that was still running when the gate was closed changes nothing any more.
    Mode.CLOSED: ModeRule(TO_SLOW_PATH, application=frozenset({Mode.COLD})),
}


class FastPathSwitch:
    """The mode of one gate, and the only place that changes it and the fast path of the gate.

    The caller of every method but `reset_after_fork` holds `mutex`. A request that finds it
    held does not wait.
    """

    __slots__ = ("_set_fast_path", "_settled", "mode", "mutex")

    def __init__(self, set_fast_path: Callable[[FastPath], object]) -> None:
        self.mode = Mode.COLD
        self.mutex = threading.Lock()
        self._set_fast_path = set_fast_path  # of the gate: replaces its two references
        self._settled = Mode.COLD, TO_SLOW_PATH  # the mode after SAMPLING, and the path for READY
        set_fast_path(TO_SLOW_PATH)

    def settle(self, mode: Mode, path: FastPath = TO_SLOW_PATH, *, is_sampling: bool) -> None:
        """Moves to `mode`, READY with `path`; while callers are sampled, only when the sample is complete."""
        self._settled = mode, path
        self.move("poller", Mode.SAMPLING if is_sampling else mode)

    def start_sampling(self) -> None:
        self.move("poller", Mode.SAMPLING)

    def finish_sampling(self) -> None:
        """Moves from SAMPLING to the settled mode; from another mode nowhere."""
        self.move("request", self._settled[0])

    def expire(self) -> None:
        """Moves from READY to STALE, for a request; from another mode nowhere."""
        if self.mode is Mode.READY:
            self.move("request", Mode.STALE)

    def crash(self) -> None:
        self.move("poller", Mode.CRASHED)

    def close(self) -> None:
        self.move("application", Mode.CLOSED)

    def start(self) -> None:
        """Ends CLOSED; a gate that polls stays in its mode."""
        if self.mode is Mode.CLOSED:
            self.move("application", Mode.COLD)

    def reset_after_fork(self) -> None:
        """Starts again in a child, where no poller runs. A closed gate stays closed."""
        self.mutex = threading.Lock()  # another thread of the parent may have held it
        if self.mode is not Mode.CLOSED:
            self.move("application", Mode.COLD)

    def move(self, by: Mover, mode: Mode) -> bool:
        """Moves the gate to `mode` if MODES lets `by` do that now; returns whether it did."""
        if mode not in getattr(MODES[self.mode], by):
            return False
        self.mode = mode
        if mode is Mode.COLD:
            self._settled = Mode.COLD, TO_SLOW_PATH
        path = MODES[mode].path
        self._set_fast_path(self._settled[1] if path is None else path)
        return True
