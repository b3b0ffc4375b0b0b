"""Adds the pages to the application: who may see them, how they are drawn, and what their forms do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import jinja2
from fastapi import FastAPI, Request, Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, StreamingResponse

from analyzer.acting.foreseen import NotConfirmed
from analyzer.billing.reports.day_report import NotFrozen, read_report, report_rows
from analyzer.billing.reports.own_periods import MONTH, last_of_month
from analyzer.billing.reports.report_lines import ReportSums, line_cells, report_columns, usage_lines
from analyzer.billing.reports.row_formats import encode_csv
from analyzer.billing.reports.statement import read_statement
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.faces.api.endpoints import ApiContext, ApiRequest, Endpoint, NotPossible, NotThere
from analyzer.faces.api.request_bodies import body_of
from analyzer.faces.api.requested_values import of_query
from analyzer.faces.api.serving_endpoints import BODY_MAX, Workers
from analyzer.faces.api.usage_endpoints import DATE
from analyzer.faces.authentication import acts_need_a_token
from analyzer.faces.pages.cell_texts import CELL_FILTERS
from analyzer.faces.pages.page_content import Content, Link, PageTable
from analyzer.faces.pages.page_filters import MODES, SPANS_S, filters_of
from analyzer.faces.pages.page_list import PAGES
from analyzer.faces.pages.page_request import Page, PageRequest
from analyzer.faces.pages.statement_page import statement_html
from analyzer.faces.pages.visitors import (
    COOKIE,
    SignInNeeded,
    Visitor,
    Visitors,
    require_own_page,
    set_cookie,
)
from analyzer.judging.caller_limits import subject_named
from analyzer.kernel.errors import AnalyzerError, StoreAway
from analyzer.kernel.secrets import masked
from analyzer.server.problems import HttpProblem, add_problem_handlers

ZONE_COOKIE = "gatelock-zone"  # set by the browser's script
EVENTS_PATH = "/events"
DOWNLOAD = "/download/report"
STATEMENT = "/statement"
# Nothing is loaded from anywhere else, no script or style stands in a page, and no page is framed.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
STATEMENT_HEADERS = HEADERS | {  # a page to save and print: its style is in it
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
}
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

# The files that a table of a page is downloaded as: what makes them, and their media type.
TABLE_FILES: Mapping[str, tuple[Callable[[PageTable, str], Iterator[bytes]], str]] = {
    "csv": (PageTable.as_csv, "text/csv"),
    "json": (PageTable.as_json, "application/json"),
}


class Drawing:
    """Draws pages with the templates."""

    def __init__(self) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("analyzer.faces.pages"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= CELL_FILTERS
        self._templates.tests["link"] = lambda value: isinstance(value, Link)

    def draw(self, template: str, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
        """Returns a page."""
        html = self._templates.get_template(template).render(
            pages=PAGES, spans=SPANS_S, modes=MODES, **values
        )
        return HTMLResponse(html, status, HEADERS)


def add_pages(app: FastAPI, context: ApiContext, visitors: Visitors) -> None:
    """Adds all pages, their forms, sign-in and sign-out, and the files that browsers load for them."""
    drawing, workers = Drawing(), Workers()
    for page in PAGES:
        app.add_route(
            page.path, _guarded(drawing, _page(page, context, visitors, workers, drawing)), methods=["GET"]
        )
    for endpoint in ENDPOINTS:
        if endpoint.acts:
            act = _guarded(drawing, _act(endpoint, context, visitors, workers, drawing))
            app.add_route(_form_path(endpoint.path), act, methods=["POST"])
    _add_sign_in(app, visitors, drawing)
    _add_files(app)
    _add_refusals(app, drawing)
    app.add_route(DOWNLOAD, _guarded(drawing, _report_file(context, visitors, workers)), methods=["GET"])
    app.add_route(STATEMENT, _guarded(drawing, _statement_page(context, visitors, workers)), methods=["GET"])


def _page(
    page: Page, context: ApiContext, visitors: Visitors, workers: Workers, drawing: Drawing
) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        visitor = await visitors.visitor(request)
        _require(visitor, page.scope)
        filters = filters_of(request.query_params, unquote(request.cookies.get(ZONE_COOKIE, "UTC")))
        content: Content = await workers.run(partial(page.read, PageRequest(context, filters, visitor)))
        form, table = request.query_params.get("as"), request.query_params.get("table")
        for page_table in content.tables:
            if page_table.name == table and form is not None and form in TABLE_FILES:
                return _table_file(page_table, form, filters.zone)
        response = drawing.draw(
            "content.html", page=page, content=content, filters=filters, visitor=visitor,
            address=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            form_path=_form_path, done=_done(request.query_params.get("done", "")),
        )  # fmt: skip
        if visitor.is_new:
            set_cookie(response, request, visitor.cookie)
        return response

    return answer


def _act(
    endpoint: Endpoint, context: ApiContext, visitors: Visitors, workers: Workers, drawing: Drawing
) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        visitor = await visitors.visitor(request)
        require_own_page(request)
        form = await _form(request)
        visitor.require_form_key(form.pop("form_key", ""))
        if not visitor.who:
            raise HttpProblem(HTTPStatus.UNAUTHORIZED, acts_need_a_token(endpoint.scope))
        _require(visitor, endpoint.scope)
        back = _own_path(form.pop("back", "/"))
        values = of_query(endpoint.all_parameters, [(name, text) for name, text in form.items() if text])
        try:
            await workers.run(partial(endpoint.ask, context, ApiRequest(values, f"token {visitor.who}")))
        except NotConfirmed as error:
            fields = {"form_key": visitor.form_key, "back": back, **form, "confirmed": "true"}
            return drawing.draw(
                "confirm.html", HTTPStatus.CONFLICT,
                foreseen=error.foreseen, fields=fields, action=request.url.path, back=back,
            )  # fmt: skip
        mark = "&" if "?" in back else "?"
        done = urlencode({"done": endpoint.path})
        return RedirectResponse(f"{back}{mark}{done}", HTTPStatus.SEE_OTHER, HEADERS)

    return answer


def _report_file(context: ApiContext, visitors: Visitors, workers: Workers) -> Callable[[Request], Any]:
    """Answers with the report of a closed day, byte for byte as `gatelock billing report write` makes it."""

    async def answer(request: Request) -> Response:
        visitor = await visitors.visitor(request)
        _require(visitor, "view")
        day, zone = request.query_params.get("day", ""), request.query_params.get("zone", "")
        if zone not in context.settings.billing.zones or re.fullmatch(DATE, day) is None:
            raise NotThere("there is no report of this day: choose one from the list of days")
        path: Path = await workers.run(partial(_written_report, context, day, zone))
        name = f"usage-{day}.csv"
        return FileResponse(
            path,
            media_type="text/csv",
            filename=name,
            headers=HEADERS,
            background=BackgroundTask(path.unlink),
        )

    return answer


def _written_report(context: ApiContext, day: str, zone: str) -> Path:
    """Returns a temporary file with the report. Raises NotPossible for a day that is not closed."""
    try:
        report = read_report(context.engine, zone, day, day, "caller", None)
    except (NotFrozen, LookupError, ValueError) as error:
        raise NotPossible(str(error)) from error
    if not report.is_final:
        raise NotPossible("this day is not closed yet: its report is made when it is")
    columns = report_columns(report)
    lines = usage_lines(report, report_rows(context.engine, report), context.settings.units(), ReportSums())
    with NamedTemporaryFile(prefix="gatelock-report-", suffix=".csv", delete=False) as file:
        for part in encode_csv(columns, (line_cells(line, columns) for line in lines)):
            file.write(part)
    return Path(file.name)


def _statement_page(context: ApiContext, visitors: Visitors, workers: Workers) -> Callable[[Request], Any]:
    """Answers with a statement, byte for byte as `gatelock billing report statement` makes it."""

    async def answer(request: Request) -> Response:
        visitor = await visitors.visitor(request)
        _require(visitor, "view")
        name, month, zone = (request.query_params.get(key, "") for key in ("caller", "month", "zone"))
        if not name or zone not in context.settings.billing.zones or MONTH.fullmatch(month) is None:
            raise NotThere("there is no such statement: choose one from the page of a caller")
        html: str = await workers.run(partial(_statement_html, context, name, month, zone))
        return HTMLResponse(html, headers=STATEMENT_HEADERS)

    return answer


def _statement_html(context: ApiContext, name: str, month: str, zone: str) -> str:
    settings = context.settings
    counted = name if subject_named(name).kind == "tenant" else settings.counted_name(name)
    try:
        day = last_of_month(date.fromisoformat(f"{month}-01"))
        return statement_html(read_statement(context.engine, counted, zone, day), settings.units())
    except (NotFrozen, ValueError) as error:
        raise NotPossible(str(error)) from error


def _guarded(drawing: Drawing, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Returns `answer` with its refusals as pages."""

    async def guarded(request: Request) -> Response:
        try:
            response: Response = await answer(request)
        except SignInNeeded:
            address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            target = address if request.method == "GET" else "/"
            return RedirectResponse(f"/sign-in?{urlencode({'next': target})}", HTTPStatus.SEE_OTHER, HEADERS)
        except HttpProblem as problem:
            return _refusal(drawing, problem.status, problem.detail)
        except (NotThere, NotPossible, AnalyzerError, TimeoutError) as error:
            return _refusal(drawing, *_status_of(error))
        return response

    return guarded


