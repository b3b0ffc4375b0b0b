"""The HTTP response to a denied request: status, headers and problem details, and the headers about limits.

Pure: the adapters send what these functions return.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Literal, NamedTuple

from gatekeeper.model import Decision

# draft-ietf-httpapi-ratelimit-headers-10: the problem types that it registers, with their titles.
TYPES = "https://iana.org/assignments/http-problem-types#"
QUOTA = ("quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded")
CAPACITY = (
    "temporary-reduced-capacity",
    "Request cannot be satisfied due to temporary server capacity constraints",
)
ABNORMAL = ("abnormal-usage-detected", "Request not satisfied due to detection of abnormal request pattern")
PROBLEMS = {
    "quota-exceeded": QUOTA,
    "limited": QUOTA,
    "temporary-reduced-capacity": CAPACITY,
    "stale": CAPACITY,
    "abnormal-usage-detected": ABNORMAL,
}

VERDICT = "gatelock"  # header of the response to a denied request; an application's own is removed
VERDICT_BYTES = VERDICT.encode()

UNSAFE = re.compile(r"[^\x20-\x7e]")  # characters that an RFC 9651 string cannot hold

HeaderStyle = Literal["draft", "legacy", "both", "off"]
STYLES = ("draft", "legacy", "both", "off")


class RefusalResponse(NamedTuple):
    """A response that is not sent yet. Header names are in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def refusal(decision: Decision, style: HeaderStyle = "off") -> RefusalResponse:
    """Returns the response to a request that `decision` denies.

    The body has problem details (RFC 9457). `Retry-After` is the wait, if it is known; `Gatelock` names the
    policy for the proxy that writes the request log.
    """
    # A manual lock may carry any number. With a status below 400 the client would believe in success.
    status = decision.status if 400 <= decision.status <= 599 else 429
    body = json.dumps(_problem(decision, status)).encode()
    headers = [
        ("content-type", "application/problem+json"),
        ("content-length", str(len(body))),
        ("cache-control", "no-store"),
        (VERDICT, header_value(decision)),
        *limit_headers(decision, style),
    ]
    if decision.retry_after is not None:
        headers.append(("retry-after", str(math.ceil(decision.retry_after))))
    return RefusalResponse(status, headers, body)


def limit_headers(decision: Decision, style: HeaderStyle, name: str = "") -> list[tuple[str, str]]:
    """Returns the headers that describe the limit, for any response; none if the decision has no limit.

    `name` is the limiter's; it stands in for the policy, which a decision that allows does not have.
    "draft" is draft-ietf-httpapi-ratelimit-headers-10, "legacy" the three older X-RateLimit headers, with the
    seconds until the reset.

    >>> limit_headers(Decision(True, limit=10, remaining=4, reset_after=1.2), "both")[1:3]
    [('ratelimit', '"limit";r=4;t=2'), ('x-ratelimit-limit', '10')]
    """
    if decision.limit is None or decision.remaining is None:
        return []
    reset_s = math.ceil(decision.reset_after or 0.0)
    name = quote(decision.policy or name or "limit")
    headers = []
    if style in ("draft", "both"):
        headers.append(("ratelimit-policy", f"{name};q={decision.limit}"))
        headers.append(("ratelimit", f"{name};r={decision.remaining};t={reset_s}"))
    if style in ("legacy", "both"):
        headers.append(("x-ratelimit-limit", str(decision.limit)))
        headers.append(("x-ratelimit-remaining", str(decision.remaining)))
        headers.append(("x-ratelimit-reset", str(reset_s)))
    return headers


def require_style(style: str) -> None:
    """Raises ValueError for an unknown style of headers."""
    if style not in STYLES:
        raise ValueError(f"headers: expected one of {', '.join(STYLES)}, got {style!r}")


def verdict_of(decision: Decision) -> str:
    """Returns the first word of the header: "denied" (by a lock), "limited" (by a limiter) or "stale".

    Only "denied" excuses a request from its quota: the analyzer knows of locks, and of nothing else that an
    application may refuse a request for.
    """
    return decision.reason if decision.reason in ("limited", "stale") else "denied"


def header_value(decision: Decision) -> str:
    """Returns the header `Gatelock`: a structured field (RFC 9651), such as denied;policy="daily"."""
    verdict = verdict_of(decision)
    return f"{verdict};policy={quote(decision.policy)}" if decision.policy else verdict


@lru_cache(maxsize=1024)
def quote(text: str) -> str:
    """Returns `text` as a string of RFC 9651, with "?" for characters that it cannot hold."""
    escaped = UNSAFE.sub("?", text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _problem(decision: Decision, status: int) -> dict[str, object]:
    kind, title = PROBLEMS.get(decision.reason, ("", ""))
    problem: dict[str, object] = {"type": TYPES + kind if kind else "about:blank"}
    if title:
        problem["title"] = title
    problem["status"] = status
    if decision.detail:
        problem["detail"] = decision.detail
    if decision.policy:
        problem["violated-policies"] = [decision.policy, *decision.also]
    if decision.until is not None:
        problem["until"] = decision.until.isoformat()
    return problem
