"""Authentication by bearer tokens; while no token exists, only this machine is served."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from math import inf
from typing import NamedTuple

from fastapi import Request

from analyzer.errors import AnalyzerError
from analyzer.store.operations.tokens import TokenList, TokenScope
from analyzer.web.connection_limits import Client
from analyzer.web.problems import HttpProblem
from analyzer.web.single_flight import SingleFlight

TOKENS_CACHED_S = 2.0  # a revoked token is accepted for up to this long
RETRY_SOON = {"retry-after": "1"}
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class Credentials(NamedTuple):
    """The parts of a request that decide what it may do."""

    authorization: str  # the header field, "" if there is none
    is_local: bool  # whether it comes from this machine, under a name of this machine, not through a proxy
    client: Client | None

    @classmethod
    def of(cls, request: Request) -> Credentials:
        """Returns the credentials of a request."""
        client = None if request.client is None else (request.client.host, request.client.port)
        return cls(request.headers.get("authorization", ""), _is_local(request), client)


class Authenticator:
    """Compares the token of a request with the tokens in the database.

    While there is none, only requests from this machine are served, under a name of this machine and not
    through a proxy: behind a proxy every request comes from this machine, and a web page elsewhere may make a
    browser on this machine ask under another name (DNS rebinding).
    """

    def __init__(
        self,
        load_tokens: Callable[[], TokenList],
        uptime_s: Callable[[], float],
        on_admitted: Callable[[Client | None], object] = lambda _client: None,
    ) -> None:
        """`load_tokens` may block; it runs in a thread, at most once in `TOKENS_CACHED_S`. `on_admitted` gets
        the client of each request that is admitted."""
        # The time is taken before the tokens are read: what is revoked meanwhile counts as not seen yet.
        self._loading = SingleFlight(lambda: (uptime_s(), load_tokens()))
        self._uptime_s = uptime_s
        self._on_admitted = on_admitted
        self._loaded_s, self._cached = -inf, TokenList((), 0)

    async def require(self, scope: TokenScope, request: Request) -> None:
        """Raises HttpProblem unless `request` may do what `scope` allows."""
        await self.check(scope, Credentials.of(request))

    async def check(self, scope: TokenScope, credentials: Credentials) -> None:
        """Raises HttpProblem unless a request with these credentials may do what `scope` allows."""
        self._check(await self._tokens(), scope, credentials)
        self._on_admitted(credentials.client)

    def _check(self, known: TokenList, scope: TokenScope, credentials: Credentials) -> None:
        if not known.tokens:
            if not credentials.is_local:
                raise HttpProblem(
                    HTTPStatus.FORBIDDEN,
                    "While no token exists, only direct requests from this machine are answered: "
                    "run `gatelock tokens create NAME --scope read`.",
                )
            return
        kind, _, given = credentials.authorization.partition(" ")
        if kind.lower() != "bearer":
            detail = "Send a token, `Authorization: Bearer ...`, made by `gatelock tokens create`."
            raise _unauthorized(detail, "")
        token = known.bearer(given.strip())
        if token is None:
            raise _unauthorized("This token was never made, was revoked, or has expired.", "invalid_token")
        if not token.allows(scope):
            raise HttpProblem(
                HTTPStatus.FORBIDDEN,
                f"The token {token.name} has the scope {token.scope}; this request needs {scope}.",
                {"www-authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
            )

    async def _tokens(self) -> TokenList:
        if self._uptime_s() - self._loaded_s > TOKENS_CACHED_S:
            try:
                self._loaded_s, self._cached = await self._loading.get()
            except (AnalyzerError, TimeoutError) as error:
                detail = "The tokens cannot be read at the moment."
                raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON) from error
        return self._cached


def _unauthorized(detail: str, error: str) -> HttpProblem:
    challenge = f'Bearer error="{error}"' if error else "Bearer"
    return HttpProblem(HTTPStatus.UNAUTHORIZED, detail, {"www-authenticate": challenge})


def _is_local(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in FORWARDED):
        return False
    return is_loopback(request.client.host) and is_loopback(request.url.hostname or "")


@lru_cache(maxsize=1_000)
def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback
