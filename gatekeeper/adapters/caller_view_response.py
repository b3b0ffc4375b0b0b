"""The response with a caller's own view: what it has used, what remains, and why it is locked.

An application asks on behalf of a caller that it has authenticated, and sends what these functions return.
They do I/O, unlike all other parts of an adapter.
"""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from http import HTTPStatus
from typing import NamedTuple

from gatekeeper.adapters.refusal_response import HeaderStyle, LimitItem, limit_headers, require_style
from gatekeeper.caller_view import CallerView, RemainingLimit, is_caller
from gatekeeper.gate import Gate
from gatekeeper.log_pace import LogPace
from gatekeeper.model import SourceError

__all__ = ["ViewResponse", "caller_view_response", "caller_view_response_async"]

log = logging.getLogger("gatekeeper")
_unavailable_pace = LogPace()

SECOND = timedelta(seconds=1)
RETRY_S = 1
REQUESTS, BYTES = "requests", "bytes"  # a meter and a unit for which the draft has a quota unit


class ViewResponse(NamedTuple):
    """A response that is not sent yet.

    Args:
        status: Status code: 200; 400 for a request without a caller; 503 while the server cannot be asked.
        headers: Names in lower case and values.
        body: A JSON document.

    Example:
        >>> ViewResponse(200, {"content-type": "application/json"}, b"{}").status
        200
    """

    status: int
    headers: dict[str, str]
    body: bytes


def caller_view_response(gate: Gate, caller: str, headers: HeaderStyle = "draft") -> ViewResponse:
    """Returns the response with the view of one caller. Blocks until the server has answered.

    Args:
        gate: A gate whose source is a server, with a token that has the scope `callers`.
        caller: The typed name of a caller that the application has authenticated; "" for none.
        headers: Headers about limits: "draft" (`RateLimit`), "legacy" (`X-RateLimit-...`), "both" or "off".

    Raises:
        ValueError: The gate's source is not a server, or `headers` is unknown.

    Example:
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> caller_view_response(Gate(FixedSource()), "").status
        400
    """
    require_style(headers)
    if not is_caller(caller):
        return _nameless()
    try:
        view = gate.caller_view(caller)
    except SourceError as error:
        return _unavailable(error)
    return _response(view, headers)


async def caller_view_response_async(gate: Gate, caller: str, headers: HeaderStyle = "draft") -> ViewResponse:
    """Returns the response with the view of one caller; waits for the server in a thread.

    Args:
        gate: A gate whose source is a server, with a token that has the scope `callers`.
        caller: The typed name of a caller that the application has authenticated; "" for none.
        headers: Headers about limits: "draft" (`RateLimit`), "legacy" (`X-RateLimit-...`), "both" or "off".

    Raises:
        ValueError: The gate's source is not a server, or `headers` is unknown.

    Example:
        >>> import asyncio
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> asyncio.run(caller_view_response_async(Gate(FixedSource()), "")).status
        400
    """
    require_style(headers)
    if not is_caller(caller):
        return _nameless()
    try:
        view = await gate.caller_view_async(caller)
    except SourceError as error:
        return _unavailable(error)
    return _response(view, headers)


def view_items(view: CallerView) -> list[LimitItem]:
    """Returns the limits of a view that are in requests or bytes, for the headers about limits."""
    return [item for limit in view.limits if (item := _item(limit, view)) is not None]


def _item(limit: RemainingLimit, view: CallerView) -> LimitItem | None:
    """Returns the item of a limit; None without a limit, or for amounts without a quota unit in the draft."""
    is_known = limit.unit == BYTES or limit.meter == REQUESTS
    if not is_known or limit.limit is None or limit.remaining is None:
        return None
    unit = "content-bytes" if limit.unit == BYTES else ""
    reset = None if limit.resets is None else max(0.0, (limit.resets - view.now) / SECOND)
    return LimitItem(limit.policy, limit.limit, limit.remaining, reset, limit.window, unit)


def _response(view: CallerView, style: HeaderStyle) -> ViewResponse:
    headers = {
        "content-type": "application/json",
        "cache-control": f"private, max-age={int(view.max_age)}",
        "vary": "authorization, cookie, x-api-key",
    }
    return ViewResponse(200, headers | dict(limit_headers(view_items(view), style)), view.document)


def _nameless() -> ViewResponse:
    return _problem(HTTPStatus.BAD_REQUEST, "The request names no caller.", {})


def _unavailable(error: SourceError) -> ViewResponse:
    if (more := _unavailable_pace.next_line()) is not None:
        log.warning("a caller's view cannot be read: %s%s", error, more)
    detail = "The use of callers cannot be read at the moment."
    return _problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"retry-after": str(RETRY_S)})


def _problem(status: HTTPStatus, detail: str, headers: dict[str, str]) -> ViewResponse:
    problem = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    kind = {"content-type": "application/problem+json", "cache-control": "no-store"}
    return ViewResponse(int(status), kind | headers, json.dumps(problem).encode())
