"""What a lock does: `"deny"`, `{ deny = 503 }`, `{ slow = "10/s" }`, `"tag"`."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import PlainValidator

from analyzer.config.values import UNITS_S, meant, quoted, refuse
from gatekeeper.model import Rate

WORDS = ("deny", "slow", "tag")
CURE = 'write "deny", { deny = 503 }, { slow = "10/s" } or "tag"'
RATE = re.compile(r"(\d[\d_]*) */ *(\d+)? *(s|m|h|d)")
RATE_MAX = 1_000_000_000


class LockAction(NamedTuple):
    """What a policy's locks do. No status: the one that goes without saying."""

    does: Literal["deny", "slow", "tag"] = "deny"
    status: int | None = None
    slow: Rate | None = None


def _act(value: object) -> LockAction:
    match value:
        case "deny" | "tag":
            return LockAction(value)
        case {"slow": rate, **others} if not others:
            return LockAction("slow", slow=rate_of(rate))
        case {"deny": status, **others} if not others:
            return LockAction(status=_status(status))
        case "slow":
            what, cure = '"slow" does not say how much it lets through', 'write action = { slow = "10/s" }'
        case "notify":
            what, cure = '"notify" is not available in this version', CURE
        case _:
            slip = meant(value, WORDS) if isinstance(value, str) else None
            what, cure = f"{quoted(value)} is no action", f"did you mean {quoted(slip)}?" if slip else CURE
    return refuse(what, cure)


def _status(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
        return value
    return refuse(f"{quoted(value)} is no status of a refusal", "choose between 400 and 599: 429, 503, 403")


def rate_of(value: object) -> Rate:
    """Requests in a stretch of time: "10/s", "100/m", "5/30s"."""
    found = RATE.fullmatch(value) if isinstance(value, str) else None
    limit = int(found[1]) if found else 0
    if found is None or not 1 <= limit <= RATE_MAX or not int(found[2] or 1):
        refuse(f"{quoted(value)} is no rate", 'write requests and a time: "10/s", "100/m", "5/30s"')
    return Rate(limit, float(int(found[2] or 1) * UNITS_S[found[3]]))


Action = Annotated[LockAction, PlainValidator(_act)]
