"""Refusals as problem details (RFC 9457): what is wrong and what helps, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

HEAD_BYTES_MAX = 16 << 10


class HttpProblem(Exception):  # a response, raised where the request ends
    """Ends a request with `status`, one sentence and these headers."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def add_problem_handlers(app: FastAPI) -> None:
    """Makes `app` answer every refusal and error with problem details, unless it does already."""
    if HttpProblem in app.exception_handlers:
        return

    @app.exception_handler(HttpProblem)
    async def on_problem(_request: Request, problem: HttpProblem) -> Response:
        return problem_response(problem.status, problem.detail, problem.headers)

    @app.exception_handler(HTTPException)
    async def on_framework_refusal(_request: Request, error: HTTPException) -> Response:
        """Answers what the framework refuses by itself: an unknown path, another method."""
        status = HTTPStatus(error.status_code)
        detail = f"{status.description or status.phrase}.".replace("..", ".")
        return problem_response(status, detail, error.headers)

    @app.exception_handler(Exception)
    async def on_bug(_request: Request, _error: Exception) -> Response:
        """Answers a bug without details: they stay in the log of the server."""
        detail = "An internal error; the log of the server has it."
        return problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, detail)


def strict_framing(app: ASGIApp) -> ASGIApp:
    """Returns `app` behind a check of what two programs on the way may read differently.

    A request with Content-Length and Transfer-Encoding can hide a second one (RFC 9112, 6.1).
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        fields = scope["headers"]
        names = {name for name, _ in fields}
        if {b"content-length", b"transfer-encoding"} <= names:
            status, detail = HTTPStatus.BAD_REQUEST, "Send Content-Length or Transfer-Encoding, not both."
        elif sum(len(name) + len(value) + len(": \r\n") for name, value in fields) > HEAD_BYTES_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            detail = f"The header fields must have at most {HEAD_BYTES_MAX} bytes."
        else:
            await app(scope, receive, send)
            return
        await problem_response(status, detail, {"connection": "close"})(scope, receive, send)

    return checked


def problem_response(status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Returns `status` with `detail` as problem details, never to be cached."""
    return JSONResponse(
        {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail},
        status,
        {"cache-control": "no-store", **(headers or {})},
        "application/problem+json",
    )
