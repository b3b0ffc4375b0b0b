"""Refusals as problem details (RFC 9457): what is wrong and what helps, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse


class Problem(Exception):  # an answer, raised where there is nothing more to do
    """Ends a request with `status` and one sentence."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def tell_problems(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def told(_request: Request, problem: Problem) -> Response:
        return JSONResponse(
            {
                "type": "about:blank",
                "title": problem.status.phrase,
                "status": problem.status,
                "detail": problem.detail,
            },
            problem.status,
            {"cache-control": "no-store", **(problem.headers or {})},
            "application/problem+json",
        )
