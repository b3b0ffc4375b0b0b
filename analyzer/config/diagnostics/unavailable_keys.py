"""Keys that are planned and not available in this version; each is reported with a cure, never ignored."""

from __future__ import annotations

from typing import NamedTuple


class UnavailableKey(NamedTuple):
    """The cure for a key that is planned or elsewhere, and the required key that it would replace, if any."""

    cure: str
    instead_of: str | None = None
    what: str = "is not available in this version"


WINDOW = 'write window = { per = "hour" } or { rolling = "10m" }'
ELSEWHERE = "is stated elsewhere"
IN_SHADOW = 'write mode = "shadow", which judges the policy and enforces nothing'

# By table, then key. A table's path leaves out the indexes of lists.
UNAVAILABLE: dict[tuple[str, ...], dict[str, UnavailableKey]] = {
    (): {
        "tokens": UnavailableKey("remove it; run `gatelock upkeep tokens create NAME --scope read` instead"),
        "webhooks": UnavailableKey("remove it; poll `gatelock locks list --json` instead"),
    },
    ("policies",): {
        "shadow": UnavailableKey(IN_SHADOW),
        "dry_run": UnavailableKey(IN_SHADOW),
        "enabled": UnavailableKey(IN_SHADOW),
        "where": UnavailableKey(
            'write where in a table [[meters]], and its name here as meter = "..."', what=ELSEWHERE
        ),
        "exempt": UnavailableKey(
            "remove it; run `gatelock callers allow NAME --reason WHY` instead", what=ELSEWHERE
        ),
    },
}
