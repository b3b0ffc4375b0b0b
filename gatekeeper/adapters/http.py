"""How a refusal looks in HTTP: status, headers and body of a decision. Pure; every adapter sends this."""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple

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

UNSAFE = re.compile(r"[^\x20-\x7e]")  # what an RFC 9651 string cannot hold


class Refusal(NamedTuple):
    """A response, but for sending it. Header names are in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def refusal(decision: Decision) -> Refusal:
    """The response to a request that `decision` denies: problem details (RFC 9457), when to come
    again if that is known, and who refused, for the proxy that writes the request log."""
    # A lock made by hand may carry any number; what is no error would let the caller believe in success.
    status = decision.status if 400 <= decision.status <= 599 else 429
    body = json.dumps(_problem(decision, status)).encode()
    headers = [
        ("content-type", "application/problem+json"),
        ("content-length", str(len(body))),
        ("cache-control", "no-store"),
        ("gatelock", verdict(decision)),
    ]
    if decision.retry_after is not None:
        headers.append(("retry-after", str(math.ceil(decision.retry_after))))
    return Refusal(status, headers, body)


def verdict(decision: Decision) -> str:
    """The value of the header `Gatelock`: a structured field (RFC 9651), as in denied;policy="daily"."""
    if not decision.policy:
        return "denied"
    name = UNSAFE.sub("?", decision.policy).replace("\\", "\\\\").replace('"', '\\"')
    return f'denied;policy="{name}"'


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
