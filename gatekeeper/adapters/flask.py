"""Guard for Flask applications: an extension that knows routes, so that views have costs and resources."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

try:
    from flask import Flask, Request, Response, current_app, g, request
    from werkzeug.wsgi import ClosingIterator
except ImportError as missing:
    raise ImportError("gatekeeper.adapters.flask needs Flask: pip install 'gatelock[flask]'") from missing

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
from gatekeeper.adapters.refusal_response import VERDICT, HeaderStyle
from gatekeeper.adapters.route_patterns import OTHER, pattern_of_flask
from gatekeeper.adapters.wsgi import (
    API_KEY,
    App,
    Environ,
    Extractor,
    StartResponse,
    address,
    behind,
    header,
    header_text,
    peer,
    user,
)
from gatekeeper.gate import Gate

__all__ = ["Guard", "PerAddress", "address", "behind", "header", "header_text", "peer", "user"]

ViewFunction = TypeVar("ViewFunction", bound=Callable[..., Any])

COST, EXEMPT = "gatelock_cost", "gatelock_exempt"


class Guard:
    """Flask extension that denies requests that the gate or a limiter does not admit.

    The gate is checked first, then the limiters in their order. A denied request takes nothing from limiters.
    Views find the decision in `g.gatelock`: the one with least remaining. The resource is the rule that the
    request matched, such as /v1/items/{id}.

    `caller`, `tenant` and `address` take the WSGI environment, and can use Flask's `g` and `request`: with
    `caller=user(lambda environ: g.user.name)` an earlier `before_request` sets `g.user`.

    Args:
        gate: The gate.
        *limiters: Limiters that are checked after the gate, by caller, or by address if there is no caller
            (IPv6 by its /64), and a `PerAddress(limiter)` always by address. A store needs a client that
            blocks, `redis.Redis`.
        app: The application; without it call `init_app`.
        caller: Returns the caller's typed name, or "". By default from the header X-API-Key.
        tenant: Returns the tenant, if policies count by tenant.
        values: Returns each named value of the request, by its name, if policies count by one; the gate has
            to take it, `Gate(..., values=["model"])`. `header_text` reads one from a header.
        address: Returns the address that is checked in addition to the caller; by default the other end of
            the connection. Use `behind` if there are proxies.
        other: Resource of requests that match no route; the `else` of the log's mapping.
        exempt: Paths that pass without a check, exact, or all below one that ends in `/*`; or a function of
            Flask's request that returns whether it is exempt.
        shadow: Whether to deny no request; those that would have been denied are logged.
        headers: Headers about limits in responses: "draft" (`RateLimit`), "legacy" (`X-RateLimit-...`),
            "both" or "off".
        refund_when: Returns whether limiters get the cost back, by Flask's response.

    Raises:
        ValueError: `headers` is unknown, a limiter's store has an asyncio client, or the gate does not take
            one of `values`.
        TypeError: `exempt` is one string instead of several, or one of `limiters` is not a limiter.

    Example:
        >>> from flask import Flask
        >>> from gatekeeper import Gate, SlidingLog
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> app = Flask("shop")
        >>> guard = Guard(Gate(FixedSource()), SlidingLog(limit=10, period=60), app=app)
        >>> @app.get("/export")
        ... @guard.cost(10)
        ... def export():
        ...     return "ten permits"
        >>> [app.test_client().get("/export", headers={"x-api-key": "acme"}).status_code for _ in range(2)]
        [200, 429]
    """

    def __init__(
        self,
        gate: Gate,
        *limiters: GuardLimiter | PerAddress,
        app: Flask | None = None,
        caller: Extractor = API_KEY,
        tenant: Extractor | None = None,
        values: Mapping[str, Extractor] | None = None,
        address: Extractor = peer,
        other: str = OTHER,
        exempt: Iterable[str] | Callable[[Request], bool] = (),
        shadow: bool = False,
        headers: HeaderStyle = "draft",
        refund_when: Callable[[Response], bool] | None = None,
    ) -> None:
        self._admission = AdmissionController(
            gate, limiters, values=values or (), awaited=False, shadow=shadow, headers=headers
        )
        self._caller = caller
        self._tenant = tenant
        self._values = values
        self._address = address
        self._other = other
        self._is_exempt = make_exemption(exempt, lambda request: request.path)
        self._refund_when = refund_when
        # Keys in the environment, not in `g`: a context that is pushed by hand has one `g` for many requests.
        self._result_key = f"gatelock.result.{id(self)}"
        self._started_key = f"gatelock.started.{id(self)}"
        self._refused_key = f"gatelock.refused.{id(self)}"
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Guards every request of `app`. Call it after registering the functions that `caller` depends on."""
        app.extensions["gatelock"] = self
        app.before_request(self._before)
        app.after_request(self._after)
        if self._admission.holds_permits or self._refund_when is not None:
            app.wsgi_app = self._follow(app.wsgi_app)  # type: ignore[method-assign, assignment]  # Flask's way

    def cost(self, permits: int | Callable[[], int]) -> Callable[[ViewFunction], ViewFunction]:
        """Returns a decorator of a view whose requests take more than one permit of limiters.

        Args:
            permits: The number of permits, or a function that returns it; it can use Flask's `request`.
        """

        def decorate(view: ViewFunction) -> ViewFunction:
            setattr(view, COST, permits)
            return view

        return decorate

    def exempt(self, view: ViewFunction) -> ViewFunction:
        """Decorates a view whose requests pass without a check."""
        setattr(view, EXEMPT, True)
        return view

    def _before(self) -> Response | None:
        rule = request.url_rule
        view = None if rule is None else current_app.view_functions.get(rule.endpoint)
        if getattr(view, EXEMPT, False) or self._is_exempt(request):
            return None
        environ, permits = request.environ, getattr(view, COST, 1)
        result = self._admission.check(
            RequestIdentity(
                caller=self._caller(environ),
                address=self._address(environ),
                resource=self._other if rule is None else pattern_of_flask(rule.rule),
                tenant="" if self._tenant is None else self._tenant(environ),
                cost=permits() if callable(permits) else permits,
                method=request.method,
                notes=environ.get(NOTES_ENVIRON_KEY),
                values=read_values(self._values, environ),
            )
        )
        if not result.decision.allowed:
            environ[self._refused_key] = True
            response = self._admission.denial(result)
            return Response(response.body, response.status, response.headers)
        g.gatelock = result.decision
        environ[self._result_key] = result
        return None

    def _after(self, response: Response) -> Response:
        environ = request.environ
        if self._refused_key not in environ:  # a proxy or a request log would take it for the guard's
            response.headers.remove(VERDICT)
        result: CheckResult | None = environ.get(self._result_key)
        if result is not None:
            response.headers.extend(self._admission.limit_headers(result))
            self._start(environ, result, response)
            if not response.is_streamed:  # the response is complete; a stream begins now
                self._end(environ)
        return response

    def _start(self, environ: Environ, result: CheckResult, response: Response) -> None:
        """Refunds permits, once per request, if `refund_when` wants it."""
        if result.charged and self._refund_when is not None and not environ.get(self._started_key):
            environ[self._started_key] = True
            if self._refund_when(response):
                self._admission.refund(result)

    def _follow(self, app: App) -> App:
        """Wraps `app` to follow each response to its end."""

        def followed_app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            try:
                body = app(environ, start_response)
            except BaseException:
                self._end(environ, has_failed=True)
                raise
            return ClosingIterator(body, functools.partial(self._end, environ))

        return followed_app

    def _end(self, environ: Environ, *, has_failed: bool = False) -> None:
        result: CheckResult | None = environ.get(self._result_key)
        if result is None:
            return
        if has_failed:  # Flask did not turn the exception into a response, as in debug mode
            self._start(environ, result, Response(status=500))
        del environ[self._result_key]
        self._admission.leave(result)
