"""Adds the endpoints of the table to the application: who may ask, with which bounds, and how is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI, Request, Response

from analyzer.acting.foreseen import NotConfirmed
from analyzer.faces.api.callers_endpoint import etag_of, etags_of
from analyzer.faces.api.endpoints import ApiContext, ApiRequest, Endpoint, NotPossible, NotThere
from analyzer.faces.api.openapi import openapi_document
from analyzer.faces.api.pages import PlacedRow, page_of, place_of
from analyzer.faces.api.request_bodies import body_of
from analyzer.faces.api.requested_values import of_body, of_query
from analyzer.faces.authentication import RETRY_SOON, Authenticator
from analyzer.kernel.errors import AnalyzerError, StoreAway
from analyzer.kernel.secrets import masked
from analyzer.server.problems import HttpProblem, add_problem_handlers
from analyzer.server.single_flight import run_in_thread

READS_MAX = 4  # at a time, so that the database's connections remain for counting
WAITING_MAX = 100  # requests that run or wait for it
ANSWER_S = 15.0  # from the request to the answer, the wait included
READ_MS = 10_000  # of one statement
BODY_MAX = 64 << 10  # bytes
ANSWER_MAX = 8 << 20  # bytes
HEADERS = {"cache-control": "private, no-cache", "vary": "authorization", "x-content-type-options": "nosniff"}


class Workers:
    """Runs blocking calls in threads, `READS_MAX` at a time. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(READS_MAX)
        self._present = 0

    async def run(self, call: Callable[[], Any]) -> Any:
        """Returns or raises what `call` does. Raises HttpProblem if too many wait, TimeoutError.

        A call that takes too long keeps its slot until it ends.
        """
        if self._present >= WAITING_MAX:
            detail = "Too many requests wait at the moment."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON)
        self._present += 1
        running = asyncio.ensure_future(self._in_turn(call))
        running.add_done_callback(self._ended)
        return await asyncio.wait_for(asyncio.shield(running), ANSWER_S)

    async def _in_turn(self, call: Callable[[], Any]) -> Any:
        async with self._slots:
            return await run_in_thread(call)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._present -= 1
        if not running.cancelled():
            running.exception()


def add_endpoints(
    app: FastAPI, endpoints: Sequence[Endpoint], context: ApiContext, authenticator: Authenticator
) -> None:
    """Adds each endpoint to `app`, and the OpenAPI document about them, which everyone may read."""
    add_problem_handlers(app)
    document = json.dumps(openapi_document(endpoints))

    async def openapi(_request: Request) -> Response:
        return Response(document, headers={"cache-control": "no-cache"}, media_type="application/json")

    app.add_route("/v1/openapi.json", openapi, methods=["GET"])
    workers = Workers()
    for endpoint in endpoints:
        answer = _handler(endpoint, context, authenticator, workers)
        app.add_route(endpoint.path, answer, methods=[endpoint.method])


def _handler(
    endpoint: Endpoint, context: ApiContext, authenticator: Authenticator, workers: Workers
) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        token = await authenticator.require(endpoint.scope, request, acts=endpoint.acts)
        if endpoint.has_body:
            require_same_origin(request)
            values = of_body(endpoint.all_parameters, await body_of(request, BODY_MAX))
        else:
            values = of_query(endpoint.all_parameters, request.query_params.multi_items())
        cursor = values.get("cursor")
        place = None if cursor is None or endpoint.place is None else place_of(cursor, endpoint.place)
        call = ApiRequest(values, f"token {token}", place)
        try:
            content = await workers.run(partial(_content, endpoint, context, call))
        except NotConfirmed as error:
            detail = f'{_sentence(error)} Nothing was done: to do it, send "confirmed": true, too.'
            raise HttpProblem(HTTPStatus.CONFLICT, detail[:1].upper() + detail[1:]) from error
        except NotThere as error:
            raise HttpProblem(HTTPStatus.NOT_FOUND, _sentence(error)) from error
        except NotPossible as error:
            raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, _sentence(error)) from error
        except (StoreAway, TimeoutError) as error:
            detail = "The database cannot be reached, or takes too long: ask for less, or again."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON) from error
        except AnalyzerError as error:
            raise HttpProblem(HTTPStatus.CONFLICT, _sentence(error)) from error
        return _response(request, endpoint, content)

    return answer


def _content(endpoint: Endpoint, context: ApiContext, request: ApiRequest) -> Mapping[str, object]:
    answer = endpoint.ask(context, request)
    if endpoint.place is None:
        return cast("Mapping[str, object]", answer)
    page = page_of(cast("Iterable[PlacedRow]", answer), request.after, request["limit"])
    return page | {"notes": request.notes} if request.values.get("texts") else page


def _response(request: Request, endpoint: Endpoint, content: Mapping[str, object]) -> Response:
    body = json.dumps(content, separators=(",", ":"))
    if len(body) > ANSWER_MAX:
        detail = f"The answer has more than {ANSWER_MAX:,} bytes: ask for fewer rows."
        raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
    if endpoint.has_body:
        return Response(body, headers={"cache-control": "no-store"}, media_type="application/json")
    headers = HEADERS | {"etag": etag_of(content)}
    if headers["etag"] in etags_of(request):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def _sentence(error: Exception) -> str:
    sentence = masked(str(error))
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


def require_same_origin(request: Request) -> None:
    """Raises HttpProblem for a request that a page of another origin makes a browser send."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if (origin is not None and origin != own) or site not in (None, "same-origin", "none"):
        raise HttpProblem(HTTPStatus.FORBIDDEN, "Pages of other origins may change nothing here.")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpProblem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send a body of type application/json.")
