"""Keys that are planned and not available in this version; each is reported with a cure, never ignored."""

from __future__ import annotations

from typing import NamedTuple


class UnavailableKey(NamedTuple):
    """The cure for a planned key, and the required key that it would replace, if any."""

    cure: str
    instead_of: str | None = None


CALENDAR_ONLY = 'use a calendar window: window = { per = "hour" }'
ONE_LIMIT = "remove it; a policy has one limit for all callers"
ALWAYS_ENFORCED = "remove it; every policy is enforced as soon as it is loaded"
NO_SHADOW = (
    'remove it; write action = "tag", which denies nothing, or shadow=True in the applications\' guards'
)
WITH_ITS_WINDOW = "remove it; a lock ends with its window"
NO_SHARES = "remove it; shares of a load are not judged yet"

# By table, then key. A table's path leaves out the indexes of lists.
UNAVAILABLE: dict[tuple[str, ...], dict[str, UnavailableKey]] = {
    (): {
        "exempt": UnavailableKey("remove it; do not log requests that must never be locked"),
        "overrides": UnavailableKey(ONE_LIMIT),
        "tokens": UnavailableKey("remove it; run `gatelock tokens create` instead"),
        "webhooks": UnavailableKey("remove it; poll `gatelock locks list --json` instead"),
    },
    ("sources",): {
        "count_if": UnavailableKey("remove it; log only authenticated callers under their key"),
        "id": UnavailableKey("remove it; each record is counted once by its offset"),
    },
    ("meters",): {"distinct": UnavailableKey("use count, sum or max", "count")},
    ("policies",): {
        "of": UnavailableKey(NO_SHARES),
        "floor": UnavailableKey(NO_SHARES),
        "hold": UnavailableKey(WITH_ITS_WINDOW),
        "release": UnavailableKey(WITH_ITS_WINDOW),
        "notify": UnavailableKey("remove it; poll `gatelock usage --json` instead"),
        "lock_for": UnavailableKey(WITH_ITS_WINDOW),
        "forget_after": UnavailableKey(WITH_ITS_WINDOW),
        "mode": UnavailableKey(ALWAYS_ENFORCED),
        "candidate": UnavailableKey(ALWAYS_ENFORCED),
        "brake": UnavailableKey(ALWAYS_ENFORCED),
        "shadow": UnavailableKey(NO_SHADOW),
        "dry_run": UnavailableKey(NO_SHADOW),
        "enabled": UnavailableKey(ALWAYS_ENFORCED),
    },
    ("policies", "window"): {
        "rolling": UnavailableKey(CALENDAR_ONLY, "per"),
        "anchor": UnavailableKey("remove it; months begin on the 1st"),
    },
}
