"""Who may ask: whoever shows a token; as long as none was made, whoever sits at this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from math import inf

from fastapi import Request

from analyzer.errors import AnalyzerError
from analyzer.store.operations.tokens import TokenList, TokenScope
from analyzer.web.problems import HttpProblem
from analyzer.web.single_flight import SingleFlight

TOKENS_CACHED_S = 2.0  # a token that was revoked is good for this long
RETRY_SOON = {"retry-after": "1"}
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class Authenticator:
    """Compares the token of a request with those that were made.

    Without any, only this machine may ask, by its own name and not through a proxy: behind one
    everybody would come from here, and a web page may bring a browser to ask in another's name.
    """

    def __init__(self, known: Callable[[], TokenList], uptime_s: Callable[[], float]) -> None:
        self._asking = SingleFlight(lambda: (uptime_s(), known()))  # known as of the beginning of the look
        self._uptime_s = uptime_s
        self._known_s, self._known = -inf, TokenList((), 0)

    async def require(self, scope: TokenScope, request: Request) -> None:
        """Raises Problem unless the request may do what `scope` allows."""
        known = await self._tokens()
        if not known.tokens:
            if not _is_from_here(request):
                raise HttpProblem(
                    HTTPStatus.FORBIDDEN,
                    "As long as no token was made, only this machine may ask, directly: "
                    "run `gatelock tokens create NAME --scope read`.",
                )
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise _unknown("Show a token: `Authorization: Bearer ...`, made by `gatelock tokens create`.", "")
        token = known.bearer(given.strip())
        if token is None:
            raise _unknown("This token was never made, was revoked, or its time is over.", "invalid_token")
        if not token.allows(scope):
            raise HttpProblem(
                HTTPStatus.FORBIDDEN,
                f"The token of {token.name} is good for {token.scope}; this needs {scope}.",
                {"www-authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
            )

    async def _tokens(self) -> TokenList:
        if self._uptime_s() - self._known_s > TOKENS_CACHED_S:
            try:
                self._known_s, self._known = await self._asking.get()
            except (AnalyzerError, TimeoutError) as away:
                why = "The tokens cannot be read at the moment."
                raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, why, RETRY_SOON) from away
        return self._known


def _unknown(detail: str, error: str) -> HttpProblem:
    challenge = f'Bearer error="{error}"' if error else "Bearer"
    return HttpProblem(HTTPStatus.UNAUTHORIZED, detail, {"www-authenticate": challenge})


def _is_from_here(request: Request) -> bool:
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
