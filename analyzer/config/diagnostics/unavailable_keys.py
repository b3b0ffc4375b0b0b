"""Keys that the design names and this version cannot do yet: said so, never silently ignored."""

from __future__ import annotations

from typing import NamedTuple


class Meanwhile(NamedTuple):
    """What to do as long as a key cannot be done, and the key that it stands for, if any."""

    cure: str
    instead_of: str | None = None


CALENDAR_ONLY = 'use a calendar window: window = { per = "hour" }'
LIMIT_ONLY = "give one limit for everybody and leave this out"
ENFORCE_ONLY = "leave it out: every policy is enforced from the day it is written"

# Where -> key -> what to do meanwhile. A place is a path without its indexes.
UNAVAILABLE: dict[tuple[str, ...], dict[str, Meanwhile]] = {
    (): {
        "exempt": Meanwhile(
            "leave it out; who must never be locked needs a log without their requests, for now"
        ),
        "overrides": Meanwhile(LIMIT_ONLY),
        "tokens": Meanwhile("leave it out; the web application listens on loopback, for now"),
        "webhooks": Meanwhile("leave it out; ask `gatelock locks list --json` instead"),
    },
    ("sources",): {
        "count_if": Meanwhile("leave it out; log only authenticated callers under their key"),
        "id": Meanwhile("leave it out; each record is counted once by its offset"),
    },
    ("meters",): {"distinct": Meanwhile("use count, sum or max", "count")},
    ("policies",): {
        "of": Meanwhile("leave it out; shares of a load are not judged yet"),
        "floor": Meanwhile("leave it out; shares of a load are not judged yet"),
        "hold": Meanwhile("leave it out; a lock ends with its window"),
        "release": Meanwhile("leave it out; a lock ends with its window"),
        "notify": Meanwhile("leave it out; ask `gatelock usage --json` instead"),
        "lock_for": Meanwhile("leave it out; a lock ends with its window"),
        "forget_after": Meanwhile("leave it out; a lock ends with its window"),
        "mode": Meanwhile(ENFORCE_ONLY),
        "candidate": Meanwhile(ENFORCE_ONLY),
        "brake": Meanwhile(ENFORCE_ONLY),
    },
    ("policies", "window"): {
        "rolling": Meanwhile(CALENDAR_ONLY, "per"),
        "anchor": Meanwhile("leave it out; months begin on the 1st"),
    },
}
