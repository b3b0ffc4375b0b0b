"""What a check of a clear request looks at: swapped whole by the poller, written to by nobody."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from gatekeeper.view import EMPTY, View


class Everybody:
    """Holds every caller: sends all of them to where the clock and the poller are looked at."""

    def __contains__(self, caller: object) -> bool:
        return True


EVERYBODY = Everybody()


@dataclass(frozen=True, slots=True)
class Look:
    """Who has a lock of any kind. Who is in none of these passes, without another thought."""

    callers: Container[object]
    tenants: Container[object]
    addresses: Container[object]
    routes: Container[object] | None  # None: no resource has a lock
    ranges: View | None  # None: an address is in no range, and in no other spelling


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
        ranges=view if view.lengths or by["address"] else None,
    )


DIVERTED = Look(EVERYBODY, EVERYBODY, EVERYBODY, EVERYBODY, None)  # each request is judged
OPEN = look_of(EMPTY)  # no request is
