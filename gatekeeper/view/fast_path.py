"""What a check of a clear request looks at: swapped whole by the poller, written to by nobody."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from socket import AF_INET, inet_pton

from gatekeeper.view.lock_view import EMPTY, View
from gatekeeper.view.lookup_keys import BITS, RANGES
from gatekeeper.view.sharded_table import Table

IPV4, from_bytes = int(AF_INET), int.from_bytes  # looked up once: that is a third of what a range costs


class Everybody:
    """Holds every caller: sends all of them to where the clock and the poller are looked at."""

    def __contains__(self, caller: object) -> bool:
        return True


EVERYBODY = Everybody()


class Ranges:
    """Whether an address that has no lock by its own text has one by its number."""

    __slots__ = ("_lengths", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        name, bits = RANGES[4], BITS[4]
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
        return any_of(self._lengths, number)


def any_of(lengths: tuple[tuple[int, int, Table], ...], number: int) -> bool:
    """Whether one of these tables has the beginning of `number` (see `lookup_keys`)."""
    for bit, shift, table in lengths:  # noqa: SIM110 - a generator costs as much as three look-ups
        if bit | number >> shift in table:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Look:
    """Who has a lock of any kind. Who is in none of these passes, without another thought."""

    callers: Container[object]
    tenants: Container[object]
    addresses: Container[object]
    routes: Container[object] | None  # None: no resource has a lock
    ranges: Ranges | None  # None: no range and no address has a lock


def look_of(view: View) -> Look:
    """How to look at `view`."""
    by = view.tables
    if by["everyone"]:
        return DIVERTED
    return Look(
        callers=by["caller"],
        tenants=by["tenant"],
        addresses=by["address"],
        routes=by["resource"] if len(by["resource"]) else None,
        ranges=Ranges(view) if view.lengths or by["address"] else None,
    )


DIVERTED = Look(EVERYBODY, EVERYBODY, EVERYBODY, EVERYBODY, None)  # each request is judged
OPEN = look_of(EMPTY)  # no request is
