"""Limits written as text: "10/second; 1000/hour"."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final

from gatekeeper.limits.algorithms.sliding_log import SlidingLog
from gatekeeper.limits.composites.all_of import AllOf
from gatekeeper.limits.engine.rate_limiter import RateLimiter
from gatekeeper.limits.engine.units import require_text

PERIODS_S: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hr", "hour"), 3600),
    **dict.fromkeys(("d", "day"), 86400),
    **dict.fromkeys(("w", "wk", "week"), 7 * 86400),
}
RATE: Final = re.compile(
    r"(?P<limit>[0-9][0-9_]*)\s*(?:/|\bper\b)\s*(?P<times>[0-9]+)?\s*(?P<period>[a-z]+?)s?"
    r"(?:\s+burst\s+(?P<burst>[0-9][0-9_]*))?",
    re.IGNORECASE,
)


def parse(text: str, limiter: Callable[..., RateLimiter] = SlidingLog, **options: Any) -> RateLimiter | AllOf:
    """Returns the limiter that `text` describes: one rate, or an `AllOf` of several.

    "100/minute", "60/min", "10 per 2 minutes", "5/30s", "10/second; 1000/hour" (or with commas), and for
    limiters with a burst "100/minute burst 20". Units are s, sec, second, m, min, minute, h, hr, hour, d,
    day, w, wk, week and their plurals; a month is not accepted, because it is not a fixed time.

    Args:
        text: One or more rates, separated by semicolons or commas.
        limiter: The class of each, called as `limiter(limit, period, **options)`; `SlidingLog` by default.
        options: Further arguments of the class, such as `store`. `name` is the rate's text by default.

    Raises:
        ValueError: Text that is not a rate; the message shows the part that is not. A burst for a limiter
            that has none.
        TypeError: What is not text.

    Example:
        >>> parse("10/second; 1000/hour").check("acme").remaining
        9
    """
    require_text(text, "text")
    parts = [_parse_one(part.strip(), limiter, options) for part in re.split(r"[;,]", text) if part.strip()]
    if not parts:
        raise ValueError(f"expected a rate such as '10/second', got {text!r}")
    return parts[0] if len(parts) == 1 else AllOf(*parts)


def _parse_one(text: str, limiter: Callable[..., RateLimiter], options: dict[str, Any]) -> RateLimiter:
    match = RATE.fullmatch(text)
    period_s = PERIODS_S.get(match["period"].lower()) if match else None
    if match is None or period_s is None:
        raise ValueError(
            f"expected a rate such as '10/second' or '5 per 30 s', with s, m, h, d or w; got {text!r}"
        )
    options = {"name": text, **options}
    if match["burst"] is not None:
        if "burst" not in inspect.signature(limiter).parameters:
            raise ValueError(f"burst: {limiter!r:.80} has none, got {text!r}; write limiter=TokenBucket")
        options["burst"] = int(match["burst"])
    return limiter(int(match["limit"]), period_s * int(match["times"] or 1), **options)
