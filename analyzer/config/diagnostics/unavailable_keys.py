"""Keys that are planned and not available in this version; each is reported with a cure, never ignored."""

from __future__ import annotations

from typing import NamedTuple


class UnavailableKey(NamedTuple):
    """The cure for a planned key, and the required key that it would replace, if any."""

    cure: str
    instead_of: str | None = None


WINDOW = 'write window = { per = "hour" } or { rolling = "10m" }'
ALWAYS_ENFORCED = "remove it; every policy is enforced as soon as it is loaded"
NO_SHADOW = (
    'remove it; write action = "tag", which denies nothing, or shadow=True in the applications\' guards'
)

# By table, then key. A table's path leaves out the indexes of lists.
UNAVAILABLE: dict[tuple[str, ...], dict[str, UnavailableKey]] = {
    (): {
        "tokens": UnavailableKey("remove it; run `gatelock tokens create` instead"),
        "webhooks": UnavailableKey("remove it; poll `gatelock locks list --json` instead"),
    },
    ("sources",): {
        "id": UnavailableKey("remove it; each record is counted once by its offset"),
    },
    ("policies",): {
        "mode": UnavailableKey(ALWAYS_ENFORCED),
        "candidate": UnavailableKey(ALWAYS_ENFORCED),
        "brake": UnavailableKey(ALWAYS_ENFORCED),
        "shadow": UnavailableKey(NO_SHADOW),
        "dry_run": UnavailableKey(NO_SHADOW),
        "enabled": UnavailableKey(ALWAYS_ENFORCED),
    },
}
