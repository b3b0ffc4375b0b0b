"""Visitors of pages: browsers that signed in with a token, or on this machine while no token exists."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from fastapi import Request, Response

from analyzer.faces.authentication import RETRY_SOON, Authenticator, is_loopback
from analyzer.kernel import sessions
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.tokens import SCOPES, Token, TokenScope
from analyzer.server.problems import HttpProblem
from analyzer.server.single_flight import run_in_thread

COOKIE = "gatelock-session"
Stored = TypeVar("Stored")
LEAST: TokenScope = "view"
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")  # set by proxies
REFRESHES = "hx-request"  # the header field of requests that a page makes by itself


class SignInNeeded(Exception):  # a redirect, raised where a page is asked for
    """A request for a page by a browser that has not signed in."""


class Visitor(NamedTuple):
    """A browser, and what its token permits.

    Attributes:
        who: The name of the token; "" while no token exists: then the browser may read, and not act.
        scope: What it permits.
        cookie: The name of the session.
        is_new: Whether the browser has to be given the cookie.
    """

    who: str
    scope: TokenScope
    cookie: str
    is_new: bool = False

    def may(self, scope: TokenScope) -> bool:
        """Whether the visitor may read what needs `scope`."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def may_act(self, scope: TokenScope) -> bool:
        """Whether the visitor may do what needs `scope`: acts need a token."""
        return bool(self.who) and self.may(scope)

    @property
    def form_key(self) -> str:
        """The key in each form of this visitor, which no page of another origin can know."""
        return hashlib.sha256(f"form {self.cookie}".encode()).hexdigest()

    def require_form_key(self, key: str) -> None:
        """Raises HttpProblem if a form was not one of this visitor."""
        if not hmac.compare_digest(self.form_key, key):
            detail = "This form is from an earlier session: go back, load the page again, and repeat it."
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)


class Visitors:
    """Knows visitors by the cookie of their session. All methods belong to one event loop."""

    def __init__(self, engine: Engine, authenticator: Authenticator) -> None:
        self._engine = engine
        self._authenticator = authenticator

    async def visitor(self, request: Request) -> Visitor:
        """Returns the visitor of a request. Raises SignInNeeded, HttpProblem."""
        tokens = await self._authenticator.known_tokens()
        cookie = request.cookies.get(COOKIE, "")
        if tokens.is_open:
            if not _is_local(request):
                detail = "While no token exists, pages are shown on this machine alone: create a token."
                raise HttpProblem(HTTPStatus.FORBIDDEN, detail)
            return Visitor("", "admin", cookie or secrets.token_urlsafe(32), not cookie)
        session = await self._session(cookie) if cookie else None
        token = None if session is None else tokens.by_digest(session.token)
        if session is None or token is None or not token.allows(LEAST):
            raise SignInNeeded
        if session.is_due and REFRESHES not in request.headers:
            await self._stored(partial(sessions.note_act, self._engine, cookie))
        return Visitor(token.name, _scope(token), cookie)

    async def require(self, scope: TokenScope, request: Request) -> str:
        """Returns the name of the visitor's token. Raises HttpProblem unless it permits `scope`."""
        try:
            visitor = await self.visitor(request)
        except SignInNeeded as error:
            raise HttpProblem(HTTPStatus.UNAUTHORIZED, "Sign in first.") from error
        if not visitor.may(scope):
            detail = f"The token {visitor.who} has the scope {visitor.scope}; this needs {scope}."
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)
        return visitor.who

    async def allows(self, scope: TokenScope, request: Request) -> bool:
        """Whether the visitor may do what `scope` permits."""
        try:
            await self.require(scope, request)
        except HttpProblem:
            return False
        return True

    async def sign_in(self, text: str) -> str:
        """Begins a session and returns the value of the cookie. Raises HttpProblem for a wrong token."""
        tokens = await self._authenticator.known_tokens()
        token = tokens.bearer(text.strip())
        if token is None:
            detail = "This token was never made, was revoked, or has expired."
            raise HttpProblem(HTTPStatus.UNAUTHORIZED, detail)
        if not token.allows(LEAST):
            detail = (
                f"The token {token.name} has the scope {token.scope}; pages need {LEAST}, operate or admin."
            )
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)
        return await self._stored(partial(sessions.begin, self._engine, token.digest))

    async def sign_out(self, request: Request) -> None:
        """Ends the session of a request. Raises HttpProblem."""
        if cookie := request.cookies.get(COOKIE):
            await self._stored(partial(sessions.end, self._engine, cookie))

    async def _session(self, cookie: str) -> sessions.Session | None:
        return await self._stored(partial(sessions.find, self._engine, cookie))

    async def _stored(self, call: Callable[[], Stored]) -> Stored:
        try:
            return await run_in_thread(call)
        except (AnalyzerError, TimeoutError) as error:
            detail = "The database cannot be reached: load the page again in a moment."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON) from error


def set_cookie(response: Response, request: Request, value: str) -> None:
    """Gives the browser the session. Scripts cannot read it, and pages of other sites cannot send it."""
    response.set_cookie(
        COOKIE, value, max_age=sessions.LASTS_MS // 1000, path="/", httponly=True, samesite="lax",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def require_own_page(request: Request) -> None:
    """Raises HttpProblem for a form that a page of another origin makes a browser send."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none") or (origin and urlsplit(origin).netloc != request.url.netloc):
        raise HttpProblem(HTTPStatus.FORBIDDEN, "Pages of other origins may change nothing here.")


def _scope(token: Token) -> TokenScope:
    return next(scope for scope in SCOPES if scope == token.scope)


def _is_local(request: Request) -> bool:
    """Whether a browser on this machine asks under a name of this machine, and not for another site."""
    if request.client is None or any(name in request.headers for name in FORWARDED):
        return False
    is_here = is_loopback(request.client.host) and is_loopback(request.url.hostname or "")
    is_link = request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"
    site = request.headers.get("sec-fetch-site", "same-origin")
    return is_here and (is_link or site in ("same-origin", "none"))
