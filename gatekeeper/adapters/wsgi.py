"""Guard for WSGI applications (PEP 3333): one class around Flask, Django, Bottle, Pyramid and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gatekeeper.adapters.admission_control import (
    NOTES_ENVIRON_KEY,
    AdmissionController,
    CheckResult,
    GuardLimiter,
    PerAddress,
    RequestIdentity,
    make_exemption,
    read_values,
)
from gatekeeper.adapters.caller_extraction import (
    CallerKind,
    caller_name,
    name_from_header,
    require_kind,
    text_from_header,
)
from gatekeeper.adapters.refusal_response import VERDICT, HeaderStyle, RefusalResponse
from gatekeeper.adapters.route_patterns import OTHER, RoutePatterns
from gatekeeper.gate import Gate
from gatekeeper.identity import PREFIX6, NameDigest, TrustedProxies, peer_address

__all__ = [
    "DECISION",
    "AppResponse",
    "Guard",
    "PerAddress",
    "address",
    "behind",
    "header",
    "header_text",
    "peer",
    "routes",
    "user",
]

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

Headers = list[tuple[str, str]]

Extractor = Callable[[Environ], str]  # returns a name from the environment; "" if the request has none

DECISION = "gatelock.decision"  # key of the decision in the environment

PHRASES = {403: "Forbidden", 429: "Too Many Requests", 503: "Service Unavailable"}


class AppResponse(NamedTuple):
    """The application's response, for `refund_when`.

    Args:
        status: Status code; 500 for an application that failed before it responded.
        headers: Names and values.

    Example:
        >>> def is_free(response: AppResponse) -> bool:  # Guard(..., refund_when=is_free)
        ...     return response.status >= 500
        >>> is_free(AppResponse(503, []))
        True
    """

    status: int
    headers: Headers


def header(name: str, kind: CallerKind = "api_key", digest: NameDigest | None = None) -> Extractor:
    """Returns an extractor of the caller from a request header: `api_key:...` by default.

    The value is read as UTF-8, as proxies log it; frameworks read latin-1. A value that cannot be a caller's
    name counts as absent.

    Args:
        name: Name of the header, in any case.
        kind: Kind of the caller's name: "api_key", "user" or "address".
        digest: Digest of the name, so that keys are stored nowhere; the log has to count by the same one.
            None: the name itself.

    Raises:
        ValueError: `kind` is unknown, or an address has a digest.

    >>> header("X-User", kind="user")({"HTTP_X_USER": "ann"})
    'user:ann'
    """
    require_kind(kind, digest)
    environ_name = f"HTTP_{name.upper().replace('-', '_')}"
    # PEP 3333 decodes the header's bytes as latin-1.
    return lambda environ: name_from_header(
        kind, environ.get(environ_name, "").encode("latin-1", "replace"), digest
    )


def header_text(name: str) -> Extractor:
    """Returns an extractor of the text of a request header, for `Guard(values={...})`.

    The value is read as UTF-8; one that the log does not count by name (too long, with control characters)
    counts as absent.

    Args:
        name: Name of the header, in any case.

    >>> header_text("X-Model")({"HTTP_X_MODEL": "large"})
    'large'
    """
    environ_name = f"HTTP_{name.upper().replace('-', '_')}"
    return lambda environ: text_from_header(environ.get(environ_name, "").encode("latin-1", "replace"))


def user(read: Callable[[Environ], str | None] | None = None) -> Extractor:
    """Returns an extractor of the caller `user:...` from an authenticated user.

    Args:
        read: Returns the user's name, or None. By default REMOTE_USER, which an authenticating server or
            middleware sets.

    >>> user()({"REMOTE_USER": "ann"})
    'user:ann'
    """
    return lambda environ: caller_name("user", (read or _remote_user)(environ) or "")


def address(trusted_proxies: Iterable[str] = (), prefix6: int = PREFIX6) -> Extractor:
    """Returns an extractor of the caller `address:...` from the client's address.

    Args:
        trusted_proxies: Addresses and networks of proxies whose X-Forwarded-For is trusted, read from right
            to left; "unix" for a proxy that connects through a Unix socket.
        prefix6: Bits of an IPv6 address that count; must equal `prefix6` in the log's mapping.

    >>> address()({"REMOTE_ADDR": "2001:db8::7"})
    'address:2001:db8::/64'
    """
    client_of = behind(trusted_proxies)
    return lambda environ: caller_name("address", client_of(environ), prefix6)


def behind(trusted_proxies: Iterable[str]) -> Extractor:
    """Returns an extractor of the client's address behind proxies, for `Guard(address=...)`.

    Args:
        trusted_proxies: Addresses and networks of proxies whose X-Forwarded-For is trusted, read from right
            to left; "unix" for a proxy that connects through a Unix socket.

    >>> client = behind(["10.0.0.0/8"])
    >>> client({"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "6.6.6.6, 192.0.2.1"})
    '192.0.2.1'
    """
    proxies = TrustedProxies(trusted_proxies)
    if not proxies:
        return peer

    def extract_address(environ: Environ) -> str:
        forwarded = environ.get("HTTP_X_FORWARDED_FOR")
        return proxies.client(environ.get("REMOTE_ADDR", ""), [forwarded] if forwarded else [])

    return extract_address


def peer(environ: Environ) -> str:
    """Returns the address of the connection's other end; "" if it has none (a Unix socket).

    Args:
        environ: The WSGI environment.

    >>> peer({"REMOTE_ADDR": "192.0.2.1"})
    '192.0.2.1'
    """
    return peer_address(environ.get("REMOTE_ADDR", "")) or ""


def routes(patterns: Iterable[str], other: str = OTHER) -> Extractor:
    """Returns an extractor of the resource from the path, for `Guard(resource=...)`.

    The path is SCRIPT_NAME with PATH_INFO, which servers percent-decode.

    Args:
        patterns: Route patterns of the log's mapping, such as "/v1/items/{id}".
        other: Resource of paths that match no pattern; the mapping's `else`.

    >>> routes(["/v1/items/{id}"])({"SCRIPT_NAME": "/v1", "PATH_INFO": "/items/7"})
    '/v1/items/{id}'
    """
    matcher = RoutePatterns(patterns, other)
    return lambda environ: matcher.match(full_path(environ))


def _remote_user(environ: Environ) -> str | None:
    return environ.get("REMOTE_USER")


API_KEY = header("x-api-key")


class Guard:
    """Wraps a WSGI application and denies requests that the gate or a limiter does not admit.

    The gate is checked first, then the limiters in their order. A denied request never reaches the
    application and takes nothing from limiters. The application finds the decision in
    `environ["gatelock.decision"]`: the one with least remaining.

    Functions take the WSGI environment.

    Args:
        app: The application.
        gate: The gate.
        *limiters: Limiters that are checked after the gate, by caller, or by address if there is no caller
            (IPv6 by its /64), and a `PerAddress(limiter)` always by address. A store needs a client that
            blocks, `redis.Redis`.
        caller: Returns the caller's typed name, or "". By default from the header X-API-Key.
        resource: Returns the route pattern, if policies count by resource.
        tenant: Returns the tenant, if policies count by tenant.
        values: Returns each named value of the request, by its name, if policies count by one; the gate has
            to take it, `Gate(..., values=["model"])`. `header_text` reads one from a header.
        address: Returns the address that is checked in addition to the caller; by default the other end of
            the connection. Use `behind` if there are proxies.
        cost: Returns the number of permits that a request takes of limiters; by default 1.
        exempt: Paths (PATH_INFO) that pass without a check, exact, or all below one that ends in `/*`; or a
            function that returns whether a request is exempt.
        shadow: Whether to deny no request; those that would have been denied are logged.
        headers: Headers about limits in responses: "draft" (`RateLimit`), "legacy" (`X-RateLimit-...`),
            "both" or "off".
        refund_when: Returns whether limiters get the cost back, by the application's response.

    Raises:
        ValueError: `headers` is unknown, a limiter's store has an asyncio client, or the gate does not take
            one of `values`.
        TypeError: `exempt` is one string instead of several, or one of `limiters` is not a limiter.

    Example:
        >>> from gatekeeper import Gate, SlidingLog
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> def app(environ, start_response):
        ...     start_response("200 OK", [])
        ...     return [b"hello"]
        >>> guard = Guard(app, Gate(FixedSource()), SlidingLog(limit=1, period=60))
        >>> environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_X_API_KEY": "acme"}
        >>> for _ in range(2):
        ...     body = guard(environ, lambda status, headers: print(status))
        200 OK
        429 Too Many Requests
    """

    def __init__(
        self,
        app: App,
        gate: Gate,
        *limiters: GuardLimiter | PerAddress,
        caller: Extractor = API_KEY,
        resource: Extractor | None = None,
        tenant: Extractor | None = None,
        values: Mapping[str, Extractor] | None = None,
        address: Extractor = peer,
        cost: Callable[[Environ], int] | None = None,
        exempt: Iterable[str] | Callable[[Environ], bool] = (),
        shadow: bool = False,
        headers: HeaderStyle = "draft",
        refund_when: Callable[[AppResponse], bool] | None = None,
    ) -> None:
        self._app = app
        self._admission = AdmissionController(
            gate, limiters, values=values or (), awaited=False, shadow=shadow, headers=headers
        )
        self._caller = caller
        self._resource = resource
        self._tenant = tenant
        self._values = values
        self._address = address
        self._cost = cost
        self._is_exempt = make_exemption(exempt, environ_path)
        self._refund_when = refund_when

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self._is_exempt(environ):
            return self._app(environ, with_headers([], start_response))
        result = self._admission.check(self._identity(environ))
        if not result.decision.allowed:
            return send_refusal(self._admission.denial(result), environ, start_response)
        environ[DECISION] = result.decision
        extra = self._admission.limit_headers(result)
        if not result.charged or (self._refund_when is None and not self._admission.holds_permits):
            # The body goes to the server unwrapped, so that the server may send a file by itself.
            return self._app(environ, with_headers(extra, start_response))
        response = GuardedResponse(self._admission, result, self._refund_when)
        return response.run(self._app, environ, with_headers(extra, start_response))

    def _identity(self, environ: Environ) -> RequestIdentity:
        return RequestIdentity(
            caller=self._caller(environ),
            address=self._address(environ),
            resource="" if self._resource is None else self._resource(environ),
            tenant="" if self._tenant is None else self._tenant(environ),
            cost=1 if self._cost is None else self._cost(environ),
            method=environ["REQUEST_METHOD"],
            notes=environ.get(NOTES_ENVIRON_KEY),
            values=read_values(self._values, environ),
        )


def environ_path(environ: Environ) -> str:
    return _decode_path(environ.get("PATH_INFO", ""))


def full_path(environ: Environ) -> str:
    """Returns the path with the prefix that the application is mounted at."""
    return _decode_path(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))


def _decode_path(path: str) -> str:
    # PEP 3333 decodes the path's bytes as latin-1.
    return path if path.isascii() else path.encode("latin-1", "replace").decode("utf-8", "replace")


def with_headers(extra: Headers, start_response: StartResponse) -> StartResponse:
    """Returns `start_response`, with `extra` added to the headers, and without the application's verdict.

    A proxy or a request log takes a header `Gatelock` for the guard's, and the request would not be counted.
    """

    def start_with_headers(status: str, headers: Headers, *error: Any) -> Callable[[bytes], object]:
        kept = [item for item in headers if item[0].lower() != VERDICT]
        return start_response(status, [*kept, *extra], *error)

    return start_with_headers


class GuardedResponse:
    """Follows one response to its end: refunds permits, ends its time in flight.

    Permits are refunded when the response starts or the application fails before; a request is in flight
    until the server closes the body.
    """

    def __init__(
        self,
        admission: AdmissionController,
        result: CheckResult,
        refund_when: Callable[[AppResponse], bool] | None,
    ) -> None:
        self._admission = admission
        self._result = result
        self._refund_when = refund_when
        self._has_started = self._has_left = False
        self._body: Iterable[bytes] = ()

    def run(self, app: App, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Calls `app` and returns its body."""

        def start_guarded(status: str, headers: Headers, *error: Any) -> Callable[[bytes], object]:
            self._start(AppResponse(int(status[:3]), headers))
            return start_response(status, headers, *error)

        try:
            self._body = app(environ, start_guarded)
        except BaseException:
            self._fail()
            raise
        return self

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except Exception:
            self._fail()
            raise

    def close(self) -> None:
        """Ends the response. The server calls this after success, failure or a disconnect."""
        try:
            close_body(self._body)
        finally:
            self._leave()

    def _fail(self) -> None:
        self._start(AppResponse(500, []))  # the server's response to it
        self._leave()

    def _start(self, response: AppResponse) -> None:
        if self._has_started:  # an application that fails midway starts a second response
            return
        self._has_started = True
        if self._refund_when is not None and self._refund_when(response):
            self._admission.refund(self._result)

    def _leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._admission.leave(self._result)


def close_body(body: Iterable[bytes]) -> None:
    """Closes an application's body, if it has `close`."""
    close = getattr(body, "close", None)
    if close is not None:
        close()


def send_refusal(response: RefusalResponse, environ: Environ, start_response: StartResponse) -> list[bytes]:
    """Starts the response to a denied request and returns its body. The request's body is not read."""
    start_response(f"{response.status} {PHRASES.get(response.status, 'Denied')}", response.headers)
    return [b"" if environ.get("REQUEST_METHOD") == "HEAD" else response.body]