def _add_refusals(app: FastAPI, drawing: Drawing) -> None:
    """Answers a browser that asks for an unknown path with a page; programs get problem details as before."""
    add_problem_handlers(app)
    refuse = app.exception_handlers[HTTPException]

    async def on_refusal(request: Request, error: Exception) -> Response:
        is_page = "text/html" in request.headers.get("accept", "")
        if not is_page or request.url.path.startswith(("/v1/", "/static/")):
            response: Response = await refuse(request, error)  # type: ignore[misc] # it is a coroutine
            return response
        status = HTTPStatus(getattr(error, "status_code", HTTPStatus.NOT_FOUND))
        return _refusal(drawing, status, f"{status.description or status.phrase}.")

    app.exception_handler(HTTPException)(on_refusal)


def _status_of(error: Exception) -> tuple[HTTPStatus, str]:
    match error:
        case NotThere():
            return HTTPStatus.NOT_FOUND, str(error)
        case NotPossible():
            return HTTPStatus.UNPROCESSABLE_ENTITY, str(error)
        case StoreAway() | TimeoutError():
            detail = "The database cannot be reached, or takes too long: load the page again in a moment."
            return HTTPStatus.SERVICE_UNAVAILABLE, detail
    return HTTPStatus.CONFLICT, str(error)


