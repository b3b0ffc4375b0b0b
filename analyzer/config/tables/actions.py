"""The `action` of a policy: `"deny"`, `{ deny = 503 }`, `{ slow = "10/s" }`, `"tag"`, `"notify"`."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from analyzer.config.values import UNITS_S, suggestion
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.policies import ActionName
from gatekeeper.model import Rate

ACTIONS = ("deny", "slow", "tag", "notify")
CURE = 'write "deny", { deny = 503 }, { slow = "10/s" }, "tag" or "notify"'
RATE = re.compile(r"(\d[\d_]*) */ *(\d+)? *(s|m|h|d)")
RATE_MAX = 1_000_000_000


class LockAction(NamedTuple):
    """Effect of a policy's locks. A status of None stands for the policy's `status`; "notify" sets none."""

    does: ActionName = "deny"
    status: int | None = None
    slow: Rate | None = None


def _action(value: object) -> LockAction:
    match value:
        case "deny" | "tag" | "notify":
            return LockAction(value)
        case {"slow": rate, **others} if not others:
            return LockAction("slow", slow=parse_rate(rate))
        case {"deny": status, **others} if not others:
            return LockAction(status=_status(status))
        case "slow":
            problem, cure = '"slow" needs a rate', 'write action = { slow = "10/s" }'
        case _:
            problem, cure = f"{quote(value)} is not an action", suggestion(value, ACTIONS, CURE)
    return raise_fault(problem, cure)


def _status(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
        return value
    return raise_fault(
        f"deny must be an HTTP status from 400 to 599, not {quote(value)}", "write action = { deny = 503 }"
    )


def parse_rate(value: object) -> Rate:
    """Requests per time: "10/s", "100/m", "5/30s"."""
    match = RATE.fullmatch(value) if isinstance(value, str) else None
    limit = int(match[1]) if match else 0
    if match is None or not 1 <= limit <= RATE_MAX or not int(match[2] or 1):
        raise_fault(
            f"{quote(value)} is not a rate", 'write a number of requests and a time: "10/s", "100/m", "5/30s"'
        )
    return Rate(limit, float(int(match[2] or 1) * UNITS_S[match[3]]))


def rate_from_text(text: str) -> Rate:
    """Returns a rate, outside of a configuration. Raises ValueError with the fault."""
    try:
        return parse_rate(text)
    except PydanticCustomError as fault:
        raise ValueError(fault.message()) from fault


Action = Annotated[LockAction, PlainValidator(_action)]
