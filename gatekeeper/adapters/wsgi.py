"""Guards a WSGI application (PEP 3333): one class around it, for Flask, Django, Bottle, Pyramid and more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from gatekeeper.adapters.admission_control import (
    NOTES_ENVIRON_KEY,
    AdmissionController,
    CheckResult,
    GuardLimiter,
    RequestIdentity,
    make_exemption,
    require_store_client,
)
from gatekeeper.adapters.caller_extraction import (
    CallerKind,
    TrustedProxies,
    caller_name,
    name_from_header,
    require_kind,
)
from gatekeeper.adapters.refusal_response import (
    HeaderStyle,
    RefusalResponse,
    limit_headers,
    refusal,
    require_style,
)
from gatekeeper.adapters.route_patterns import RoutePatterns
from gatekeeper.gate import Gate

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

Headers = list[tuple[str, str]]

Extractor = Callable[[Environ], str]  # what a request says of itself; "" when it says nothing

DECISION = "gatelock.decision"  # where the application finds it

PHRASES = {403: "Forbidden", 429: "Too Many Requests", 503: "Service Unavailable"}


class AppResponse(NamedTuple):
    """How the application answered, for `refund_when`."""

    status: int
    headers: Headers


def header(name: str, kind: CallerKind = "api_key") -> Extractor:
    """The caller by a request header, as a name of this kind: `api_key:...` by default. It is read as UTF-8,
    as it stands in the logs of proxies, while frameworks read latin-1. What cannot be a caller's name is no
    caller. Raises ValueError for an unknown kind."""
    require_kind(kind)
    wanted = f"HTTP_{name.upper().replace('-', '_')}"
    # PEP 3333 has the header's bytes in text.
    return lambda environ: name_from_header(kind, environ.get(wanted, "").encode("latin-1", "replace"))


def user(read: Callable[[Environ], str | None] | None = None) -> Extractor:
    """The caller as `user:...`: by what `read` makes of the environment, else by REMOTE_USER, which an
    authenticating server or middleware sets."""
    return lambda environ: caller_name("user", (read or _remote_user)(environ) or "")


def address(trusted_proxies: Iterable[str] = (), prefix6: int = 128) -> Extractor:
    """The caller as `address:...`, by the other end of the connection; by X-Forwarded-For only as far as
    it was written by `trusted_proxies`, addresses and networks, or "unix" for a proxy that asks through a
    Unix socket, read from right to left. IPv6 is cut to its first `prefix6` bits: give the number that the
    log's mapping has."""
    peer_of = behind(trusted_proxies)
    return lambda environ: caller_name("address", peer_of(environ), prefix6)


def behind(trusted_proxies: Iterable[str]) -> Extractor:
    """The address of whoever asks, without a kind, for `Guard(address=...)`: as `address` has it."""
    proxies = TrustedProxies(trusted_proxies)

    def client(environ: Environ) -> str:
        forwarded = environ.get("HTTP_X_FORWARDED_FOR")
        return proxies.client(environ.get("REMOTE_ADDR", ""), [forwarded] if forwarded else [])

    return client


def routes(patterns: Iterable[str], other: str = "other") -> Extractor:
    """The resource as one of `patterns`, `other` when none fits, for `Guard(resource=...)`: give those that
    the log's mapping has. The path is that of SCRIPT_NAME and PATH_INFO, unquoted."""
    known = RoutePatterns(patterns, other)
    return lambda environ: known.of(full_path_of(environ))


peer = behind(())  # the other end of the connection; "" when it has no address (a Unix socket)


def _remote_user(environ: Environ) -> str | None:
    return environ.get("REMOTE_USER")


API_KEY = header("x-api-key")


