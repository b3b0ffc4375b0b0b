"""Keys that the design names and this version cannot do yet: said so, never silently ignored."""

from __future__ import annotations

from typing import NamedTuple


class UnavailableKey(NamedTuple):
    """What to do as long as a key cannot be done, and the key that it stands for, if any."""

    cure: str
    instead_of: str | None = None


CALENDAR_ONLY = 'use a calendar window: window = { per = "hour" }'
LIMIT_ONLY = "give one limit for everybody and leave this out"
ENFORCE_ONLY = "leave it out: every policy is enforced from the day it is written"

# Where -> key -> what to do meanwhile. A place is a path without its indexes.
UNAVAILABLE: dict[tuple[str, ...], dict[str, UnavailableKey]] = {
    (): {
        "exempt": UnavailableKey(
            "leave it out; who must never be locked needs a log without their requests, for now"
        ),
        "overrides": UnavailableKey(LIMIT_ONLY),
        "tokens": UnavailableKey("leave it out; the web application listens on loopback, for now"),
        "webhooks": UnavailableKey("leave it out; ask `gatelock locks list --json` instead"),
    },
    ("sources",): {
        "count_if": UnavailableKey("leave it out; log only authenticated callers under their key"),
        "id": UnavailableKey("leave it out; each record is counted once by its offset"),
    },
    ("meters",): {"distinct": UnavailableKey("use count, sum or max", "count")},
    ("policies",): {
        "of": UnavailableKey("leave it out; shares of a load are not judged yet"),
        "floor": UnavailableKey("leave it out; shares of a load are not judged yet"),
        "hold": UnavailableKey("leave it out; a lock ends with its window"),
        "release": UnavailableKey("leave it out; a lock ends with its window"),
        "notify": UnavailableKey("leave it out; ask `gatelock usage --json` instead"),
        "lock_for": UnavailableKey("leave it out; a lock ends with its window"),
        "forget_after": UnavailableKey("leave it out; a lock ends with its window"),
        "mode": UnavailableKey(ENFORCE_ONLY),
        "candidate": UnavailableKey(ENFORCE_ONLY),
        "brake": UnavailableKey(ENFORCE_ONLY),
    },
    ("policies", "window"): {
        "rolling": UnavailableKey(CALENDAR_ONLY, "per"),
        "anchor": UnavailableKey("leave it out; months begin on the 1st"),
    },
}
