"""Refusals as problem details (RFC 9457): what is wrong and what helps, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException


class HttpProblem(Exception):  # an answer, raised where there is nothing more to do
    """Ends a request with `status` and one sentence."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def add_problem_handlers(app: FastAPI) -> None:
    @app.exception_handler(HttpProblem)
    async def told(_request: Request, problem: HttpProblem) -> Response:
        return problem_response(problem.status, problem.detail, problem.headers)

    @app.exception_handler(HTTPException)
    async def refused(_request: Request, error: HTTPException) -> Response:
        """What the framework refuses by itself: another path, another method."""
        status = HTTPStatus(error.status_code)
        return problem_response(
            status, f"{status.description or status.phrase}.".replace("..", "."), error.headers
        )

    @app.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> Response:
        """A mistake of ours: the server logs it, and the client needs to know no more."""
        return problem_response(
            HTTPStatus.INTERNAL_SERVER_ERROR, "A mistake of the server's; its log has it."
        )


def problem_response(status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(
        {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail},
        status,
        {"cache-control": "no-store", **(headers or {})},
        "application/problem+json",
    )