class Guard:
    """`app`, but refusing requests that `gate`, or one of the limiters, does not let pass.

    As the guard for ASGI: the gate is asked first, then the limiters, for what the extractors find. The
    decision stands in the environment as `gatelock.decision`. Paths in `exempt` (PATH_INFO), below those
    that end in `/*`, or what a function of the environment says, are let through unasked. Raises
    ValueError or TypeError for a setting that cannot be.
    """

    def __init__(
        self,
        app: App,
        gate: Gate,
        *limiters: GuardLimiter,
        caller: Extractor = API_KEY,
        resource: Extractor | None = None,
        tenant: Extractor | None = None,
        address: Extractor = peer,
        cost: Callable[[Environ], int] | None = None,
        exempt: Iterable[str] | Callable[[Environ], bool] = (),
        shadow: bool = False,
        headers: HeaderStyle = "draft",
        refund_when: Callable[[AppResponse], bool] | None = None,
    ) -> None:
        require_style(headers)
        require_store_client(limiters, awaited=False)
        self._app = app
        self._checkpoint = AdmissionController(gate, limiters, shadow=shadow)
        self._caller = caller
        self._resource = resource
        self._tenant = tenant
        self._address = address
        self._cost = cost
        self._exempt = make_exemption(exempt, path_of)
        self._style: HeaderStyle = headers
        self._refund_when = refund_when

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self._exempt(environ):
            return self._app(environ, start_response)
        verdict = self._checkpoint.ask(self._who(environ))
        if not verdict.decision.allowed:
            return send_refusal(refusal(verdict.decision, self._style), environ, start_response)
        environ[DECISION] = verdict.decision
        more = limit_headers(verdict.decision, self._style, verdict.limiter)
        if not verdict.spent or (self._refund_when is None and not self._checkpoint.holds):
            # The body goes to the server as it is, so that it may send a file in its own way.
            return self._app(environ, with_headers(more, start_response) if more else start_response)
        watch = GuardedResponse(self._checkpoint, verdict, self._refund_when)
        return watch.over(self._app, environ, with_headers(more, start_response))

    def _who(self, environ: Environ) -> RequestIdentity:
        return RequestIdentity(
            caller=self._caller(environ),
            address=self._address(environ),
            resource="" if self._resource is None else self._resource(environ),
            tenant="" if self._tenant is None else self._tenant(environ),
            cost=1 if self._cost is None else self._cost(environ),
            method=environ["REQUEST_METHOD"],
            note=environ.get(NOTES_ENVIRON_KEY),
        )


def path_of(environ: Environ) -> str:
    return _text_of_path(environ.get("PATH_INFO", ""))


def full_path_of(environ: Environ) -> str:
    """With what the application is mounted at."""
    return _text_of_path(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))


def _text_of_path(path: str) -> str:
    # PEP 3333 has bytes in text.
    return path if path.isascii() else path.encode("latin-1", "replace").decode("utf-8", "replace")


def with_headers(more: Headers, start_response: StartResponse) -> StartResponse:
    """`start_response`, with more among the headers."""

    def telling(status: str, headers: Headers, *error: Any) -> Callable[[bytes], object]:
        return start_response(status, [*headers, *more], *error)

    return telling


class GuardedResponse:
    """Sees one response through: gives back what `wanted` says when it begins, or when the application fails
    before it has begun, and what was held when the server closes the body."""

    def __init__(
        self,
        checkpoint: AdmissionController,
        verdict: CheckResult,
        wanted: Callable[[AppResponse], bool] | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._verdict = verdict
        self._wanted = wanted
        self._begun = self._over = False
        self._body: Iterable[bytes] = ()

    def over(self, app: App, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """What `app` answers."""

        def telling(status: str, headers: Headers, *error: Any) -> Callable[[bytes], object]:
            self._begin(AppResponse(int(status[:3]), headers))
            return start_response(status, headers, *error)

        try:
            self._body = app(environ, telling)
        except BaseException:
            self._failed()
            raise
        return self

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except Exception:
            self._failed()
            raise

    def close(self) -> None:
        """Called by the server, however the response has ended."""
        try:
            close_body(self._body)
        finally:
            self._leave()

    def _failed(self) -> None:
        self._begin(AppResponse(500, []))  # which is what the server makes of it
        self._leave()

    def _begin(self, answer: AppResponse) -> None:
        if self._begun:  # an application that fails half-way begins a second time
            return
        self._begun = True
        if self._wanted is not None and self._wanted(answer):
            self._checkpoint.refund(self._verdict)

    def _leave(self) -> None:
        if not self._over:
            self._over = True
            self._checkpoint.leave(self._verdict)


def close_body(body: Iterable[bytes]) -> None:
    """Close what an application has answered, if it wants to be."""
    close = getattr(body, "close", None)
    if close is not None:
        close()


def send_refusal(answer: RefusalResponse, environ: Environ, start_response: StartResponse) -> list[bytes]:
    """Send a refusal; the request's body is not read."""
    start_response(f"{answer.status} {PHRASES.get(answer.status, 'Refused')}", answer.headers)
    return [b"" if environ.get("REQUEST_METHOD") == "HEAD" else answer.body]
