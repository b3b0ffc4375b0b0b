"""The HTTP response to a denied request: status, headers and problem details, and the headers about limits.

Pure: the adapters send what these functions return.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
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

INTEGER_MAX = 999_999_999_999_999  # RFC 9651, 3.3.1
NAMELESS = "limit"  # the policy of a limiter without a name

HeaderStyle = Literal["draft", "legacy", "both", "off"]
STYLES = ("draft", "legacy", "both", "off")


class LimitItem(NamedTuple):
    """The state of one policy or limiter, as far as a process knows it, for the headers about limits.

    Attributes:
        name: The name of the policy.
        limit: The amount that it allows; None if it is not known, as of a lock.
        remaining: The amount that is left.
        reset: Seconds until there is more; None if that is not known.
        window: The length of the window in whole seconds; 0 if it has none.
        unit: The quota unit, if it is not requests: "content-bytes".
    """

    name: str
    limit: int | None
    remaining: int
    reset: float | None = None
    window: int = 0
    unit: str = ""


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
        *limit_headers(denial_items(decision), style),
    ]
    if decision.retry_after is not None:
        headers.append(("retry-after", str(math.ceil(decision.retry_after))))
    return RefusalResponse(status, headers, body)


def denial_items(decision: Decision) -> list[LimitItem]:
    """Returns the items of the policies that deny a request.

    Of a lock nothing remains until its end. Its limit is not known: locks carry a sentence, and no number. Of
    the other locks that deny the request the ends are not known either.

    >>> denied = Decision(False, policy="daily", retry_after=1.2, also=("monthly",))
    >>> [(item.name, item.remaining, item.reset) for item in denial_items(denied)]
    [('daily', 0, 1.2), ('monthly', 0, None)]
    """
    if decision.limit is not None and decision.remaining is not None:  # by a limiter, or a lock that slows
        reset = decision.reset_after or 0.0
        first = LimitItem(decision.policy, decision.limit, decision.remaining, reset)
    elif decision.policy:
        first = LimitItem(decision.policy, None, 0, decision.retry_after)
    else:
        return []
    return [first, *(LimitItem(policy, None, 0) for policy in decision.also)]


def admission_item(decision: Decision, name: str = "") -> LimitItem | None:
    """Returns the item of a limiter, or of a lock that slows; None for a decision without a limit.

    `name` is the limiter's; it stands in for the policy, which the decision of a limiter that allows does not
    have.
    """
    if decision.limit is None or decision.remaining is None:
        return None
    reset = decision.reset_after or 0.0
    return LimitItem(decision.policy or name, decision.limit, decision.remaining, reset)


def limit_headers(items: Sequence[LimitItem], style: HeaderStyle) -> list[tuple[str, str]]:
    """Returns the headers that describe limits, for any response; none if there is no item.

    "draft" is draft-ietf-httpapi-ratelimit-headers-10: lists with one item for each name, of several the one
    with least remaining. "legacy" is the three older X-RateLimit headers, of the item with least remaining,
    with the seconds until the reset.

    >>> limit_headers([LimitItem("burst", 10, 4, 1.2, 1), LimitItem("daily", None, 0)], "draft")
    [('ratelimit-policy', '"burst";q=10;w=1'), ('ratelimit', '"burst";r=4;t=2, "daily";r=0')]
    >>> limit_headers([LimitItem("", 10, 4, 1.2)], "legacy")[:2]
    [('x-ratelimit-limit', '10'), ('x-ratelimit-remaining', '4')]
    """
    if not items or style == "off":
        return []
    by_name: dict[str, LimitItem] = {}  # by the name as it is sent
    for item in items:
        name = quote(item.name or NAMELESS)
        tightest = by_name.get(name)
        if tightest is None or item.remaining < tightest.remaining:
            by_name[name] = item
    headers = []
    if style != "legacy":
        policies = [_policy_text(name, item) for name, item in by_name.items() if item.limit is not None]
        if policies:
            headers.append(("ratelimit-policy", ", ".join(policies)))
        headers.append(("ratelimit", ", ".join(_item_text(name, item) for name, item in by_name.items())))
    if style != "draft":
        headers += _legacy_headers(min(by_name.values(), key=lambda item: item.remaining))
    return headers


def _policy_text(name: str, item: LimitItem) -> str:
    unit = f";qu={quote(item.unit)}" if item.unit else ""
    window = f";w={item.window}" if item.window else ""
    return f"{name};q={_integer(item.limit or 0)}{unit}{window}"


def _item_text(name: str, item: LimitItem) -> str:
    reset = "" if item.reset is None else f";t={_integer(math.ceil(item.reset))}"
    return f"{name};r={_integer(item.remaining)}{reset}"


def _integer(value: int) -> int:
    """Returns `value`, or the largest number that a structured field can hold."""
    return min(value, INTEGER_MAX)


def _legacy_headers(item: LimitItem) -> list[tuple[str, str]]:
    values = {"limit": item.limit, "remaining": item.remaining, "reset": item.reset}
    return [
        (f"x-ratelimit-{name}", str(math.ceil(value))) for name, value in values.items() if value is not None
    ]


def require_style(style: str) -> None:
    """Raises ValueError for an unknown style of headers."""
    if style not in STYLES:
        raise ValueError(f"headers: expected one of {', '.join(STYLES)}, got {style!r}")


def refusal_verdict(decision: Decision) -> str:
    """Returns the first word of the header: "denied" (by a lock), "limited" (by a limiter) or "stale".

    Only "denied" excuses a request from its quota: the analyzer knows of locks, and of nothing else that an
    application may refuse a request for.
    """
    return decision.reason if decision.reason in ("limited", "stale") else "denied"


def header_value(decision: Decision) -> str:
    """Returns the header `Gatelock`: a structured field (RFC 9651), such as denied;policy="daily"."""
    verdict = refusal_verdict(decision)
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
