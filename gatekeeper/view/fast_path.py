"""What a check of a clear request looks at: swapped whole by the poller, written to by nobody."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from socket import AF_INET, inet_pton

from gatekeeper.view.lock_view import EMPTY, LockView
from gatekeeper.view.lookup_keys import ADDRESS_BITS, RANGE_TABLES
from gatekeeper.view.sharded_table import LockTable

IPV4, from_bytes = int(AF_INET), int.from_bytes  # looked up once: that is a third of what a range costs


class EveryName:
    """Holds every caller: sends all of them to where the clock and the poller are looked at."""

    def __contains__(self, caller: object) -> bool:
        return True


EVERY_NAME = EveryName()


class AddressRanges:
    """Whether an address that has no lock by its own text has one by its number."""

    __slots__ = ("_lengths", "_view")

    def __init__(self, view: LockView) -> None:
        self._view = view
        name, bits = RANGE_TABLES[4], ADDRESS_BITS[4]
        lengths = view.lengths.get(name, ())
        self._lengths = tuple((1 << length, bits - length, view.tables[name]) for length in lengths)

    def meet(self, address: str) -> bool:
        """For IPv4 one look-up for each prefix length in use. Never raises."""
        if ":" in address:
            return self._view.meets(address)
        if not self._lengths:
            return False
        try:
            number = from_bytes(inet_pton(IPV4, address))
        except (OSError, ValueError):  # no address; half a surrogate pair
            return False
        return has_prefix(self._lengths, number)


def has_prefix(lengths: tuple[tuple[int, int, LockTable], ...], number: int) -> bool:
    """Whether one of these tables has the beginning of `number` (see `lookup_keys`)."""
    for bit, shift, table in lengths:  # noqa: SIM110 - a generator costs as much as three look-ups
        if bit | number >> shift in table:
            return True
    return False


@dataclass(frozen=True, slots=True)
class FastPath:
    """Who has a lock of any kind. Who is in none of these passes, without another thought."""

    callers: Container[object]
    tenants: Container[object]
    addresses: Container[object]
    routes: Container[object] | None  # None: no resource has a lock
    ranges: AddressRanges | None  # None: no range and no address has a lock


def fast_path_of(view: LockView) -> FastPath:
    """How to look at `view`."""
    by = view.tables
    if by["everyone"]:
        return TO_SLOW_PATH
    return FastPath(
        callers=by["caller"],
        tenants=by["tenant"],
        addresses=by["address"],
        routes=by["resource"] if len(by["resource"]) else None,
        ranges=AddressRanges(view) if view.lengths or by["address"] else None,
    )


TO_SLOW_PATH = FastPath(EVERY_NAME, EVERY_NAME, EVERY_NAME, EVERY_NAME, None)  # each request is judged
ALLOW_ALL = fast_path_of(EMPTY)  # no request is
