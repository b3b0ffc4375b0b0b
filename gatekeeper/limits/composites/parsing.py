"""Limits written as text: "10/second; 1000/hour"."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from gatekeeper.limits.algorithms.sliding_log import SlidingLog
from gatekeeper.limits.composites.all_of import AllOf
from gatekeeper.limits.engine.rate_limiter import RateLimiter

PERIODS_S: Final = {
    "s": 1,
    "second": 1,
    "m": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}
RATE: Final = re.compile(
    r"(?P<limit>[0-9][0-9_]*)\s*(?:/|\bper\b)\s*(?P<times>[0-9]+)?\s*(?P<period>[a-z]+?)s?", re.IGNORECASE
)


def parse(text: str, limiter: Callable[..., RateLimiter] = SlidingLog, **options: Any) -> RateLimiter | AllOf:
    """Returns the limiter that `text` describes: one rate, or an `AllOf` of several.

    "100/minute", "10 per 2 minutes", "5/30s", "10/second; 1000/hour" (or with commas). Units are s, m, h, d,
    second, minute, hour, day and their plurals; a month is not accepted, because it is not a fixed time.

    Args:
        text: One or more rates, separated by semicolons or commas.
        limiter: The class of each, called as `limiter(limit, period, **options)`; `SlidingLog` by default.
        options: Further arguments of the class, such as `store`. `name` is the rate's text by default.

    Raises:
        ValueError: Text that is not a rate; the message shows the part that is not.

    Example:
        >>> parse("10/second; 1000/hour").check("acme").remaining
        9
    """
    parts = [_parse_one(part.strip(), limiter, options) for part in re.split(r"[;,]", text) if part.strip()]
    if not parts:
        raise ValueError(f"expected a rate such as '10/second', got {text!r}")
    return parts[0] if len(parts) == 1 else AllOf(*parts)


def _parse_one(text: str, limiter: Callable[..., RateLimiter], options: dict[str, Any]) -> RateLimiter:
    found = RATE.fullmatch(text)
    period_s = PERIODS_S.get(found["period"].lower()) if found else None
    if found is None or period_s is None:
        raise ValueError(
            f"expected a rate such as '10/second' or '5 per 30 s', with s, m, h or d; got {text!r}"
        )
    return limiter(int(found["limit"]), period_s * int(found["times"] or 1), **{"name": text, **options})