def _refusal(drawing: Drawing, status: HTTPStatus, detail: str) -> Response:
    text = masked(detail)
    return drawing.draw("refusal.html", status, title=status.phrase, detail=text[:1].upper() + text[1:])


def _add_sign_in(app: FastAPI, visitors: Visitors, drawing: Drawing) -> None:
    async def sign_in_page(request: Request) -> Response:
        address = _own_path(request.query_params.get("next", "/"))
        return drawing.draw("sign_in.html", wanted=address, wrong="")

    async def sign_in(request: Request) -> Response:
        require_own_page(request)
        form = await _form(request)
        address = _own_path(form.get("next", "/"))
        try:
            cookie = await visitors.sign_in(form.get("token", ""))
        except HttpProblem as problem:
            return drawing.draw("sign_in.html", problem.status, wanted=address, wrong=problem.detail)
        response = RedirectResponse(address, HTTPStatus.SEE_OTHER, HEADERS)
        set_cookie(response, request, cookie)
        return response

    async def sign_out(request: Request) -> Response:
        require_own_page(request)
        visitor = await visitors.visitor(request)
        visitor.require_form_key((await _form(request)).get("form_key", ""))
        await visitors.sign_out(request)
        response = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER, HEADERS)
        response.delete_cookie(COOKIE, path="/")
        return response

    app.add_route("/sign-in", _guarded(drawing, sign_in_page), methods=["GET"])
    app.add_route("/sign-in", _guarded(drawing, sign_in), methods=["POST"])
    app.add_route("/sign-out", _guarded(drawing, sign_out), methods=["POST"])


def _add_files(app: FastAPI) -> None:
    """Adds the scripts, styles and pictures: their names are known, so that no path can be asked for."""
    folder = files("analyzer.faces.pages") / "static"
    for place in (folder, folder / "vendored"):
        for file in place.iterdir():
            kind = TYPES.get("." + file.name.rpartition(".")[2])
            if kind is not None:
                app.add_route(f"/static/{file.name}", _file(file.read_bytes(), kind), methods=["GET"])


def _file(content: bytes, kind: str) -> Callable[[Request], Any]:
    async def answer(_request: Request) -> Response:
        headers = {"cache-control": "max-age=300", "x-content-type-options": "nosniff"}
        return Response(content, media_type=kind, headers=headers)

    return answer


async def _form(request: Request) -> dict[str, str]:
    """Returns the fields of a form. Raises HttpProblem if it is too long or too slow."""
    body = await body_of(request, BODY_MAX)
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=50))


def _require(visitor: Visitor, scope: Any) -> None:
    if not visitor.may(scope):
        detail = f"The token {visitor.who} has the scope {visitor.scope}; this needs {scope}."
        raise HttpProblem(HTTPStatus.FORBIDDEN, detail)


def _own_path(text: str) -> str:
    """Returns the path of a page of this server; "/" for anything else, so that no link leads elsewhere."""
    parts = urlsplit(text)
    is_own = text.startswith("/") and not text.startswith(("//", "/\\", "/acts/")) and text.isprintable()
    return text if is_own and not parts.scheme and not parts.netloc else "/"


def _form_path(path: str) -> str:
    """Returns where a form asks an endpoint to act: `/acts/locks/lock` for `/v1/locks/lock`."""
    return path.replace("/v1/", "/acts/", 1)


def _table_file(table: PageTable, kind: str, zone: str) -> Response:
    """Answers with all rows of a table, as they are read: a page of them at a time."""
    headers = HEADERS | {"content-disposition": f'attachment; filename="{table.name}.{kind}"'}
    encode, media_type = TABLE_FILES[kind]
    return StreamingResponse(encode(table, zone), media_type=media_type, headers=headers)


def _done(path: str) -> str:
    """Returns the words of the act that a form did; "" for another text."""
    acts = {endpoint.path for endpoint in ENDPOINTS if endpoint.acts}
    return " ".join(path.split("/")[2:]) if path in acts else ""
