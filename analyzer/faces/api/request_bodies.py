"""Bodies of requests, read with a bound on their length and their time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from fastapi import Request
from starlette.requests import ClientDisconnect

from analyzer.server.problems import HttpProblem

BODY_S = 5.0  # a gate gives up after one second
CLOSE = {"connection": "close"}  # the rest of the body may still arrive


async def body_of(request: Request, bytes_max: int) -> bytes:
    """Returns the body. Raises HttpProblem if it is too long, too slow, or the client disconnects."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    detail = f"The document must have at most {bytes_max} bytes."
                    raise HttpProblem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    except (TimeoutError, ClientDisconnect) as incomplete:
        detail = f"The document was not complete after {BODY_S:g} seconds."
        raise HttpProblem(HTTPStatus.REQUEST_TIMEOUT, detail, CLOSE) from incomplete
    return bytes(body)
